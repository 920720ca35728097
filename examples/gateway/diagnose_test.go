package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/prefix/diagnose"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// played is a fleet behind a gateway that records a script's requests.
type played struct {
	t    *testing.T
	url  string
	file string
}

type scene struct {
	servers  int
	kvTokens int
	models   []string // of the servers; nil for the default
	settings string
	inspect  func(*gateway) // may be nil; called at the end
}

// play runs a script over real HTTP and returns the recording.
func (s scene) play(t *testing.T, script func(p *played)) string {
	t.Helper()
	config := rig.Must(traffic.ServerConfig(cmp.Or(s.kvTokens, 1<<20)))
	config.Speed = 200
	text := ""
	for i := range max(s.servers, 1) {
		if len(s.models) > 0 {
			config.Model = s.models[i]
		}
		f := rig.Must(traffic.StartFleet(1, config))
		defer func() { assert.NoError(t, f.Close()) }()
		text += fmt.Sprintf("  - {id: s%d, url: \"http://%s\"", i, f.Members[0].Address)
		if len(s.models) > 0 {
			text += ", models: [" + s.models[i] + "]"
		}
		text += "}\n"
	}
	file := filepath.Join(t.TempDir(), "r.jsonl")
	if !strings.Contains(s.settings, "record:") {
		s.settings += "record: {file: FILE}\n"
	}
	g := newTestGateway(t, strings.Replace(s.settings, "FILE", file, 1)+"endpoints:\n"+text)
	script(&played{t, serving(t, g).URL, file})
	if s.inspect != nil {
		s.inspect(g)
	}
	require.NoError(t, g.close())
	return file
}

// say sends a chat and returns the answer; more are members of the body, followed by header pairs.
func (p *played) say(messages []traffic.Message, more map[string]any, headers ...string) string {
	p.t.Helper()
	body := map[string]any{"model": modelserver.DefaultModel, "messages": messages, "max_tokens": 16}
	maps.Copy(body, more)
	code, text := postTo(p.url+"/v1/chat/completions", string(rig.Must(json.Marshal(body))), headers...)
	require.Equal(p.t, 200, code, text)
	var answer struct {
		Choices []struct{ Message traffic.Message }
	}
	require.NoError(p.t, json.Unmarshal([]byte(text), &answer))
	return answer.Choices[0].Message.Content
}

// asMessages pairs roles with contents.
func asMessages(pairs ...string) (all []traffic.Message) {
	for i := 0; i+1 < len(pairs); i += 2 {
		all = append(all, traffic.Message{Role: pairs[i], Content: pairs[i+1]})
	}
	return all
}

// prose returns n bytes of unique text.
func prose(seed, n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		x := engine.Mix(uint64(seed)<<32 + uint64(i))
		fmt.Fprintf(&b, "%c%c%c%c%c ", 'a'+x%26, 'a'+x>>8%26, 'a'+x>>16%26, 'a'+x>>24%26, 'a'+x>>32%26)
	}
	return b.String()[:n]
}

// or is a function, or one that returns nothing.
func or[T any](f func(i int) T) func(i int) T {
	if f == nil {
		return func(int) (none T) { return none }
	}
	return f
}

// apart asks six questions that share only the system prompt.
func apart(system func(i int) string, more func(i int) map[string]any) func(*played) {
	return func(p *played) {
		for i := range 6 {
			p.say(asMessages("system", system(i), "user", prose(100+i, 64)), or(more)(i))
		}
	}
}

// converse asks six questions in turn and changes the conversation before each.
func converse(change func(i int, messages []traffic.Message) []traffic.Message, more func(i int) map[string]any, headers func(i int) []string) func(*played) {
	return func(p *played) {
		messages := []traffic.Message{{Role: "system", Content: prose(1, 1600)}}
		for i := range 6 {
			messages = append(messages, traffic.Message{Role: "user", Content: prose(200+i, 200)})
			asked := messages
			if change != nil {
				asked = change(i, messages)
			}
			messages = append(messages, traffic.Message{Role: "assistant", Content: p.say(asked, or(more)(i), or(headers)(i)...)})
		}
	}
}

