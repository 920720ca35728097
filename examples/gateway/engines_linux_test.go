package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/kvevents"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startLlamas starts n real servers, which end with the test. It skips the test if there are none.
func startLlamas(t *testing.T, n int) []*rig.Process {
	t.Helper()
	if err := rig.LlamaAvailable(); err != nil {
		t.Skip(err)
	}
	return startAll(t, n, func(int) (*rig.Process, error) { return rig.StartLlama() })
}

// startAll starts n servers at the same time, which end with the test.
func startAll(t *testing.T, n int, start func(i int) (*rig.Process, error)) []*rig.Process {
	t.Helper()
	servers := make([]*rig.Process, n)
	var group sync.WaitGroup
	for i := range servers {
		group.Go(func() {
			var err error
			servers[i], err = start(i)
			assert.NoError(t, err)
		})
	}
	group.Wait()
	t.Cleanup(func() {
		for _, s := range servers {
			if s != nil {
				s.Kill()
			}
		}
	})
	require.False(t, t.Failed())
	return servers
}

// beforeLlamas is a gateway for servers, and its address.
func beforeLlamas(t *testing.T, servers []*rig.Process) (*gateway, string) {
	t.Helper()
	return beforeServers(t, "lmetric", servers)
}

func beforeServers(t *testing.T, policy string, servers []*rig.Process) (*gateway, string) {
	t.Helper()
	g := gatewayOf(t, plain(policy), endpointsOf(servers)...)
	return g, serving(t, g).URL
}

func endpointsOf(servers []*rig.Process) (all []endpick.Endpoint) {
	for _, s := range servers {
		all = append(all, endpick.Endpoint{Address: s.URL()})
	}
	return all
}

// recorded is a client through a transport before servers, and what it records.
func recorded(t *testing.T, servers []*rig.Process) (*http.Client, <-chan recording.Request) {
	config := all.LMetric()
	config.Endpoints = endpointsOf(servers)
	router := rig.Must(endpick.New(config))
	records := make(chan recording.Request, 1)
	tr := rig.Must(transport.New(transport.Config{Router: router, Record: func(r recording.Request) { records <- r }}))
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}, records
}

// eachAPI runs a test of each API, with streams and with answers at once.
func eachAPI(t *testing.T, test func(t *testing.T, name string, atOnce bool)) {
	for name := range traffic.APIs {
		for _, atOnce := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, at once %v", name, atOnce), func(t *testing.T) { test(t, name, atOnce) })
		}
	}
}

// llamaClient talks to an engine whose answers may be shorter than asked for.
func llamaClient(t *testing.T, url, name string, atOnce bool) *traffic.Client {
	c := traffic.NewClient(url)
	c.API, c.Exact, c.AtOnce = traffic.APIs[name], false, atOnce
	t.Cleanup(c.Close)
	return c
}

// noneOpen waits until nothing is in flight, neither in the router's accounts nor in the servers.
func noneOpen(t *testing.T, g *gateway, servers []*rig.Process) {
	t.Helper()
	rig.Idle(t, g.router)
	require.Zero(t, g.router.Stats().Reaped, "each lease was closed by its request")
	for _, s := range servers {
		require.Eventually(t, func() bool {
			_, page := get(s.URL() + "/metrics")
			return strings.Contains(page, "\nllamacpp:requests_processing 0\n") && strings.Contains(page, "\nllamacpp:requests_deferred 0\n")
		}, time.Minute, 10*time.Millisecond, "what clients have given up ends in the engine too")
	}
}

