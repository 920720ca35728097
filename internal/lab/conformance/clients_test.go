package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/envoy"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/openai/openai-go/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

var (
	update = flag.Bool("update", false, "write the table of docs/clients.md")
	told   = flag.Bool("told", false, "print what each client is told")
)

// page contains the table, between two lines.
const (
	page      = "../../../docs/clients.md"
	tableHead = "| client | API | scenario | modelled servers | llama.cpp | what differs |\n|---|---|---|---|---|---|\n"
)

// TestClients runs everything and compares the results with the table.
func TestClients(t *testing.T) {
	fleets := []fleet{modelled}
	if f, why := llama(t); why == "" {
		fleets = append(fleets, f)
	} else {
		t.Log("without llama.cpp: " + why)
	}
	dir, why := nodeDir(t)
	if why != "" {
		t.Log("without the npm packages: " + why)
	}
	var all []outcome
	for _, f := range fleets {
		all = append(all, f.runGo(t, "openai-go", "chat", openaiChat)...)
		all = append(all, f.runGo(t, "openai-go", "responses", openaiResponses)...)
		all = append(all, f.runGo(t, "openai-go", "completions", openaiCompletions)...)
		all = append(all, f.runGo(t, "openai-go", "models", openaiModels)...)
		all = append(all, f.runGo(t, "go-openai", "chat", goOpenAIChat)...)
		all = append(all, f.runGo(t, "anthropic-sdk-go", "messages", anthropicMessages)...)
		all = append(all, f.runGo(t, "anthropic-sdk-go", "models", anthropicModels)...)
		if dir == "" {
			continue
		}
		outcomes := make([][]outcome, len(nodeClients))
		var clients []func()
		for i, c := range nodeClients {
			clients = append(clients, func() { outcomes[i] = f.runNodeClient(t, dir, c.script, c.client, c.apis) })
		}
		f.together(clients...)
		all = append(all, slices.Concat(outcomes...)...)
	}
	for _, o := range all {
		assert.Empty(t, o.differs, "%s, %s, %s, %s", o.fleet, o.client, o.api, o.scenario)
	}

	rows := table(all)
	before, rest, ok := strings.Cut(string(rig.Must(os.ReadFile(page))), tableHead)
	require.True(t, ok, "%s has no table", page)
	end := strings.Index(rest, "\n\n") + 1
	t.Log("\n" + tableHead + markdown(rows))
	if *update {
		require.True(t, dir != "" && len(fleets) == 2 && !t.Failed(), "the table needs all clients, all servers, and no failure")
		require.NoError(t, os.WriteFile(page, []byte(before+tableHead+markdown(rows)+rest[end:]), 0o644))
		return
	}
	written := map[string][]string{}
	for _, row := range parse(rest[:end]) {
		written[strings.Join(row[:3], ", ")] = row[3:]
	}
	if dir != "" {
		assert.Len(t, written, len(rows), "run with -update")
	}
	for _, row := range rows {
		is := written[strings.Join(row[:3], ", ")]
		require.Len(t, is, 3, "%s: not in the table: run with -update", row)
		if len(fleets) == 1 {
			row[4] = is[1] // not tried
		}
		assert.Equal(t, row[3:], is, "%s: run with -update", row)
	}
}

// table has a row for each client and scenario: client, API, scenario, result on
// modelled servers, result on llama.cpp, what differs.
func table(all []outcome) (rows [][]string) {
	type key struct{ client, api, scenario string }
	cells := map[key]map[string]string{}
	why := map[key]string{}
	var order []key
	for _, o := range all {
		k := key{o.client, o.api, o.scenario}
		if cells[k] == nil {
			cells[k] = map[string]string{modelled.name: "–", "llama.cpp": "–"}
			order = append(order, k)
		}
		cells[k][o.fleet] = "same"
		if o.why != "" {
			why[k] = o.why
		}
		if len(o.differs) > 0 {
			cells[k][o.fleet] = "differs"
		}
	}
	for _, k := range order {
		rows = append(rows, []string{k.client, k.api, k.scenario, cells[k][modelled.name], cells[k]["llama.cpp"], why[k]})
	}
	return rows
}

// markdown is the table as it stands on the page, where scenarios with the same result share a line, and so do clients.
func markdown(rows [][]string) string {
	var b strings.Builder
	for _, row := range merge(merge(rows, 2), 0) {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
	}
	return b.String()
}

