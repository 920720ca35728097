package transport_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tale are what a continuing engine says of any prompt; each is one token, and needs another escape.
var tale = []string{"It", " was", " a", " \"dark\"\\", "\tnight.", "\n\n", "\x1b[1mThen", " the", " \u00e9clair", " ", "\U0001f370", " was gone."}

// continuing answers as vLLM does, one word a token, from where the request says that the text is.
// It dies after as many words as left says, at the next answer that has as many; −1: never.
type continuing struct {
	left   atomic.Int64
	how    string        // it dies: in the middle of an "event", with an "error", or says "abort"; empty: after an event
	says   string        // its error; empty: coreDied
	pause  time.Duration // for each token
	goesOn bool          // it does not begin with white space
	mu     sync.Mutex
	bodies []map[string]any
}

func (e *continuing) handle(w http.ResponseWriter, r *http.Request, body []byte) bool {
	var request map[string]any
	if json.Unmarshal(body, &request) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return true
	}
	e.mu.Lock()
	e.bodies = append(e.bodies, request)
	n := len(e.bodies)
	e.mu.Unlock()
	if request["_debug_render_only"] == true { // as Ollama, which is asked whether it continues a message
		io.WriteString(w, `{"_debug_info":{"rendered_template":"?It was"}}`)
		e.bodies = e.bodies[:n-1]
		return true
	}
	said, chat := "", r.URL.Path == chatPath
	if request["continue_final_message"] == true {
		all := request["messages"].([]any)
		said = all[len(all)-1].(map[string]any)["content"].(string)
	} else if !chat {
		said = strings.TrimPrefix(request["prompt"].(string), "Tell: ")
	}
	whole := strings.Join(tale, "")
	if !strings.HasPrefix(whole, said) {
		w.WriteHeader(http.StatusBadRequest)
		return true
	}
	if request["stream"] != true {
		time.Sleep(e.pause * time.Duration(len(tale)))
		text, _ := json.Marshal(whole)
		fmt.Fprintf(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":"stop"}]}`, text)
		return true
	}
	at, start := len(strings.TrimRight(said, " \t\n")), 0
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(v any) {
		data, _ := json.Marshal(v)
		fmt.Fprintf(w, "data: %s\n\n", data)
		_ = http.NewResponseController(w).Flush()
	}
	type object = map[string]any
	chunk := func(choice any) object {
		c := object{"id": fmt.Sprintf("cmpl-%p-%d", e, n), "object": "chunk", "created": 1000 + n, "model": "m", "choices": []any{choice}}
		if choice == nil {
			c["choices"] = []any{}
		}
		return c
	}
	if chat {
		send(chunk(object{"index": 0, "delta": object{"role": "assistant", "content": ""}, "logprobs": nil, "finish_reason": nil}))
	}
	limit := 1000.0
	if m, ok := request["max_tokens"].(float64); ok {
		limit = m
	}
	prompt, output, reason := 20, 0, "stop"
	for _, word := range tale {
		if start += len(word); start <= at {
			prompt++
			continue
		}
		if e.left.Load() == int64(output) {
			switch e.how {
			case "event":
				io.WriteString(w, `data: {"id":"x","choices":[{"index":0,"delta":{"content":"half`)
			case "error":
				io.WriteString(w, cmp.Or(e.says, coreDied)+done)
				return true
			case "abort":
				send(chunk(object{"index": 0, "delta": object{}, "text": "", "finish_reason": "abort"}))
				io.WriteString(w, done)
				return true
			}
			panic(http.ErrAbortHandler)
		}
		if float64(output) == limit {
			reason = "length"
			break
		}
		if output == 0 && at > start-len(word) {
			word = word[at-(start-len(word)):] // what templates have dropped
		}
		if output == 0 && e.goesOn && strings.TrimSpace(word) == "" {
			continue
		}
		output++
		time.Sleep(e.pause)
		if chat {
			send(chunk(object{"index": 0, "delta": object{"content": word}, "logprobs": nil, "finish_reason": nil}))
		} else {
			send(chunk(object{"index": 0, "text": word, "logprobs": nil, "finish_reason": nil}))
		}
	}
	send(chunk(object{"index": 0, "delta": object{}, "text": "", "finish_reason": reason}))
	if options, ok := request["stream_options"].(map[string]any); ok && options["include_usage"] == true {
		c := chunk(nil)
		c["usage"] = object{"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, "prompt_tokens_details": object{"cached_tokens": prompt - 1}}
		send(c)
	}
	io.WriteString(w, done)
	return true
}

// tell is what most requests are.
const tell = `{"model":"m","stream":true,"messages":[{"role":"user","content":"Tell"}]}`

// coreDied is what vLLM says in a stream when the process that computes has died.
const coreDied = `data: {"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"InternalServerError","param":null,"code":500}}` + "\n\n"

// tellers starts engines of one kind.
func tellers(t testing.TB, config transport.Config, engine string, all ...handler) *world {
	var of endpick.Config
	for i, handle := range all {
		of.Endpoints = append(of.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i), Address: startEngine(t, handle).URL, Engine: engine})
	}
	return newWorldOf(t, config, of)
}