// report is what diagnose -json prints.
type report struct {
	CachedTokens int `json:"cached_tokens"`
	LostTokens   int `json:"lost_tokens"`
	Cost         float64
	Findings     []struct {
		Cause                 string
		Message, Tool, Offset *int
		Tokens                int
		Cost                  float64
	}
}

func diagnosed(t *testing.T, file string) (r report) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(explains(t, "-json", "-price", "1.25", file)), &r))
	return r
}

func explains(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), append([]string{"diagnose"}, args...), &stdout, &stderr), stderr.String())
	return stdout.String()
}

// Each cause in the troubleshooting table is planted in traffic, which is played with
// and without it over real HTTP. It must be named with its place; the tokens must be
// nearly those that the engines had cached without it and not with it; and without it nothing may be found.
func TestDiagnose(t *testing.T) {
	steady := func(int) string { return prose(1, 2400) }
	fixed := "It is 2025-01-15T10:30:00Z, request 6ba7b810-9dad-11d1-80b4-00c04fd430c8 no 17 of them. "
	fixed += strings.Repeat(" ", (4-len(fixed)%4)%4)
	same := apart(func(int) string { return fixed + prose(1, 2400) }, nil)
	changing := func(what, to string) func(*played) { // to has the number of the request
		return apart(func(i int) string { return strings.Replace(fixed, what, fmt.Sprintf(to, i), 1) + prose(1, 2400) }, nil)
	}
	tools := func(order ...int) map[string]any {
		var all []any
		for _, i := range order {
			all = append(all, map[string]any{"type": "function", "function": map[string]any{"name": fmt.Sprintf("tool%d", i), "description": prose(50+i, 400)}})
		}
		return map[string]any{"tools": all}
	}
	alwaysSame := func(int) map[string]any { return tools(0, 1, 2, 3) }
	for _, tc := range []struct {
		cause          string
		clean, planted scene
		with, without  func(*played)
		message, tool  int // -1: none
		offset         int
		atLeast        int // tokens
	}{
		{"timestamp", scene{}, scene{}, changing("10:30", "10:3%d"), same, 0, -1, 6, 5 * 560},
		{"identifier", scene{}, scene{}, changing("6ba7", "%dba7"), same, 0, -1, 36, 5 * 560},
		{"number", scene{}, scene{}, changing("no 17", "no 2%d"), same, 0, -1, 76, 5 * 560},
		{"whitespace", scene{}, scene{},
			apart(func(i int) string { return wrap(prose(1, 2400), 30+6*i) }, nil), apart(steady, nil), 0, -1, -2, 5 * 560},
		{"reworded", scene{}, scene{},
			apart(func(i int) string {
				if i < 3 {
					return prose(1, 2400)
				}
				return "Other words " + prose(1, 2400)[12:]
			}, nil), apart(steady, nil), 0, -1, -2, 580},
		{"tools reordered", scene{}, scene{},
			apart(steady, func(i int) map[string]any {
				return [...]map[string]any{tools(0, 1, 2, 3), tools(1, 0, 2, 3), tools(2, 1, 0, 3), tools(3, 1, 2, 0), tools(2, 3, 0, 1), tools(3, 2, 1, 0)}[i]
			}), apart(steady, alwaysSame), -1, 0, -1, 5 * 900},
		{"other server", scene{servers: 2, settings: "policy: lmetric\n"}, scene{servers: 2, settings: "policy: round-robin\n"},
			converse(nil, nil, nil), converse(nil, nil, nil), -1, -1, -1, 400},
		{"other model", scene{servers: 2, models: []string{"large", "small"}}, scene{servers: 2, models: []string{"large", "small"}},
			converse(nil, func(i int) map[string]any {
				return map[string]any{"model": [...]string{"large", "large", "small", "small", "large", "large"}[i]}
			}, nil),
			converse(nil, func(i int) map[string]any { return map[string]any{"model": "large"} }, nil), -1, -1, -1, 400},
		{"other tenant", scene{servers: 4, settings: annAndBob}, scene{servers: 4, settings: annAndBob},
			converse(nil, nil, func(i int) []string { return []string{"X-Api-Key", [...]string{annsKey, bobsKey}[i/3]} }),
			converse(nil, nil, func(int) []string { return []string{"X-Api-Key", annsKey} }), -1, -1, -1, 400},
		{"other salt", scene{}, scene{},
			converse(nil, func(i int) map[string]any { return map[string]any{"cache_salt": fmt.Sprint("salt", i)} }, nil),
			converse(nil, func(i int) map[string]any { return map[string]any{"cache_salt": "salt"} }, nil), -1, -1, -1, 5 * 400},
		{"inserted", scene{}, scene{},
			converse(func(i int, m []traffic.Message) []traffic.Message {
				asked := []traffic.Message{m[0]} // what is remembered, newest first
				for n := i; n >= 0; n-- {
					asked = append(asked, traffic.Message{Role: "system", Content: prose(300+n, 40)})
				}
				return append(asked, m[1:]...)
			}, nil, nil), nil, 0, -1, 0, 200},
		{"dropped", scene{}, scene{},
			converse(func(_ int, m []traffic.Message) []traffic.Message { return append(m[:1:1], m[max(1, len(m)-3):]...) }, nil, nil), nil, 0, -1, 0, 200},
	} {
		t.Run(tc.cause, func(t *testing.T) {
			t.Parallel()
			planted := diagnosed(t, tc.planted.play(t, tc.with))
			require.NotEmpty(t, planted.Findings)
			f := planted.Findings[0]
			tokens, cost := 0, 0.0
			for _, f := range planted.Findings { // one for each model
				require.Equal(t, tc.cause, f.Cause, "%+v", planted)
				tokens, cost = tokens+f.Tokens, cost+f.Cost
			}
			if tc.message >= 0 && tc.without != nil {
				require.Equal(t, &tc.message, f.Message)
			}
			if tc.tool >= 0 {
				require.NotNil(t, f.Tool)
			}
			if tc.offset >= 0 {
				require.NotNil(t, f.Offset)
				if tc.without != nil {
					require.Equal(t, tc.offset, *f.Offset)
				}
			}
			require.GreaterOrEqual(t, tokens, tc.atLeast)
			require.Equal(t, tokens, planted.LostTokens)
			require.InDelta(t, float64(tokens)*1.25/1e6*0.75, cost, 1e-12)
			require.InDelta(t, cost, planted.Cost, 1e-12)
			if tc.without == nil {
				return
			}
			clean := diagnosed(t, tc.clean.play(t, tc.without))
			require.Empty(t, clean.Findings)
			require.Zero(t, clean.LostTokens)
			require.InEpsilon(t, clean.CachedTokens-planted.CachedTokens, planted.LostTokens, 0.1, "%+v", planted)
		})
	}
}