// merge joins the rows that differ in one column only.
func merge(rows [][]string, column int) (merged [][]string) {
	at := map[string]int{}
	for _, row := range rows {
		rest := strings.Join(slices.Delete(slices.Clone(row), column, column+1), "|")
		if i, ok := at[rest]; ok {
			merged[i][column] += "; " + row[column]
			continue
		}
		at[rest] = len(merged)
		merged = append(merged, slices.Clone(row))
	}
	return merged
}

// parse reads what markdown writes.
func parse(text string) (rows [][]string) {
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		for len(cells) < 6 {
			cells = append(cells, "")
		}
		for _, client := range strings.Split(cells[0], "; ") {
			for _, scenario := range strings.Split(cells[2], "; ") {
				rows = append(rows, []string{client, cells[1], scenario, cells[3], cells[4], cells[5]})
			}
		}
	}
	return rows
}

// Each thing that a gateway could change is detected.
func TestDifferencesAreNoticed(t *testing.T) {
	one := func() run {
		return run{told: "chatcmpl-0123456789 says hi", wire: []exchange{{
			status: 200, header: map[string][]string{"Content-Type": {"text/plain"}, "Date": {"now"}},
			body: `{"id":"chatcmpl-0123456789","created":17,"text":"hi","parent":"chatcmpl-abcdefghij"}`,
		}}}
	}
	for name, c := range map[string]struct {
		change func(*run)
		want   string
	}{
		"nothing": {func(*run) {}, ""},
		"ids and times": {func(r *run) {
			r.told = "chatcmpl-another00 says hi"
			r.wire[0].body = `{"id":"chatcmpl-another00","created":18,"text":"hi","parent":"chatcmpl-yetanother"}`
			r.wire[0].header["Date"] = []string{"later"}
		}, ""},
		"an id that refers elsewhere": {func(r *run) {
			r.wire[0].body = strings.ReplaceAll(r.wire[0].body, "abcdefghij", "0123456789")
		}, "body"},
		"told":           {func(r *run) { r.told += "!" }, "what the client is told"},
		"status":         {func(r *run) { r.wire[0].status = 201 }, "status"},
		"another header": {func(r *run) { r.wire[0].header["X-A"] = []string{"b"} }, "header X-A"},
		"header gone":    {func(r *run) { delete(r.wire[0].header, "Content-Type") }, "header Content-Type"},
		"body":           {func(r *run) { r.wire[0].body += " " }, "body"},
		"cut":            {func(r *run) { r.wire[0].cut = true }, "end"},
		"a retry more":   {func(r *run) { r.wire = append(r.wire, r.wire[0]) }, "the number of responses"},
	} {
		changed := one()
		c.change(&changed)
		got := differences(one(), changed, false)
		if c.want == "" {
			assert.Empty(t, got, name)
		} else if assert.Len(t, got, 1, name) {
			assert.True(t, strings.HasPrefix(got[0], c.want+": "), "%s: %s", name, got[0])
		}
	}
}

// nodeEnv names a directory in which npm ci has been run.
const nodeEnv = "ENDPICK_NODE_MODULES"

// nodeClients are the scripts of node/ and the APIs that each speaks.
var nodeClients = []struct {
	script, client string
	apis           []string
}{
	{"openai.mjs", "openai", []string{"chat", "responses", "completions", "models"}},
	{"anthropic.mjs", "@anthropic-ai/sdk", []string{"messages", "models"}},
	{"ai.mjs", "ai", []string{"chat", "responses", "messages"}},
	{"agents.mjs", "@openai/agents", []string{"chat", "responses"}},
	{"ollama.mjs", "ollama", []string{"Ollama", "models"}},
}

// nodeDir is a directory from which the scripts can be run, or the reason why there is none.
func nodeDir(t *testing.T) (dir, why string) {
	if _, err := exec.LookPath("node"); err != nil {
		return "", "there is no node"
	}
	installed := os.Getenv(nodeEnv)
	if installed == "" {
		return "", nodeEnv + " is not set"
	}
	modules := rig.Must(filepath.Abs(filepath.Join(installed, "node_modules")))
	require.DirExists(t, modules, "%s: npm ci was not run there", nodeEnv)
	dir = t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("node")))
	require.NoError(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	return dir, ""
}

// nodeRun is one task for a script.
type nodeRun struct {
	API      string `json:"api"`
	Scenario string `json:"scenario"`
	URL      string `json:"url"`
}