// Conversations over every API, streamed or not: no turn fails, and each finds the previous one in its server's cache.
func TestLlamaConversations(t *testing.T) {
	servers := startLlamas(t, 3)
	eachAPI(t, func(t *testing.T, name string, atOnce bool) {
		g, url := beforeLlamas(t, servers)
		c := llamaClient(t, url, name, atOnce)
		// No two share a system prompt: with llama.cpp the later of two that do takes
		// the slot of the earlier, and with it the place of its history.
		w := traffic.Workload{Duration: 2 * time.Second, Rate: 24, Groups: 1000, SystemTokens: 60, QuestionTokens: 40, OutputTokens: 12, Turns: 3, Seed: 7}
		conversations := traffic.Cold(w.Conversations())[:4]
		// One request at a time, so that load does not decide.
		said := make([][]traffic.Message, len(conversations))
		for turn := range w.Turns {
			for i, conversation := range conversations {
				if turn == 0 {
					said[i] = []traffic.Message{{Role: "system", Content: conversation.System}}
				}
				said[i] = append(said[i], traffic.Message{Role: "user", Content: conversation.Turns[turn].Question})
				s := c.Ask(t.Context(), time.Now(), said[i], 12)
				require.NoError(t, s.Err)
				require.Positive(t, s.PromptTokens)
				require.Positive(t, s.OutputTokens)
				require.Less(t, s.CachedTokens, s.PromptTokens, "the last token is always computed")
				if turn > 0 {
					// All of the previous turn except its answer, which comes back as different tokens.
					require.GreaterOrEqual(t, s.CachedTokens, len(said[i][0].Content)+turn*4*w.QuestionTokens, "turn %d of conversation %d", turn, i)
				}
				said[i] = append(said[i], traffic.Message{Role: "assistant", Content: s.Text})
			}
		}
		noneOpen(t, g, servers)
	})
}

// Servers die and come back with empty caches, and clients leave, during
// conversations: no request fails that had not received a byte yet, and no chat or completion at all.
func TestLlamaServersDie(t *testing.T) {
	eachAPI(t, func(t *testing.T, name string, atOnce bool) {
		t.Parallel()
		servers := startLlamas(t, 3)
		g, url := beforeLlamas(t, servers)
		c := llamaClient(t, url, name, atOnce)
		ctx, stop := context.WithTimeout(t.Context(), 4*time.Minute)
		defer stop()

		var ended atomic.Bool
		var clients sync.WaitGroup
		var mu sync.Mutex
		var turns, left, cut int
		for n := range 8 {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			clients.Go(func() {
				for ctx.Err() == nil {
					messages := []traffic.Message{{Role: "system", Content: traffic.Words(random, 60)}}
					for range 3 {
						if ended.Load() {
							return
						}
						messages = append(messages, traffic.Message{Role: "user", Content: traffic.Words(random, 20)})
						asking, cancel := context.WithCancel(ctx)
						leaves := random.IntN(5) == 0
						if leaves {
							time.AfterFunc(time.Duration(random.IntN(60))*time.Millisecond, cancel)
						}
						s := c.Ask(asking, time.Now(), messages, 20)
						cancel()
						mu.Lock()
						turns++
						switch {
						case s.Err == nil:
						case leaves:
							left++
						default:
							assert.True(t, s.GotByte, "failed before its first byte: %v", s.Err)
							cut++
						}
						mu.Unlock()
						if s.Err != nil {
							break
						}
						messages = append(messages, traffic.Message{Role: "assistant", Content: s.Text})
					}
				}
			})
		}
		some := func(n int) { // waits for n more turns
			mu.Lock()
			from := turns
			mu.Unlock()
			assert.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return turns >= from+n }, time.Minute, time.Millisecond)
		}
		some(30)
		servers[0].Kill()
		some(20)
		assert.NoError(t, servers[0].Restart())
		servers[1].Kill()
		some(20)
		assert.NoError(t, servers[1].Restart())
		some(30)
		ended.Store(true)
		clients.Wait()
		stats := g.transport.Stats()
		t.Logf("%d turns, %d given up, %d cut off after their first byte, %d retries, %d resumed", turns, left, cut, stats.Retries, stats.Resumed)
		require.NoError(t, ctx.Err())
		require.Positive(t, int(stats.Retries+stats.Resumed)+cut, "the kills were noticed")
		require.Positive(t, left)
		most := 2 * 8 // one for each client and kill
		if name == "chat" || name == "completions" {
			most = 0 // they go on elsewhere
		}
		require.LessOrEqual(t, cut, most)
		noneOpen(t, g, servers)
	})
}