func dies(after int) *continuing {
	e := new(continuing)
	e.left.Store(int64(after))
	return e
}

// oneStream is what a client makes of a stream.
type oneStream struct {
	text, reason  string
	roles, events int
	ids, created  map[any]bool
	usage         map[string]any
	done, failed  bool
}

func readStream(t testing.TB, body string) (s oneStream) {
	s.ids, s.created = map[any]bool{}, map[any]bool{}
	for event := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		require.True(t, ok, event)
		require.False(t, s.done, "nothing follows the end")
		if data == "[DONE]" {
			s.done = true
			continue
		}
		var c struct {
			ID, Created any
			Choices     []struct {
				Index  int
				Text   string
				Delta  struct{ Role, Content string }
				Reason string `json:"finish_reason"`
			}
			Usage map[string]any
			Error any
		}
		require.NoError(t, json.Unmarshal([]byte(data), &c), data)
		if c.Error != nil {
			s.failed = true
			continue
		}
		s.events++
		s.ids[c.ID], s.created[c.Created] = true, true
		for _, choice := range c.Choices {
			s.text += choice.Text + choice.Delta.Content
			s.reason += choice.Reason
			if choice.Delta.Role != "" {
				s.roles++
			}
		}
		if c.Usage != nil {
			s.usage = c.Usage
		}
	}
	return s
}

