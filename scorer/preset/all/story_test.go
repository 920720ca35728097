package all_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what the commands of the stories say into their files")

// TestStories plays a story for each policy. A story is prose with commands in
// between: a line that begins with "> ", followed by its output, up to an empty
// line. -update rewrites the output; the prose stays.
func TestStories(t *testing.T) {
	files := rig.Must(filepath.Glob("testdata/*.txt"))
	var names []string
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		names = append(names, name)
		t.Run(name, func(t *testing.T) {
			text := rig.Must(os.ReadFile(file))
			got := newStage(t, name).play(string(text))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			assert.Equal(t, string(text), got)
			first, _, _ := strings.Cut(string(text), "\n> ")
			assert.Greater(t, len(strings.Fields(first)), 30, "a story opens with prose")
		})
	}
	assert.Equal(t, all.Names(), names, "every policy has a story")
}

// stage is the router of a story, with three servers and a clock that stands still.
type stage struct {
	t      *testing.T
	router *endpick.Router
	now    time.Time
	prompt []uint64 // blocks of the story's prompt
	others uint64   // new blocks
	open   []endpick.Lease
}

var servers = []string{"a", "b", "c"}

func newStage(t *testing.T, name string) *stage {
	s := &stage{t: t, now: time.Unix(1e9, 0)}
	config := rig.Must(byName(name))
	config.Policy.Name = name
	config.Seed = 1
	config.Clock = func() time.Time { return s.now }
	for _, id := range servers {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id, Variant: map[string]string{"a": "old"}[id]})
	}
	s.router = rig.Must(endpick.New(config))
	for i := range 256 {
		s.prompt = append(s.prompt, endpick.Salt(fmt.Sprint("prompt ", i)))
	}
	return s
}

// play returns the story with current output.
func (s *stage) play(story string) string {
	var b strings.Builder
	said := false // in the file, the following lines are a command's output
	for line := range strings.Lines(story) {
		command, ok := strings.CutPrefix(line, "> ")
		switch {
		case ok:
			b.WriteString(line)
			b.WriteString(s.do(strings.Fields(command)))
			said = true
		case strings.TrimSpace(line) == "":
			b.WriteByte('\n')
			said = false
		case !said:
			b.WriteString(line)
		}
	}
	return b.String()
}

// do executes a command and returns its output.
func (s *stage) do(words []string) string {
	understood := slices.Clone(servers)
	defer func() {
		for _, w := range words[1:] {
			key, _, _ := strings.Cut(w, "=")
			require.Contains(s.t, understood, key, "what is %q in %q?", w, words)
		}
	}()
	value := func(key string) string {
		understood = append(understood, key)
		for _, w := range words {
			if v, ok := strings.CutPrefix(w, key+"="); ok {
				return v
			}
		}
		return ""
	}
	number := func(key string) float64 {
		return rig.Must(strconv.ParseFloat("0"+value(key), 64))
	}
	duration := func(key string) time.Duration {
		if value(key) == "" {
			return 0
		}
		return rig.Must(time.ParseDuration(value(key)))
	}
	tokens := int(number("tokens"))
	switch words[0] {
	case "holds": // SERVER tokens=N: it has served the head of the prompt
		s.on(words[1], endpick.Request{InputTokens: tokens, Blocks: s.prompt[:tokens/16]}, 0, 0)
	case "waits": // SERVER tokens=N: an unknown prompt was sent there, and is not prefilled yet
		require.NoError(s.t, rig.Err(s.router.Route(s.only(words[1], endpick.Request{InputTokens: tokens, Blocks: s.unknown(tokens), Stream: true}))))
	case "report": // SERVER waiting=N running=N kv=SHARE
		require.NoError(s.t, s.router.Report(words[1], endpick.Load{Waiting: number("waiting"), Running: number("running"), KVUsage: number("kv")}))
	case "serve": // SERVER times=N tokens=N ttft=D tpot=D: requests that are served one after another
		for range int(number("times")) {
			s.on(words[1], endpick.Request{InputTokens: tokens, Blocks: s.unknown(tokens)}, duration("ttft"), duration("tpot"))
		}
	case "repeat": // times=N tokens=N: requests for the story's prompt that are routed and ended, one after another
		for range int(number("times")) {
			l := rig.Must(s.router.Route(endpick.Request{InputTokens: tokens, Blocks: s.prompt[:tokens/16]}))
			l.Done(endpick.Outcome{Status: endpick.Canceled})
		}
	case "route": // tokens=N [cold] [sheddable] [ttft=D] [tpot=D]
		req := endpick.Request{
			InputTokens: tokens, Blocks: s.prompt[:tokens/16], Stream: true,
			SLO: endpick.SLO{TTFT: duration("ttft"), TPOT: duration("tpot")}, Receipt: new(endpick.Receipt),
		}
		understood = append(understood, "sheddable", "cold")
		if slices.Contains(words, "sheddable") {
			req.Priority = -1
		}
		if slices.Contains(words, "cold") {
			req.Blocks = s.unknown(tokens)
		}
		if l, err := s.router.Route(req); err == nil { // the receipt has the error
			s.open = append(s.open, l)
		}
		return req.Receipt.String()
	case "finish": // ends what was routed, without a result
		for _, l := range s.open {
			l.Done(endpick.Outcome{Status: endpick.Canceled})
		}
		s.open = nil
	default:
		s.t.Fatalf("what is %q?", words[0])
	}
	return ""
}

// only is a request that can only go to one server.
func (s *stage) only(server string, req endpick.Request) endpick.Request {
	for _, id := range servers {
		if id != server {
			req.Exclude = append(req.Exclude, id)
		}
	}
	return req
}

// on serves a request of ten tokens on a server.
func (s *stage) on(server string, req endpick.Request, ttft, tpot time.Duration) {
	const output = 10
	req.Stream = true
	l := rig.Must(s.router.Route(s.only(server, req)))
	s.now = s.now.Add(ttft)
	l.FirstToken()
	for range output - 1 {
		s.now = s.now.Add(tpot)
		l.Tokens(1)
	}
	require.True(s.t, l.Done(endpick.Outcome{OutputTokens: output, InputTokens: req.InputTokens}))
}

// unknown is a new prompt.
func (s *stage) unknown(tokens int) (blocks []uint64) {
	for range tokens / 16 {
		s.others++
		blocks = append(blocks, s.others)
	}
	return blocks
}

// threeServers is the story of TestChoices and of docs/concepts.md.
const threeServers = `> holds a tokens=608
> holds c tokens=208
> waits a tokens=9000
> report a waiting=0 running=12 kv=0.5
> report b waiting=0 running=2 kv=0.5
> report c waiting=3 running=4 kv=0.5
> route tokens=1008
`

// TestConcepts compares the receipt in docs/concepts.md with a real decision.
func TestConcepts(t *testing.T) {
	text := rig.Must(os.ReadFile("../../../docs/concepts.md"))
	_, receipt, _ := strings.Cut(newStage(t, "lmetric").play(threeServers), "> route tokens=1008\n")
	require.Contains(t, string(text), "```receipt\n"+receipt+"```\n")
}