// The transport's counts for this engine equal the engine's own.
func TestLlamaIsMetered(t *testing.T) {
	servers := startLlamas(t, 1)
	eachAPI(t, func(t *testing.T, name string, atOnce bool) {
		client, records := recorded(t, servers)
		c := llamaClient(t, "http://gateway", name, atOnce)
		c.HTTP = client
		messages := []traffic.Message{{Role: "user", Content: name + fmt.Sprint(atOnce) + " tell me a story that begins as all stories do"}}
		for i := range 2 {
			s := c.Ask(t.Context(), time.Now(), messages, 8)
			require.NoError(t, s.Err)
			r := <-records
			require.Equal(t, s.PromptTokens, r.InputTokens)
			require.Equal(t, s.OutputTokens, r.OutputTokens)
			require.Equal(t, &s.CachedTokens, r.CachedTokens)
			if i > 0 {
				require.Equal(t, s.PromptTokens-1, *r.CachedTokens, "a whole prompt but for its last token")
			}
			require.Equal(t, !atOnce, r.TTFTMillis != nil)
			require.Equal(t, "completed", r.Status)
		}
	})
}

// An inspector finds a server's capacity: its slots, and the context that they share. Its load reports are read.
func TestLlamaTellsWhatItHolds(t *testing.T) {
	servers := startLlamas(t, 1)
	g, _ := beforeLlamas(t, servers)
	require.Eventually(t, func() bool {
		e := g.router.Endpoints()[0].Candidate.Endpoint
		return e.MaxSequences == rig.LlamaSlots && e.KVTokens == rig.LlamaContext && len(e.Models) == 0
	}, 30*time.Second, 5*time.Millisecond)
	require.Eventually(t, func() bool {
		l := g.router.Endpoints()[0].Candidate.Report
		return l != nil && l.Absent == endpick.KVUsageSignal
	}, 10*time.Second, 5*time.Millisecond, "requests that run and wait are on its page, the KV cache is not")
	alive, of := g.health.Alive()
	require.Equal(t, []int{1, 1}, []int{alive, of})
	require.Eventually(t, func() bool { return !g.health.Endpoints()[0].Checked.IsZero() }, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, g.health.Endpoints()[0].CheckErr)
	servers[0].Kill()
	require.Eventually(t, func() bool { alive, _ := g.health.Alive(); return alive == 0 }, time.Minute, 5*time.Millisecond)
	require.Equal(t, health.Unfit, g.health.Endpoints()[0].State)
	require.NoError(t, servers[0].Restart())
	require.Eventually(t, func() bool { alive, _ := g.health.Alive(); return alive == 1 }, time.Minute, 5*time.Millisecond)
}