// Wherever a stream breaks off, the client gets all of it, as one stream.
func TestResume(t *testing.T) {
	all := tale
	for _, engine := range []string{"vllm", "sglang", "llama.cpp", "ollama"} {
		for _, request := range []struct{ path, body string }{
			{chatPath, tell},
			{chatPath, `{"model":"m","messages" : [ {"role":"user","content":"Tell"} ] ,"stream":true,"max_completion_tokens":100,"seed":null,"logprobs":false,"response_format":{"type":"text"},"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto","stream_options":{"include_usage":true}}`},
			{"/v1/completions", `{"model":"m","stream":true,"prompt":"Tell: ","max_tokens":100}`},
			{chatPath, `{"model":"m","stream":true,"messages":[{"role":"user","content":"Tell"}],"max_tokens":4,"stream_options":{"include_usage":true}}`},
			{"/v1/completions", `{"model":"m","stream":true,"prompt":"Tell: ","max_tokens":4,"stream_options":{"include_usage":true}}`},
		} {
			limit, tale, reason := 100, tale, "stop"
			if strings.Contains(request.body, `"max_tokens":4`) {
				limit, tale, reason = 4, tale[:4], "length"
			}
			if engine == "ollama" && request.path != chatPath {
				continue
			}
			for after := range min(len(tale)+1, len(all)) {
				for _, how := range []string{"", "event", "error", "abort"} {
					bad, good := dies(after), dies(-1)
					bad.how, good.goesOn = how, how == "error"
					whole := strings.Join(tale, "")
					if good.goesOn && after < len(tale) && strings.TrimSpace(tale[after]) == "" {
						whole = strings.Join(tale[:after], "") + strings.Join(tale[after+1:], "")
					}
					w := tellers(t, transport.Config{}, engine, bad.handle, good.handle)
					_, body, err := w.do(t, post(t, request.path, request.body))
					require.NoError(t, err, body)
					s := readStream(t, body)
					require.Equal(t, whole, s.text, "after %d words: %s", after, body)
					assert.True(t, s.done)
					assert.Equal(t, reason, s.reason)
					assert.Len(t, s.ids, 1, body)
					assert.Len(t, s.created, 1, body)
					if request.path == chatPath {
						assert.Equal(t, 1, s.roles, body)
					}
					if strings.Contains(request.body, "include_usage") {
						require.NotNil(t, s.usage, body)
						assert.InDelta(t, len(tale), s.usage["completion_tokens"], 1, "white space at the end is said again")
						assert.InDelta(t, 20, s.usage["prompt_tokens"], 1)
						assert.Equal(t, s.usage["prompt_tokens"].(float64)+s.usage["completion_tokens"].(float64), s.usage["total_tokens"])
						assert.LessOrEqual(t, s.usage["prompt_tokens_details"].(map[string]any)["cached_tokens"], s.usage["prompt_tokens"], "what was said is no prompt")
					} else {
						assert.Nil(t, s.usage, "nobody asked for it")
					}
					w.idle(t)
					record := w.records[0]
					assert.InDelta(t, len(tale), record.OutputTokens, 1)
					assert.InDelta(t, 20, record.InputTokens, 1)
					assert.LessOrEqual(t, *record.CachedTokens, record.InputTokens)
					assert.Equal(t, 2, record.Attempts)
					again := good.bodies[0]
					if after == 0 { // it has announced at most, which the client has not seen
						assert.Zero(t, w.t.Stats().Resumed)
						continue
					}
					assert.EqualValues(t, 1, w.t.Stats().Resumed)
					assert.Equal(t, endpick.Failed, w.observer.all()[0].Status)
					for _, name := range []string{"max_tokens", "max_completion_tokens"} {
						if strings.Contains(request.body, name) {
							assert.EqualValues(t, max(limit-after, 1), again[name], "one more if there are all, for an end")
						} else {
							assert.NotContains(t, again, name)
						}
					}
					if request.path == chatPath {
						assert.Equal(t, false, again["add_generation_prompt"])
					}
				}
			}
		}
	}
}

// What another engine would not say as the first would have is not resumed: the client sees how its
// stream breaks off, and nobody computes it again.
func TestWhatIsNotResumed(t *testing.T) {
	chat := func(fields string) string {
		return `{"model":"m","stream":true,"messages":[{"role":"user","content":"Tell"}]` + fields + `}`
	}
	for name, tc := range map[string]struct {
		config             transport.Config
		engine, path, body string
		said               string // after a word; empty: two more
	}{
		"an engine of which nothing is known": {engine: ""},
		"one that can't":                      {engine: "llama-swap"},
		"one that takes prompts for messages": {engine: "ollama", path: "/v1/completions", body: `{"model":"m","stream":true,"prompt":"Tell: ","max_tokens":9}`},
		"a beginning by the client":           {engine: "llama.cpp", body: `{"model":"m","stream":true,"messages":[{"role":"user","content":"Tell"},{"role":"assistant","content":"It"}]}`},
		"switched off":                        {config: transport.Config{DisableResume: true}},
		"no retries":                          {config: transport.Config{MaxAttempts: 1}},
		"a seed":                              {body: chat(`,"seed":7`)},
		"a schema":                            {body: chat(`,"response_format":{"type":"json_object"}`)},
		"a grammar":                           {body: chat(`,"guided_regex":"a*"`)},
		"no response at all":                  {body: chat(`,"max_tokens":0`)},
		"log probabilities":                   {body: chat(`,"logprobs":true`)},
		"two responses":                       {body: chat(`,"n":2`)},
		"a tool that must be called":          {body: chat(`,"tool_choice":"required"`)},
		"something unheard of":                {body: chat(`,"min_tokens":9`)},
		"a text that is continued already":    {body: chat(`,"continue_final_message":true`)},
		"tools that the engine runs":          {body: chat(`,"tools":[{"type":"mcp"}]`)},
		"a long request":                      {body: chat(`,"user":"` + strings.Repeat("x", 1<<20) + `"`)},
		"an engine's own limit":               {path: "/v1/completions", body: `{"model":"m","stream":true,"prompt":"Tell: "}`},
		"token ids":                           {path: "/v1/completions", body: `{"model":"m","stream":true,"prompt":[1,2,3],"max_tokens":10}`},
		"a call of a tool":                    {said: delta(`"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a"}}]`)},
		"reasoning as text":                   {said: delta(`"content":"<think>hm"`)},
		"reasoning":                           {said: delta(`"reasoning_content":"hm"`)},
		"an end":                              {said: finish},
		"a refusal":                           {said: delta(`"refusal":"no"`)},
		"a last word":                         {said: `data: {"choices":[{"index":0,"delta":{"content":"was"},"finish_reason":"abort"}]}` + "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			engine, said := tc.engine, cmp.Or(tc.said, delta(`"content":"was "`)+delta(`"content":"a "`))
			if engine == "" && name != "an engine of which nothing is known" {
				engine = "vllm"
			}
			good := dies(-1)
			w := tellers(t, tc.config, engine, breaksOff("text/event-stream", role, delta(`"content":"It "`), said), good.handle)
			_, body, err := w.do(t, post(t, cmp.Or(tc.path, chatPath), cmp.Or(tc.body, chat(""))))
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			s := readStream(t, body)
			assert.True(t, !s.done && (s.failed || s.reason == "abort"), body)
			assert.Empty(t, good.bodies)
			w.idle(t)
		})
	}
}