// runNode runs all scenarios of a script on targets of one kind. Scenarios
// unknown to the script are missing from its output.
func (f *fleet) runNode(t *testing.T, dir, script string, list []nodeRun) map[nodeRun]string {
	var errorQuestions []string
	for _, status := range statuses {
		errorQuestions = append(errorQuestions, askForError(status))
	}
	limit := map[bool]any{true: maxTokens, false: nil}[f.one]
	input, err := json.Marshal(map[string]any{"runs": list, "prompts": map[string]any{
		"model": model, "question": question, "second": second, "askForCall": askForCall, "askForRetry": askForRetry,
		"askForCut": askForCut, "askForErrors": errorQuestions, "result": result,
		"maxTokens": maxTokens, "limit": limit, "longest": longest, "heard": heard,
	}})
	assert.NoError(t, err)
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "node", "--no-warnings", script)
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, bytes.NewReader(input), &stderr
	output, err := cmd.Output()
	assert.NoError(t, err, "%s: %s", script, &stderr)
	told := map[nodeRun]string{}
	for line := range bytes.Lines(output) {
		var one struct {
			nodeRun
			Told string `json:"told"`
		}
		assert.NoError(t, json.Unmarshal(line, &one), "%s: %s", script, line)
		told[nodeRun{API: one.API, Scenario: one.Scenario}] = one.Told
	}
	return told
}

// runNodeClient runs a script on all targets.
func (f *fleet) runNodeClient(t *testing.T, dir, script, client string, apis []string) (all []outcome) {
	told := make([]map[nodeRun]string, len(f.targets))
	targets := make([]map[nodeRun]*target, len(f.targets))
	var processes []func()
	for k, fresh := range f.targets {
		targets[k] = map[nodeRun]*target{}
		var list []nodeRun
		for _, api := range apis {
			for _, s := range scenarios {
				if f.has(s) {
					p := fresh(t)
					targets[k][nodeRun{API: api, Scenario: s.name}] = p
					list = append(list, nodeRun{api, s.name, p.url})
				}
			}
		}
		processes = append(processes, func() { told[k] = f.runNode(t, dir, script, list) })
	}
	f.together(processes...)
	for _, api := range apis {
		for _, s := range scenarios {
			one := nodeRun{API: api, Scenario: s.name}
			if told[0][one] == "" {
				continue
			}
			var runs []run
			for k := range f.targets {
				runs = append(runs, run{told[k][one], targets[k][one].settled(t)})
			}
			all = append(all, f.compare(t, client, api, s, runs))
		}
	}
	return all
}

// behindPicker are servers that a real Envoy asks an endpoint picker for.
var behindPicker = fleet{
	name: "picker", targets: []func(*testing.T) *target{directly, throughPicker}, without: []string{"WebSocket"},
}

func throughPicker(t *testing.T) *target {
	c := rig.Must(all.ByName("lmetric"))
	servers, urls := three(t, func(h http.Handler) http.Handler { return h })
	var addresses []string
	for _, url := range urls {
		addresses = append(addresses, strings.TrimPrefix(url, "http://"))
		c.Endpoints = append(c.Endpoints, endpick.Endpoint{Address: url, Models: []string{model}})
	}
	router := rig.Must(endpick.New(c))
	picker := rig.Must(extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router, Fallbacks: 2, SharedCache: true}}))
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(envoy.TLS())))
	extprocv3.RegisterExternalProcessorServer(g, picker)
	go g.Serve(l)
	t.Cleanup(g.Stop)
	at := rig.Must(url.Parse(envoy.Start(t, "../../../examples/epp/envoy.yaml", l.Addr().String(), addresses, "message_timeout: 5s", "message_timeout: 60s")))
	base := &http.Transport{DisableCompression: true}
	t.Cleanup(base.CloseIdleConnections)
	p := expose(t, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(at) }, Transport: base, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
	})
	p.servers, p.router = servers, router
	return p
}

// Clients behind the picker see the same as clients of a server, except for what docs/extproc.md lists.
func TestClientsBehindThePicker(t *testing.T) {
	var all []outcome
	all = append(all, behindPicker.runGo(t, "openai-go", "chat", openaiChat)...)
	all = append(all, behindPicker.runGo(t, "openai-go", "responses", openaiResponses)...)
	all = append(all, behindPicker.runGo(t, "anthropic-sdk-go", "messages", anthropicMessages)...)
	require.Greater(t, len(all), 30)
	for _, o := range all {
		o.differs = slices.DeleteFunc(o.differs, func(one string) bool {
			// Of any Envoy. A body that may be changed loses its length.
			return slices.ContainsFunc([]string{"Content-Length", "Transfer-Encoding", "Server", "X-Envoy-Upstream-Service-Time"}, func(name string) bool {
				return strings.HasPrefix(one, "header "+name+": ")
			})
		})
		assert.Empty(t, o.differs, "%s, %s, %s", o.client, o.api, o.scenario)
	}
	t.Logf("%d scenarios", len(all))
}