// Responses of its own API are counted, and its requests are matched to what it holds.
func TestLlamaNativeAPIIsMetered(t *testing.T) {
	client, records := recorded(t, startLlamas(t, 2))
	post := func(path string, body any) (string, recording.Request) {
		resp := rig.Must(client.Post("http://gateway"+path, "application/json", bytes.NewReader(rig.Must(json.Marshal(body)))))
		defer resp.Body.Close()
		return string(rig.Must(io.ReadAll(resp.Body))), <-records
	}
	type object map[string]any
	for _, stream := range []bool{false, true} {
		story := fmt.Sprintf("%v, tell me a story that begins as all stories do, and goes on as long as none has gone on before. ", stream)
		var first recording.Request
		for turn := range 4 {
			text, r := post("/completion", object{"prompt": strings.Repeat(story, turn+2), "n_predict": 6, "stream": stream, "ignore_eos": true})
			require.Contains(t, text, `"tokens_predicted":6`)
			var last struct {
				Evaluated int `json:"tokens_evaluated"`
				Timings   struct {
					Cached int `json:"cache_n"`
				}
			}
			if i := strings.LastIndex(text, "data: "); i >= 0 {
				text = text[i+len("data: "):]
			}
			require.NoError(t, json.Unmarshal([]byte(text), &last), text)
			require.Equal(t, []any{"completed", 6, last.Evaluated, false}, []any{r.Status, r.OutputTokens, r.InputTokens, r.Estimated})
			require.Equal(t, &last.Timings.Cached, r.CachedTokens)
			require.Equal(t, stream, r.TTFTMillis != nil)
			require.Equal(t, 6, r.MaxTokens)
			if turn == 0 {
				first = r
				continue
			}
			require.Equal(t, first.Endpoint, r.Endpoint, "it goes where it began")
			require.Greater(t, *r.CachedTokens, r.InputTokens/2)
		}
	}
	text, r := post("/apply-template", object{"messages": []object{{"role": "user", "content": "hi"}}})
	require.Contains(t, text, "hi")
	require.Equal(t, []any{"completed", 200}, []any{r.Status, r.HTTP})
	text, r = post("/infill", object{"input_prefix": "a", "input_suffix": "b"})
	require.Contains(t, text, "not_supported_error", "this model has no tokens for that")
	require.Equal(t, 501, r.HTTP)
}

// varying is what differs between two answers of one server to one request.
var varying = regexp.MustCompile(`"(?:created|created_at|completed_at)":\d+|,"timings":\{[^}]*\}|(?:chatcmpl-|resp_|msg_|rs_)[A-Za-z0-9]{20,}|"(?:cached_tokens|cache_read_input_tokens|input_tokens)":\d+`)

// Through the gateway a client sees the same as without one: answers, streams with
// and without usage, and errors, in the engine's own words.
func TestLlamaAnswersPassAsTheyAre(t *testing.T) {
	servers := startLlamas(t, 1)
	_, url := beforeLlamas(t, servers)
	send := func(url, path, body string) (int, string, string) {
		resp := rig.Must(http.Post(url+path, "application/json", strings.NewReader(body)))
		defer resp.Body.Close()
		text := rig.Must(io.ReadAll(resp.Body))
		return resp.StatusCode, resp.Header.Get("Content-Type"), varying.ReplaceAllString(string(text), "")
	}
	asked := func(name string, extra map[string]any) string {
		fields := traffic.APIs[name].Body([]traffic.Message{{Role: "system", Content: "Be brief."}, {Role: "user", Content: "Hello there."}}, 6)
		fields["model"], fields["temperature"] = "any", 0
		maps.Copy(fields, extra)
		var b bytes.Buffer
		require.NoError(t, json.NewEncoder(&b).Encode(fields))
		return b.String()
	}
	type call struct{ path, body string }
	calls := map[string]call{
		"chat, usage asked for": {traffic.APIs["chat"].Path, asked("chat", map[string]any{"stream": true, "stream_options": map[string]bool{"include_usage": true}})},
		"chat, two answers":     {traffic.APIs["chat"].Path, asked("chat", map[string]any{"n": 2})},
		"count":                 {"/v1/messages/count_tokens", asked("messages", nil)},
		"tokenize":              {"/tokenize", `{"content":"Hello there."}`},
		"too long":              {traffic.APIs["chat"].Path, `{"model":"any","messages":[{"role":"user","content":"` + strings.Repeat("long ", 8000) + `"}]}`},
		"not switched on":       {"/v1/embeddings", `{"model":"any","input":"Hello"}`},
	}
	for name, a := range traffic.APIs {
		calls[name] = call{a.Path, asked(name, nil)}
		calls[name+", streamed"] = call{a.Path, asked(name, map[string]any{"stream": true})}
		calls[name+", malformed"] = call{a.Path, strings.NewReplacer(`"messages":[`, `"messages":7,"x":[`, `"input":[`, `"input":7,"x":[`, `"prompt":"`, `"prompt":7,"x":"`).Replace(asked(name, nil))}
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			status, kind, text := send(servers[0].URL(), c.path, c.body)
			gotStatus, gotKind, got := send(url, c.path, c.body)
			require.Equal(t, status, gotStatus, got)
			require.Equal(t, kind, gotKind)
			if status == http.StatusOK && strings.Contains(name, "malformed") {
				return // the engine interprets it as it likes
			}
			require.Equal(t, text, got)
		})
	}
}