// wrap breaks lines at spaces, one in every width bytes, without changing the length.
func wrap(s string, width int) string {
	b := []byte(s)
	last := 0
	for i, c := range b {
		if c == ' ' && i-last >= width {
			b[i], last = '\n', i
		}
	}
	return string(b)
}

// Two conversations alternate on a server whose cache holds one.
func TestDiagnoseEviction(t *testing.T) {
	talk := func(p *played) {
		var messages [2][]traffic.Message
		for i := range 8 {
			m := &messages[i%2]
			if len(*m) == 0 {
				*m = []traffic.Message{{Role: "system", Content: prose(i, 40_000)}}
			}
			*m = append(*m, traffic.Message{Role: "user", Content: prose(200+i, 200)})
			*m = append(*m, traffic.Message{Role: "assistant", Content: p.say(*m, nil)})
		}
	}
	file := scene{kvTokens: 1 << 14}.play(t, talk)
	planted, clean := diagnosed(t, file), diagnosed(t, scene{}.play(t, talk))
	require.Empty(t, clean.Findings)
	require.Len(t, planted.Findings, 1)
	require.Equal(t, "evicted", planted.Findings[0].Cause)
	require.InEpsilon(t, clean.CachedTokens-planted.CachedTokens, planted.LostTokens, 0.1)
	require.Greater(t, planted.LostTokens, 20_000)
	require.Contains(t, explains(t, "-block", "16384", file), "Nothing has kept prompts from the caches.", "no prompt fills such a block")
}