// Ollama is asked whether the model's template continues a message: many end it, and begin another answer.
func TestResumeAtOllama(t *testing.T) {
	line := func(word string) string {
		return `{"model":"m","message":{"role":"assistant","content":"` + word + `"},"done":false}` + "\n"
	}
	const last = `{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"length","total_duration":3000000000,"prompt_eval_count":22,"eval_count":1,"eval_duration":5}` + "\n"
	const open, ends = `{"_debug_info":{"rendered_template":"?It was"}}`, `{"_debug_info":{"rendered_template":"?It was\u003c/s\u003eassistant: "}}`
	const crashed = `{"error":"an error was encountered while running the model: unexpected EOF"}` + "\n"
	for name, tc := range map[string]struct {
		more, how, answer string
		resumed           bool
	}{
		"a message is continued":   {`,"options":{"num_predict":3,"top_k":5,"num_ctx":4096},"keep_alive":-1,"think":false`, "", open, true},
		"no limit":                 {`,"options":{"num_predict":-1}`, "", open, true},
		"the model has crashed":    {"", crashed, open, true},
		"a message is ended":       {"", "", ends, false},
		"not, after a crash":       {"", crashed, ends, false},
		"not, and all at once":     {"", crashed, ends, false},
		"an older version answers": {"", "", line("a") + last, false},
		"no answer":                {"", "", "", false},
		"a schema":                 {`,"format":"json"`, "", open, false},
		"a seed":                   {`,"options":{"seed":1}`, "", open, false},
		"thinking":                 {`,"think":true`, "", open, false},
		"a limit that is reached":  {`,"options":{"num_predict":2}`, "", open, true},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			bad := breaksOff("application/x-ndjson", line("It"), line(" was"), tc.how)
			if strings.HasSuffix(name, "at once") {
				bad = says("application/x-ndjson", line("It")+line(" was")+tc.how)
			}
			w := tellers(t, transport.Config{}, "ollama", bad, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
				asked = append(asked, r.URL.Path+" "+string(body))
				if strings.Contains(string(body), "_debug_render_only") {
					io.WriteString(w, tc.answer)
					return true
				}
				return says("application/x-ndjson", line(" dark")+last)(w, r, nil)
			})
			_, body, err := w.do(t, post(t, "/api/chat", `{"model":"m","messages":[{"role":"user","content":"Tell"}]`+tc.more+`}`))
			rest, begun := strings.CutPrefix(body, line("It")+line(" was"))
			require.True(t, begun, body)
			if !tc.resumed {
				require.Equal(t, tc.how == crashed, err == nil, "the engine's own error ends its stream, and breaks nothing: %v", err)
				assert.Contains(t, rest, `{"error":"`)
				assert.NotContains(t, strings.Join(asked, ""), `" was`)
				w.idle(t)
				return
			}
			require.NoError(t, err)
			var end map[string]any
			more, tokens := line(" dark"), 3.0
			if strings.Contains(name, "reached") {
				more, tokens = line(""), 2.0
			}
			require.True(t, strings.HasPrefix(rest, more), rest)
			require.NoError(t, json.Unmarshal([]byte(rest[len(more):]), &end))
			assert.Equal(t, []any{tokens, 20.0}, []any{end["eval_count"], end["prompt_eval_count"]})
			assert.Greater(t, end["total_duration"], 3e9)
			require.Len(t, asked, 2)
			assert.Contains(t, asked[0], "/api/chat")
			if strings.Contains(tc.more, "num_ctx") {
				assert.Contains(t, asked[0], `"num_ctx":4096`, "with another, the model would be loaded again")
				assert.Contains(t, asked[1], `{"role":"user","content":"Tell"},{"role":"assistant","content":"It was"}],"options":{"num_predict":1,"top_k":5,"num_ctx":4096}`)
			}
			w.idle(t)
		})
	}
}