// limited is a gateway that allows each tenant, by its key, one request in flight.
func limited(t *testing.T) *target {
	c := all.LMetric()
	c.Policy.Admitters = append(c.Policy.Admitters, rig.Must(quota.New(quota.Config{Limits: func(string) quota.Limits { return quota.Limits{Requests: 1} }})))
	server := newServer(t)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Hold") == "" {
			server.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		// A response that has begun, and goes on until its client leaves.
		word := `{"choices":[{"index":0,"delta":{"content":"word"}}]}`
		if strings.HasSuffix(r.URL.Path, "/messages") {
			word = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"word"}}`
		}
		_, _ = io.WriteString(w, "data: "+word+"\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(engine.Close)
	c.Endpoints = []endpick.Endpoint{{Address: engine.URL}}
	return gateway(t, c, transport.Config{Describe: func(in *http.Request, _ []byte, req *endpick.Request) {
		req.Tenant = in.Header.Get("Authorization") + in.Header.Get("X-Api-Key")
	}})
}

// refusals counts responses of 429, and calls then at the first.
type refusals struct {
	n          atomic.Int64
	retryAfter atomic.Value
	then       func()
}

func (r *refusals) RoundTrip(in *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(in)
	if err == nil && resp.StatusCode == http.StatusTooManyRequests && r.n.Add(1) == 1 {
		r.retryAfter.Store(resp.Header.Get("Retry-After"))
		r.then()
	}
	return resp, err
}

// A client over its tenant's quota gets an error in the form of its API, and when to
// come back: its SDK waits that long and is served.
func TestClientsOverTheirQuotaComeBack(t *testing.T) {
	for name, ask := range map[string]func(s *session) error{
		"openai-go": func(s *session) error {
			_, err := newOpenAI(s).Chat.Completions.New(s.ctx, chatParams(question))
			return err
		},
		"anthropic-sdk-go": func(s *session) error {
			_, err := newAnthropic(s).Messages.New(s.ctx, messageParams(question))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := limited(t)
			hold := func() (release func()) { // takes the quota until then
				ctx, cancel := context.WithCancel(t.Context())
				begun, gone := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(gone)
					body := `{"model":"` + model + `","stream":true,"max_tokens":10,"messages":[{"role":"user","content":"x"}]}`
					path, header, value := "/v1/chat/completions", "Authorization", "Bearer key"
					if name == "anthropic-sdk-go" {
						path, header, value = "/v1/messages", "X-Api-Key", "key"
					}
					req := rig.Must(http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, strings.NewReader(body)))
					req.Header.Set(header, value)
					req.Header.Set("X-Hold", "1")
					resp, err := http.DefaultClient.Do(req)
					close(begun)
					if assert.NoError(t, err) {
						assert.Equal(t, http.StatusOK, resp.StatusCode)
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}()
				<-begun
				return func() { cancel(); <-gone }
			}

			release := hold()
			seen := &refusals{then: func() {}}
			err := ask(&session{ctx: t.Context(), url: p.url, base: seen})
			release()
			var refused *openai.Error
			var over *anthropic.Error
			switch {
			case errors.As(err, &refused):
				assert.Equal(t, http.StatusTooManyRequests, refused.StatusCode)
				assert.Equal(t, "rate_limit_error", refused.Type)
				assert.Contains(t, refused.Message, "too many requests at once")
			case errors.As(err, &over):
				assert.Equal(t, http.StatusTooManyRequests, over.StatusCode)
				assert.EqualValues(t, "rate_limit_error", over.Type())
			default:
				assert.Fail(t, "no error of the SDK", "%T %v", err, err)
			}
			assert.Equal(t, "1", seen.retryAfter.Load(), "seconds until a request may have ended")

			require.Eventually(t, func() bool { return p.router.Stats().OpenLeases == 0 }, 30*time.Second, time.Millisecond)
			seen = &refusals{then: hold()}
			assert.NoError(t, ask(&session{ctx: t.Context(), url: p.url, base: seen, retries: 10}))
			assert.Positive(t, seen.n.Load())
			p.settled(t)
		})
	}
}