// If the recording has text, a finding shows the difference; otherwise no word of it appears anywhere.
func TestDiagnoseShowsText(t *testing.T) {
	script := apart(func(i int) string { return fmt.Sprintf("It is 10:3%d. ", i) + prose(1, 2400) }, nil)
	file := scene{settings: "record: {file: \"FILE\", text: true}\n"}.play(t, script)
	shown := explains(t, file)
	require.Contains(t, shown, "timestamp: ")
	require.Contains(t, shown, "where   message 0 (system), byte 6")
	require.Contains(t, shown, `differs "10:30", then "10:31"`)

	file = scene{}.play(t, script)
	text := rig.Must(os.ReadFile(file))
	for _, word := range strings.Fields(prose(1, 200)) {
		require.NotContains(t, string(text), word)
	}
	shown = explains(t, file)
	require.Contains(t, shown, "where   message 0 (system), byte 6")
	require.NotContains(t, shown, "differs")
}

// A report says who and when, and is of those who are asked for, by name or hash.
func TestDiagnoseOfATenant(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl")
	r := rig.Must(newRecorder(&recordSettings{File: path}, slog.New(slog.DiscardHandler)))
	for i, one := range twice("m", "a", 0) {
		one.Tenant, one.Session = recording.NameHash("ann"), recording.Hash(0x1e+i)
		r.record(one)
	}
	require.NoError(t, r.close())
	require.Contains(t, explains(t, "-session", "#1f", path), "1 requests, 200 tokens")
	text := explains(t, "-tenant", "ann", path)
	require.Contains(t, text, ": 192 tokens\n\nevicted: 192 tokens, in 1 requests\n  who     model \"m\", tenant #")
	require.Contains(t, text, ", session #1f\n  first   1970-01-01T00:00:01Z on \"a\", after 1970-01-01T00:00:00Z")
	require.NotContains(t, text, "the server did not say")
	text = explains(t, "-json", path)
	for _, want := range []string{`"after": "1970-01-01T00:00:01Z"`, `"before": "1970-01-01T00:00:00Z"`, `"session": "1f"`, `"tenant": "b41b`} {
		require.Contains(t, text, want)
	}
}

// A client's role does nothing to the terminal of who reads of it.
func TestRolesOnATerminal(t *testing.T) {
	for role, want := range map[string]string{"system": "message 0 (system)", "\x1b[2J": `message 0 (\x1b[2J)`} {
		require.Equal(t, want, where(&diagnose.Finding{Role: role, Offset: -1}))
	}
	require.Equal(t, "message 2, byte 0", where(&diagnose.Finding{Message: 2}))
}