// Three servers have six models each, and hold two in memory: few loads (six; a policy that does not know causes seventy), and no
// failure, also if one dies in the middle.
func TestLlamasLoadModels(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f"}
	for name, kill := range map[string]bool{"all live": false, "one dies": true} {
		t.Run(name, func(t *testing.T) {
			if err := rig.LlamaAvailable(); err != nil {
				t.Skip(err)
			}
			engine, dir := os.Getenv("ENDPICK_LLAMA"), t.TempDir()
			for _, model := range names {
				require.NoError(t, os.Symlink(filepath.Join(engine, "tiny.gguf"), filepath.Join(dir, model+".gguf")))
			}
			servers := startAll(t, 3, func(i int) (*rig.Process, error) {
				return rig.Start(func(port int) *exec.Cmd {
					return exec.Command(filepath.Join(engine, "llama-server"), "--models-dir", dir, "--models-max", "2",
						"--port", strconv.Itoa(port), "-c", "4096", "-np", "2", "-t", "1", "--log-file", filepath.Join(dir, fmt.Sprint(i, ".log")))
				})
			})
			g, url := beforeServers(t, "marginal-delay", servers)
			g.inspector.Poll(t.Context())
			defer rig.Running(t.Context(), g.inspector.Run)()
			r := rand.New(rand.NewPCG(1, 2))
			jobs := make(chan string, 120)
			for range cap(jobs) {
				i := 0
				for ; i < 5 && r.Float64() > 0.42; i++ { // about Zipf's
				}
				jobs <- names[i]
			}
			close(jobs)
			var clients sync.WaitGroup
			var cut atomic.Int64
			for range 3 {
				clients.Go(func() {
					for model := range jobs {
						if kill && len(jobs) == 60 {
							servers[0].Kill()
						}
						body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hello"}],"max_tokens":16,"stream":%t}`, model, !kill) // streams that have begun end with their server
						resp := rig.Must(http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body)))
						text, err := io.ReadAll(resp.Body)
						resp.Body.Close()
						if err != nil { // its head had been passed on
							cut.Add(1)
							continue
						}
						assert.Contains(t, string(text), `"finish_reason":"`)
					}
				})
			}
			clients.Wait()
			assert.LessOrEqual(t, cut.Load(), map[bool]int64{false: 0, true: 3}[kill], "as many as were open when their server died")
			loads := 0
			for i := range servers {
				log := rig.Must(os.ReadFile(filepath.Join(dir, fmt.Sprint(i, ".log"))))
				loads += bytes.Count(log, []byte("spawning server instance with name="))
			}
			t.Log(loads, "loads")
			assert.LessOrEqual(t, loads, map[bool]int{false: 24, true: 60}[kill], "two servers have less room than there are models")
			status, _ := postTo(url+"/v1/chat/completions", `{"model":"seventh","messages":[{"role":"user","content":"hello"}]}`)
			assert.Equal(t, http.StatusNotFound, status)
		})
	}
}