// Servers of all kinds and manners of dying: a stream is at two servers at most that die, only at such
// as continue a text, and either comes whole or ends in an error.
func TestResumeAmongMany(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			var of endpick.Config
			engines := make([]*continuing, 1+r.IntN(4))
			for i := range engines {
				engines[i] = dies([]int{-1, 0, 1, 5}[r.IntN(4)])
				engines[i].how = []string{"", "event", "error"}[r.IntN(3)]
				of.Endpoints = append(of.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i), Address: startEngine(t, engines[i].handle).URL,
					Engine: []string{"vllm", "llama.cpp", ""}[r.IntN(3)]})
			}
			w := newWorldOf(t, transport.Config{}, of)
			_, body, err := w.do(t, post(t, chatPath, tell))
			asked, most := 0, 2
			for i, e := range engines {
				if e.how == "error" {
					most = 3 // a server that says an error lives
				}
				for _, b := range e.bodies {
					asked++
					if b["continue_final_message"] == true {
						assert.NotEmpty(t, of.Endpoints[i].Engine)
					}
				}
			}
			assert.LessOrEqual(t, asked, most)
			switch {
			case err != nil:
				assert.NotContains(t, body, "[DONE]")
			case !strings.Contains(body, coreDied):
				s := readStream(t, body)
				assert.Equal(t, strings.Join(tale, ""), s.text)
				assert.Len(t, s.ids, 1)
				assert.Equal(t, 1, s.roles)
			}
			w.idle(t)
		})
	}
}

// One of four engines dies ten times under 4,000 requests: whole responses are all served, and of the
// streams no more are lost than were at two deaths.
func TestKillsUnderLoad(t *testing.T) {
	var of endpick.Config
	servers := make([]*engine, 4)
	for i := range servers {
		e := dies(-1)
		e.pause = time.Millisecond
		servers[i] = startEngine(t, e.handle)
		of.Endpoints = append(of.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i), Address: servers[i].URL, Engine: "vllm"})
	}
	of.Policy = endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.LeastLoaded(), Weight: 1}}}
	w := newWorldOf(t, transport.Config{}, of)
	var lost, next, served atomic.Int64
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			for n := next.Add(1); n <= 4000; n = next.Add(1) {
				if n%400 == 200 {
					servers[n/400%4].CloseClientConnections()
				}
				stream := n%2 == 0
				_, body, err := w.do(t, post(t, chatPath, fmt.Sprintf(`{"model":"m","stream":%t,"messages":[{"role":"user","content":"Tell"}]}`, stream)))
				switch {
				case err == nil && stream && assert.Equal(t, strings.Join(tale, ""), readStream(t, body).text), err == nil && !stream && strings.Contains(body, "was gone."):
					served.Add(1)
				case stream:
					lost.Add(1)
				default:
					assert.Fail(t, "a whole response is lost", "%v %s", err, body)
				}
			}
		})
	}
	clients.Wait()
	t.Log("resumed", w.t.Stats().Resumed, "lost", lost.Load())
	assert.EqualValues(t, 4000, served.Load()+lost.Load())
	assert.LessOrEqual(t, lost.Load(), int64(10))
	assert.NotZero(t, w.t.Stats().Resumed)
	w.idle(t)
}