func TestDiagnoseArguments(t *testing.T) {
	for args, want := range map[string]string{
		"":                "no file is given",
		"-price -1 f":     "diagnose.Config.Price is negative",
		"-cached 2 f":     "diagnose.Config.CachedMultiplier is not within 0 and 1",
		"-window -1s f":   "diagnose.Config.Window is negative",
		"-window 0 f":     "-window 0s is not above zero",
		"-min-tokens 0 f": "-min-tokens 0 is below 1",
		"-tenant #x f":    "invalid value",
		"-frobnicate f":   "flag provided but not defined",
	} {
		var stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), append([]string{"diagnose"}, strings.Fields(args)...), io.Discard, &stderr), args)
		require.Contains(t, stderr.String(), want)
	}
	bad := writeFile(t, filepath.Join(t.TempDir(), "r"), "{}\n")
	var stderr bytes.Buffer
	require.Equal(t, 1, run(t.Context(), []string{"diagnose", "no-such-file"}, io.Discard, &stderr))
	require.Equal(t, 1, run(t.Context(), []string{"diagnose", bad}, io.Discard, &stderr))
	require.Equal(t, "gateway: no-such-file: no such file or directory\ngateway: "+bad+": recording: line 1: time is missing\n", stderr.String())
	require.Equal(t, 0, run(t.Context(), []string{"diagnose", "-h"}, io.Discard, io.Discard))
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// A report that could not be written is a failure.
func TestOutputThatIsLost(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "r.jsonl"), "")
	settings := writeSettings(t, "endpoints: [{url: \"http://a\"}]\n")
	for _, args := range [][]string{{"diagnose", path}, {"diagnose", "-json", path}, {"-config", settings, "-check"}} {
		var stderr bytes.Buffer
		assert.Equal(t, 1, run(t.Context(), args, full{}, &stderr), args)
		assert.Equal(t, "gateway: no space left\n", stderr.String(), args)
	}
}

func cachesOf(t *testing.T, g *gateway) string {
	w := send(g.admin, "GET", "/debug/endpick/caches", "")
	require.Equal(t, 200, w.Code, w.Body)
	require.Equal(t, "default-src 'none'; style-src 'unsafe-inline'", w.Header().Get("Content-Security-Policy"))
	return textIn(page(t, w.Body.String()))
}

// The page shows for recent requests what a recording would, and names tenants.
func TestCachesPage(t *testing.T) {
	s := scene{settings: annAndBob + "price: {prompt: 1.25, cached: 0.25}\n"}
	s.inspect = func(g *gateway) {
		text := cachesOf(t, g)
		assert.Contains(t, text, "timestamp: ")
		assert.Contains(t, text, "message 0 (system), byte 6")
		assert.Contains(t, text, "in 5 requests")
		assert.Contains(t, text, ", tenant ann")
		assert.Regexp(t, `\d{4} tokens, 0\.00\d{4}, were computed again`, text)
	}
	s.play(t, func(p *played) {
		for i := range 6 {
			p.say(asMessages("system", fmt.Sprintf("It is 10:3%d. ", i)+prose(1, 2400), "user", prose(100+i, 64)), nil, "X-Api-Key", annsKey)
		}
	})
	s.inspect = func(g *gateway) { assert.Contains(t, cachesOf(t, g), "Nothing has kept prompts from the caches.") }
	s.play(t, func(p *played) {
		p.say(asMessages("system", prose(1, 2400), "user", prose(2, 64)), nil, "X-Api-Key", annsKey)
	})
}

// What is kept for the page is bounded, whatever clients send, and contains no text.
func TestRecentRequests(t *testing.T) {
	c := &recent{}
	for i := range 2 * recentRequests {
		c.add(recording.Request{Time: time.Unix(int64(i), 0), Prompt: &recording.Prompt{Messages: []recording.Piece{{Text: "secret"}}, Partial: true}})
	}
	require.Len(t, c.all, recentRequests)
	require.Equal(t, time.Unix(recentRequests, 0), c.all[0].Time)
	require.Empty(t, c.all[0].Prompt.Messages[0].Text)
	require.True(t, c.all[0].Prompt.Partial)
	bytes := int64(0)
	for _, r := range c.all {
		bytes += sizeOf(r)
	}
	require.Equal(t, bytes, c.bytes)
	for range 100 {
		c.add(recording.Request{Blocks: make([]recording.Hash, 1<<16)})
	}
	require.Len(t, c.all, 7) // half a MiB each
	c.add(recording.Request{Blocks: make([]recording.Hash, 1<<20)})
	require.Empty(t, c.all, "larger than all that is kept")
	require.Zero(t, c.bytes)
}