// startVLLMs starts n engines with a small queue. ENDPICK_VLLM is a directory with venv, which has
// a vLLM for CPUs, and tiny, a model of random weights.
func startVLLMs(t *testing.T, n int) []*rig.Process {
	dir := os.Getenv("ENDPICK_VLLM")
	if dir == "" {
		t.Skip("ENDPICK_VLLM is not set: no vLLM to test with")
	}
	return startAll(t, n, func(int) (*rig.Process, error) {
		events, replay := rig.Must(rig.FreePort()), rig.Must(rig.FreePort())
		return rig.Start(func(port int) *exec.Cmd {
			cmd := exec.Command(filepath.Join(dir, "venv/bin/vllm"), "serve", "./tiny", "--served-model-name", "tiny",
				"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--max-model-len", "8192", "--enforce-eager", "--enable-prefix-caching",
				"--enable-prompt-tokens-details", "--dtype", "bfloat16", "--max-num-seqs", "4", "--max-num-queued-reqs", "8", "--kv-events-config",
				fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}`, events, replay))
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "VLLM_CPU_KVCACHE_SPACE=1", "OMP_NUM_THREADS=1",
				"MKL_NUM_THREADS=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "TOKENIZERS_PARALLELISM=false", "VLLM_HOST_IP=127.0.0.1", "VLLM_LOOPBACK_IP=127.0.0.1")
			return cmd
		})
	})
}

// Three vLLMs behind a gateway that is only told where they are, and who tokenizes.
func TestVLLM(t *testing.T) {
	engines := startVLLMs(t, 3)
	text := "models: {tiny: {tokens: {render: " + engines[0].URL() + ", within: 30s}}}\nendpoints:\n"
	for i, e := range engines {
		text += fmt.Sprintf("  - {url: %q, id: e%d}\n", e.URL(), i)
	}
	s := parsed(text)
	log := &rig.Output{}
	g := loggingGateway(t, log, s)
	ended := make(chan recording.Request, 1000)
	g.ended = func(r recording.Request) { ended <- r }
	front := serving(t, g)
	client := func(api string, whole bool) *traffic.Client {
		c := llamaClient(t, front.URL, api, whole)
		c.Model = "tiny"
		return c
	}
	heard := func(ok func(*heardStatus) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			all := g.hearing.status()
			return len(all) == len(engines) && !slices.ContainsFunc(all, func(h heardStatus) bool { return !ok(&h) })
		}, time.Minute, 10*time.Millisecond, "%+v", g.hearing.status())
	}
	idle := func() {
		t.Helper()
		require.Eventually(t, func() bool {
			for _, e := range engines {
				_, page := get(e.URL() + "/metrics")
				if !regexp.MustCompile(`(?m)^vllm:num_requests_running\{.*\} 0\.0$`).MatchString(page) {
					return false
				}
			}
			return g.router.Stats().OpenLeases == 0
		}, time.Minute, 50*time.Millisecond)
	}
	random := rand.New(rand.NewPCG(1, 2))
	prompt := func(words int) []traffic.Message {
		return []traffic.Message{{Role: "user", Content: traffic.Words(random, words)}}
	}
	// ask asks again where all engines are full, as clients do. A vLLM whose queue fills while a stream
	// begins says so under status 200, or not at all.
	full := regexp.MustCompile(`^503 |^502 |^no text came$|^the stream broke off$`)
	ask := func(c *traffic.Client, messages []traffic.Message, output int) traffic.Sample {
		for until := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Second) {
			a := c.Ask(t.Context(), time.Now(), messages, output)
			if a.Err == nil || !full.MatchString(a.Err.Error()) || time.Now().After(until) {
				return a
			}
		}
	}
	heard(func(h *heardStatus) bool { return h.State == kvevents.Live })

	t.Run("conversations find what is expected", func(t *testing.T) {
		c := client("chat", true)
		said, exact, asked := make([][]traffic.Message, 4), 0, 0
		for turn := range 4 {
			for i := range said {
				said[i] = append(said[i], traffic.Message{Role: "user", Content: traffic.Words(random, 150)})
				fields := c.API.Body(said[i], 24)
				fields["model"] = c.Model
				ids, _ := g.tokens(t.Context(), &endpick.Request{Model: "tiny"}, c.API.Path, rig.Must(json.Marshal(fields)))
				require.NotEmpty(t, ids)
				expected := map[string]int{}
				req := endpick.Request{Blocks: prefix.AppendTokens(nil, prefix.Scope{Key: s.hashKey, Model: "tiny"}.Seed(), ids), Exact: true, InputTokens: len(ids)}
				req = req.At(time.Now(), 1, 1)
				var candidates []endpick.Candidate
				for _, e := range g.router.Endpoints() {
					candidates = append(candidates, e.Candidate)
				}
				g.policies.precise.Match(&req, candidates)
				for _, at := range candidates {
					expected[at.Endpoint.ID] = at.PrefixTokens
				}
				a := c.Ask(t.Context(), time.Now(), said[i], 24)
				require.NoError(t, a.Err)
				r := <-ended
				require.Equal(t, len(ids), a.PromptTokens)
				asked++
				if expected[r.Endpoint] == a.CachedTokens {
					exact++
				}
				if turn > 0 {
					assert.Positive(t, a.CachedTokens)
				}
				said[i] = append(said[i], traffic.Message{Role: "assistant", Content: a.Text})
				time.Sleep(1200 * time.Millisecond) // longer than events take
			}
		}
		t.Logf("%d of %d as expected", exact, asked)
		assert.GreaterOrEqual(t, exact, asked-1)
		confirmed := uint64(0)
		for _, h := range g.hearing.status() {
			confirmed += h.Feed.Confirmed
			assert.Zero(t, h.Feed.Unconfirmed+h.Feed.Textual)
		}
		assert.GreaterOrEqual(t, confirmed, uint64(asked-1))
	})

	t.Run("clients leave", func(t *testing.T) {
		for _, api := range []string{"chat", "completions", "messages", "responses"} {
			for _, whole := range []bool{false, true} {
				ctx, leave := context.WithTimeout(t.Context(), time.Second)
				a := client(api, whole).Ask(ctx, time.Now(), prompt(50), 6000)
				leave()
				require.ErrorIs(t, a.Err, context.DeadlineExceeded)
				idle()
			}
		}
	})

	t.Run("one is killed", func(t *testing.T) {
		var group sync.WaitGroup
		for i := range 6 {
			c, messages := client("chat", i%2 == 0), prompt(50)
			group.Go(func() {
				assert.NoError(t, c.Ask(t.Context(), time.Now(), messages, 1000).Err, "streams go on elsewhere")
			})
		}
		require.Eventually(t, func() bool { return g.router.Stats().OpenLeases == 6 }, time.Minute, time.Millisecond)
		require.Eventually(t, func() bool { // or nobody could tell that it is another
			all := g.hearing.status()
			return len(all) == 3 && all[2].Batches > 0
		}, 3*time.Minute, 10*time.Millisecond)
		engines[2].Kill()
		group.Wait()
		t.Logf("%+v", g.transport.Stats())
		require.NoError(t, engines[2].Restart())
		heard(func(h *heardStatus) bool {
			return h.State == kvevents.Live && (h.Endpoint == "e2") == (h.Restarts == 1)
		})
		for range 6 {
			require.NoError(t, client("chat", false).Ask(t.Context(), time.Now(), prompt(50), 4).Err)
		}
		idle()
	})

	t.Run("too many at once", func(t *testing.T) {
		before := len(log.String())
		var group sync.WaitGroup
		for i := range 60 {
			c, messages := client([]string{"chat", "completions", "messages", "responses"}[i%4], i%8 < 4), prompt(50)
			group.Go(func() { assert.NoError(t, ask(c, messages, 20).Err) })
		}
		group.Wait()
		assert.NotContains(t, log.String()[before:], "state=out", "who is full does not fail")
		idle()
	})
}