// Whoever observes a resumed stream learns which attempt was for the rest; its times are of the whole.
func TestAResumedStreamIsObserved(t *testing.T) {
	var seen atomic.Pointer[transport.Observation]
	describe := func(_ *http.Request, _ []byte, req *endpick.Request) { req.Receipt = new(endpick.Receipt) }
	w := tellers(t, transport.Config{Describe: describe, Observe: func(o *transport.Observation) { seen.Store(o) }}, "vllm", dies(3).handle, dies(-1).handle)
	require.NoError(t, w.t.SetNames(map[string]transport.Name{"m": {Models: []string{"x", "y"}}}))
	_, body := w.ok(t, post(t, chatPath, tell))
	assert.Equal(t, strings.Join(tale, ""), readStream(t, body).text)
	w.idle(t)
	o := seen.Load()
	require.NotNil(t, o)
	require.Len(t, o.Attempts, 2)
	require.NotNil(t, o.Receipt, "of the decision before the rest, which the host may be reading")
	assert.Equal(t, o.Attempts[0].Candidate.Ref, o.Receipt.Verdicts[o.Receipt.Chosen].Candidate.Ref)
	assert.Equal(t, []any{transport.Broken, false, transport.Served, true}, []any{o.Attempts[0].Result, o.Attempts[0].Resumes, o.Attempts[1].Result, o.Attempts[1].Resumes})
	assert.Equal(t, 1, o.Serving)
	assert.True(t, o.Completed())
	assert.NotNil(t, o.TTFTMillis)
	ttft, tpot, e2e := o.Latencies()
	assert.Zero(t, ttft.Actual+tpot.Actual+e2e.Actual)
	w.ok(t, post(t, chatPath, tell))
	assert.Equal(t, w.observer.requests[0].ExpectedOutputTokens, w.observer.requests[2].ExpectedOutputTokens, "a rest is no response to learn from")
}

// A client that leaves while another engine is asked for the rest leaves that one.
func TestLeavingBeforeTheRest(t *testing.T) {
	asked, gone := make(chan struct{}), make(chan struct{})
	bad := breaksOff("text/event-stream", role, delta(`"content":"It"`))
	w := tellers(t, transport.Config{}, "vllm", bad, func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
		close(asked)
		<-r.Context().Done()
		close(gone)
		return true
	})
	response := rig.Must(w.client.Do(post(t, chatPath, tell)))
	go func() { _, _ = io.Copy(io.Discard, response.Body) }()
	<-asked
	time.Sleep(30 * time.Millisecond)
	require.NoError(t, response.Body.Close())
	<-gone
	w.idle(t)
	assert.GreaterOrEqual(t, w.record(t).E2EMillis, 30.0)
}

// An engine's error that nobody can mend is passed on as it came: where there is no other engine, or where
// it is the client's fault.
func TestErrorsThatAreNotResumed(t *testing.T) {
	for _, others := range []bool{true, false} {
		mine := dies(3)
		mine.how, mine.says = "error", "event: error\n"+coreDied
		w := tellers(t, transport.Config{}, "vllm", mine.handle)
		if others {
			mine.says = strings.Replace(coreDied, "500", "400", 1)
			w = tellers(t, transport.Config{}, "vllm", mine.handle, dies(-1).handle)
		}
		_, body, _ := w.do(t, post(t, chatPath, tell))
		assert.Equal(t, 1, strings.Count(body, mine.says), body)
		assert.NotContains(t, body, "night")
		assert.Zero(t, w.t.Stats().Resumed)
		w.idle(t)
		assert.Equal(t, "failed", w.records[0].Status)
	}
}