// twice is a prompt of twelve blocks of ours that is asked twice.
func twice(model, endpoint string, cached int) (all []recording.Request) {
	ttft := 1.0
	for i := range 2 {
		r := recording.Request{
			Time: time.Unix(int64(i), 0), Model: model, Endpoint: endpoint, HTTP: 200, Status: "completed", TTFTMillis: &ttft,
			InputTokens: 200, CachedTokens: &cached, BlockTokens: 16,
		}
		for b := range 12 {
			r.Blocks = append(r.Blocks, recording.Hash(b+1))
		}
		all = append(all, r)
	}
	return all
}

// What does not fill a block of the server's is not evicted: those of this vLLM have 128 tokens.
func TestCachesPageKnowsTheBlocksOfServers(t *testing.T) {
	server := serving(t, rig.VLLM("metrics_idle", "models"))
	g := newTestGateway(t, "endpoints: [{id: a, url: "+server.URL+"}, {id: b, url: "+server.URL+"/b}]")
	for _, r := range twice("tiny", "a", 128) {
		g.recent.add(r)
	}
	assert.Contains(t, cachesOf(t, g), "Nothing has kept prompts from the caches.")
	for _, r := range twice("tiny", "b", 128) {
		g.recent.add(r)
	}
	assert.Contains(t, cachesOf(t, g), "evicted: 64 tokens", "b does not say")
}

// An invented name does no harm on the page.
func TestCachesPageEscapes(t *testing.T) {
	g := newTestGateway(t, `endpoints: [{url: "http://127.0.0.1:1"}]`)
	for i, r := range twice("<script>x", "", 0) {
		r.Endpoint = fmt.Sprint("<i>", i)
		g.recent.add(r)
	}
	text := see(t, g.admin, "/debug/endpick/caches")
	require.Contains(t, text, "other server: 192 tokens")
	require.NotContains(t, text, "<script>")
	require.NotContains(t, text, "<i>")
}

func models(t *testing.T, path string) (all []string) {
	t.Helper()
	f := rig.Must(os.Open(path))
	defer f.Close()
	require.NoError(t, recording.Read(f, func(_ int, r *recording.Request) error {
		all = append(all, r.Model)
		return nil
	}))
	return all
}

func someRequest(i int) recording.Request {
	return recording.Request{Time: time.Unix(int64(i), 0).UTC(), Model: fmt.Sprint("m", i), Status: "completed"}
}

// A recording takes at most its configured bytes, in files of whole lines.
func TestRecordingIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl")
	record := func(bytes byteSize, from, to int) { // some 110 bytes each
		r := rig.Must(newRecorder(&recordSettings{File: path, Bytes: bytes, Files: 2}, slog.New(slog.DiscardHandler)))
		for i := from; i <= to; i++ {
			r.record(someRequest(i))
		}
		require.NoError(t, r.close())
		assert.Zero(t, r.lost.Load())
	}
	record(300, 0, 9) // two per file
	assert.Equal(t, []string{"m8", "m9"}, models(t, path))
	assert.Equal(t, []string{"m6", "m7"}, models(t, path+".1"))
	assert.Equal(t, []string{"m4", "m5"}, models(t, path+".2"))
	assert.NoFileExists(t, path+".3")
	assert.Equal(t, os.FileMode(0o600), rig.Must(os.Stat(path)).Mode(), "nobody else may read it")

	// Another process continues where this one has ended, after half a line from one that was killed.
	writeFile(t, path, string(rig.Must(os.ReadFile(path)))+`{"time":"20`)
	record(400, 10, 10)
	assert.Equal(t, []string{"m8", "m9", "m10"}, models(t, path))

	// Existing files count: there is no room for a fourth.
	record(400, 11, 11)
	assert.Equal(t, []string{"m11"}, models(t, path))
	assert.Equal(t, []string{"m8", "m9", "m10"}, models(t, path+".1"))
}

func TestEndOfHalfALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	for text, want := range map[string]string{
		"a\nb\n": "a\nb\n", "a\nb": "a\n", "b": "", "a\n" + strings.Repeat("b", 200<<10): "a\n", strings.Repeat("b", 200<<10): "",
	} {
		writeFile(t, path, text)
		require.NoError(t, endLine(path, int64(len(text))))
		assert.Equal(t, want, string(rig.Must(os.ReadFile(path))))
	}
}

// What waits for a slow disk is bounded in bytes too.
func TestLargeRecordsDoNotWait(t *testing.T) {
	r := &recorder{queue: make(chan recording.Request, recorderQueue)} // without a writer
	large := recording.Request{Blocks: make([]recording.Hash, 1<<20), Prompt: &recording.Prompt{Messages: make([]recording.Piece, 1<<15)}}
	for range recorderQueue {
		r.record(large)
	}
	assert.Len(t, r.queue, 4) // of some 13.6 MB
	assert.EqualValues(t, recorderQueue-4, r.lost.Load())
	assert.Equal(t, 4*sizeOf(&large), r.waiting.Load())
}

// A record that has been written, or has failed, gives its place back.
func TestWrittenRecordsDoNotWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	r := rig.Must(newRecorder(&recordSettings{File: path}, slog.New(slog.DiscardHandler)))
	one := recording.Request{Blocks: make([]recording.Hash, 100)}
	for range 5 {
		for range 10 {
			r.record(one)
		}
		require.Eventually(t, func() bool { return r.waiting.Load() == 0 }, 30*time.Second, time.Millisecond)
	}
	require.NoError(t, r.close())
	require.Zero(t, r.lost.Load())
	require.Equal(t, 50, strings.Count(string(rig.Must(os.ReadFile(path))), "\n"))
	r.waiting.Add(sizeOf(&one))
	r.write(one) // to a closed file
	require.EqualValues(t, 1, r.lost.Load())
	require.Zero(t, r.waiting.Load())
	require.NoError(t, r.append([]byte("\n")), "it is opened again")
	require.NoError(t, r.file.Close())
}

// However many files may be kept, only those that are there are moved, and none beyond a gap.
func TestRotationOfManyFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	writeFile(t, path+".3", "old\n")
	r := &recorder{path: path, bytes: 1, files: math.MaxInt, log: slog.New(slog.DiscardHandler)}
	rotated := make(chan error, 4)
	go func() {
		for n := range cap(rotated) {
			rotated <- r.append([]byte(fmt.Sprintf("%d\n", n)))
		}
	}()
	for range cap(rotated) {
		require.NoError(t, soon(t, rotated, "it moves files that are not there"))
	}
	require.NoError(t, r.file.Close())
	for name, want := range map[string]string{"": "3\n", ".1": "2\n", ".2": "1\n", ".3": "0\n", ".4": "old\n"} {
		require.Equal(t, want, string(rig.Must(os.ReadFile(path+name))), name)
	}
}

// Where it can't be rotated, the recording does not grow either.
func TestARotationThatFailsCostsRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	require.NoError(t, os.MkdirAll(filepath.Join(path+".1", "taken"), 0o700))
	r := &recorder{path: path, bytes: 10, files: 1, log: slog.New(slog.DiscardHandler)}
	require.NoError(t, r.append([]byte("12345678\n")))
	for range 10 {
		require.Error(t, r.append([]byte("12345678\n")))
	}
	require.NoError(t, os.RemoveAll(path+".1"))
	require.NoError(t, r.append([]byte("new\n")))
	require.Equal(t, "new\n", string(rig.Must(os.ReadFile(path))))
	require.NoError(t, r.file.Close())
}
