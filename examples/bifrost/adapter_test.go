package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/maximhq/bifrost/core/providers/openai"
	"github.com/maximhq/bifrost/core/schemas"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfig(t *testing.T) {
	assert.Equal(t, "transport.Config.Router", rig.Field(NewAdapter(AdapterConfig{})))
}

func status(code int) fault {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"error":{"message":"as asked","type":"x"}}`)
	}
}

func events(lines ...string) fault {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, l := range lines {
			_, _ = io.WriteString(w, "data: "+l+"\n\n")
		}
	}
}

const (
	word   = `{"choices":[{"index":0,"delta":{"content":"Hello"}}]}`
	stop   = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	counts = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}`
)

// drop closes the connection without any response.
func drop(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// severed closes the connection in the middle of a stream.
func severed(w http.ResponseWriter, in *http.Request) {
	events(word)(w, in)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// Where a request is sent, how each account ends, and what the client gets.
func TestAttempts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		faults map[string]fault
		stream bool
		want   string // of the accounts
		err    string // as the client sees it; empty: none
	}{
		{"served", nil, false, "a completed", ""},
		{"served, stream", nil, true, "a completed", ""},
		{"500, then served", map[string]fault{"a": status(500)}, false, "a failed, b completed", ""},
		{"500, then served, stream", map[string]fault{"a": status(500)}, true, "a failed, b completed", ""},
		{"503 twice, then served", map[string]fault{"a": status(503), "b": status(503)}, true, "a failed, b failed, c completed", ""},
		{"429, then served", map[string]fault{"a": status(429)}, true, "a refused, b completed", ""},
		{"500 from all", map[string]fault{"a": status(500), "b": status(502), "c": status(503)}, false, "a failed, b failed, c failed", "500 as asked"},
		{"500 from all, stream", map[string]fault{"a": status(500), "b": status(502), "c": status(503)}, true, "a failed, b failed, c failed", "500 as asked"},
		{"the client's fault", map[string]fault{"a": status(400)}, false, "a refused", "400 as asked"},
		{"the client's fault, stream", map[string]fault{"a": status(400)}, true, "a refused", "400 as asked"},
		{"no answer, then served", map[string]fault{"a": drop}, false, "a failed, b completed", ""},
		{"no answer, then served, stream", map[string]fault{"a": drop}, true, "a failed, b completed", ""},
		{"begins with an error, then served", map[string]fault{"a": events(`{"error":{"message":"no"}}`)}, true, "a failed, b completed", ""},
		{"no JSON, then served", map[string]fault{"a": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{") }}, false, "a failed, b completed", ""},
		{"an error in the middle", map[string]fault{"a": events(word, `{"error":{"message":"no"}}`)}, true, "a failed", "0 no"},
		// Bifrost takes the end of a connection for the end of the answer.
		{"broken off in the middle", map[string]fault{"a": severed}, true, "a failed", ""},
		{"ends in the middle", map[string]fault{"a": events(word)}, true, "a failed", ""},
		{"ends with its reason", map[string]fault{"a": events(word, stop)}, true, "a completed", ""},
		{"ends with its usage", map[string]fault{"a": events(word, counts)}, true, "a completed", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newSetup(t, nil)
			for id, f := range tc.faults {
				w.breaks(f, id)
			}
			text, err := w.ask(t, nil, chat(16, user("Hi!")), tc.stream)
			if tc.err == "" {
				require.NoError(t, err)
				assert.NotEmpty(t, text)
			} else {
				require.ErrorContains(t, err, tc.err)
			}
			assert.Equal(t, tc.want, w.said(t))
		})
	}
}

// An unreachable server has cost nothing, and the retry is free.
func TestUnreachable(t *testing.T) {
	w := newSetup(t, nil)
	w.servers["a"].Close()
	for range 4 {
		w.serves(t, nil, chat(16, user("Hi!")), true)
	}
	assert.Equal(t, "a failed, b completed, b completed, b completed, b completed", w.said(t), "it is avoided at once")
}

// For each API, the lease learns of the first token, the usage and the cache.
func TestWhatIsHeard(t *testing.T) {
	for _, stream := range []bool{false, true} {
		text, n := strings.Repeat("tell me more about it, ", 50), 20
		for name, send := range map[string]func(w *setup, ctx *schemas.BifrostContext) *schemas.BifrostError{
			"chat": func(w *setup, ctx *schemas.BifrostContext) *schemas.BifrostError {
				return either(ctx, chat(n, user(text)), stream, w.ChatCompletionRequest, w.ChatCompletionStreamRequest)
			},
			"completion": func(w *setup, ctx *schemas.BifrostContext) *schemas.BifrostError {
				req := &schemas.BifrostTextCompletionRequest{Provider: schemas.VLLM, Model: "m",
					Input: &schemas.TextCompletionInput{PromptStr: &text}, Params: &schemas.TextCompletionParameters{MaxTokens: &n}}
				return either(ctx, req, stream, w.TextCompletionRequest, w.TextCompletionStreamRequest)
			},
			"responses": func(w *setup, ctx *schemas.BifrostContext) *schemas.BifrostError {
				var r openai.OpenAIResponsesRequest
				_ = json.Unmarshal([]byte(`{"model":"m","max_output_tokens":20,"input":"`+text+`"}`), &r)
				req := r.ToBifrostResponsesRequest(ctx)
				req.Provider, req.Model = schemas.VLLM, "m"
				return either(ctx, req, stream, w.ResponsesRequest, w.ResponsesStreamRequest)
			},
		} {
			t.Run(name, func(t *testing.T) {
				w := newSetup(t, nil)
				for range 2 {
					ctx, _ := newContext(t)
					require.Nil(t, send(w, ctx))
				}
				assert.Equal(t, "a completed, a completed", w.said(t))
				ends := w.heard.Ends()
				first, second := ends[0].Outcome, ends[1].Outcome
				assert.Equal(t, 20, first.OutputTokens)
				assert.Greater(t, first.InputTokens, 250)
				assert.True(t, first.HasCachedTokens)
				assert.Zero(t, first.CachedTokens)
				assert.Greater(t, second.CachedTokens, 200)
				assert.Greater(t, ends[1].Matched, 200, "the index knew")
				if stream {
					assert.True(t, ends[0].Token && ends[1].Token)
				}
			})
		}
	}
}

// either sends a request for a whole response, or for a stream, which it reads.
func either[Q, A any](
	ctx *schemas.BifrostContext, req Q, stream bool, whole func(*schemas.BifrostContext, Q) (A, *schemas.BifrostError),
	chunked func(*schemas.BifrostContext, Q) (chan *schemas.BifrostStreamChunk, *schemas.BifrostError),
) *schemas.BifrostError {
	if !stream {
		_, failure := whole(ctx, req)
		return failure
	}
	chunks, failure := chunked(ctx, req)
	if failure == nil {
		drain(chunks)
	}
	return failure
}

func drain(chunks chan *schemas.BifrostStreamChunk) {
	for range chunks {
	}
}

// A conversation matches what a response has appended to it when it comes back.
func TestConversationsGoOn(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := newSetup(t, nil)
		ctx, _ := newContext(t)
		question := user(strings.Repeat("a question of some length ", 20))
		answer := w.serves(t, ctx, chat(400, question), stream)
		said := schemas.ChatMessage{Role: schemas.ChatMessageRoleAssistant, Content: &schemas.ChatMessageContent{ContentStr: &answer}}
		w.serves(t, nil, chat(16, question, said, user("and then?")), stream)
		w.idle(t)
		assert.Greater(t, w.heard.Ends()[1].Matched, 400, "the answer is 400 tokens, the question 130")
		assert.Greater(t, w.heard.Ends()[1].Outcome.CachedTokens, 400)
	}
}

// Streams, clients that leave at any moment, errors and broken connections, all at once: nothing stays open.
func TestNothingIsLeftOpen(t *testing.T) {
	w := newSetup(t, nil)
	over := make(chan bool)
	t.Cleanup(func() { close(over) })
	for _, id := range []string{"a", "b"} {
		w.breaks(func(rw http.ResponseWriter, in *http.Request) {
			body, err := io.ReadAll(in.Body)
			if err != nil {
				return
			}
			switch {
			case bytes.Contains(body, []byte("fail")):
				status(500)(rw, in)
			case bytes.Contains(body, []byte("busy")):
				status(429)(rw, in)
			case bytes.Contains(body, []byte("drop")):
				drop(rw, in)
			case bytes.Contains(body, []byte("sever")):
				severed(rw, in)
			case bytes.Contains(body, []byte("hang")):
				events(word)(rw, in)
				_ = http.NewResponseController(rw).Flush()
				<-over
			case bytes.Contains(body, []byte("silence")):
				<-over
			default:
				in.Body = io.NopCloser(bytes.NewReader(body))
				w.models[id].ServeHTTP(rw, in)
			}
		}, id)
	}
	var group sync.WaitGroup
	for i := range 10 {
		for _, kind := range []string{"serve", "fail", "busy", "drop", "sever", "hang", "silence", "leave", "nobody"} {
			group.Go(func() {
				ctx, cancel := newContext(t)
				defer cancel()
				leaves := kind == "hang" || kind == "silence" || kind == "nobody"
				if leaves { // at some moment
					time.AfterFunc(time.Duration(i)*3*time.Millisecond, cancel)
				}
				if i%3 == 0 && kind != "hang" {
					_, _ = w.ChatCompletionRequest(ctx, chat(16, user(kind)))
					return
				}
				chunks, failure := w.ChatCompletionStreamRequest(ctx, chat(16, user(kind)))
				if failure != nil {
					return
				}
				if kind == "leave" {
					<-chunks
					cancel()
				}
				drain(chunks)
			})
		}
	}
	group.Wait()
	said := w.said(t)
	for _, how := range []string{"completed", "canceled", "failed"} {
		assert.Contains(t, said, how)
	}
}

// A client that leaves before any hook is called still ends its account.
func TestAClientThatIsGone(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := newSetup(t, nil)
		reached, gone := make(chan bool, 1), make(chan bool)
		t.Cleanup(func() { close(gone) })
		w.breaks(func(_ http.ResponseWriter, in *http.Request) {
			reached <- true
			<-gone
		}, "a")
		ctx, cancel := newContext(t)
		done := make(chan error, 1)
		go func() {
			_, err := w.ask(t, ctx, chat(16, user("Hi!")), stream)
			done <- err
		}()
		<-reached
		cancel()
		require.Error(t, <-done)
		assert.Equal(t, "a canceled", w.said(t), "while the server still works")
	}
}

// Requests for which Bifrost asks for no key, or runs no plugins, are left alone.
func TestWhatIsLeftAlone(t *testing.T) {
	for key, value := range map[any]any{schemas.BifrostContextKeyAPIKeyID: "c", schemas.BifrostContextKeySkipPluginPipeline: true} {
		w := newSetup(t, nil)
		ctx, _ := newContext(t)
		ctx.SetValue(key, value)
		w.serves(t, ctx, chat(16, user("Hi!")), true)
		assert.Empty(t, w.said(t), key)
	}
}

// Keys of other providers are chosen as without the adapter.
func TestOtherProviders(t *testing.T) {
	w := newSetup(t, nil)
	ctx, _ := newContext(t)
	k := rig.Must(w.adapter.SelectKey(ctx, []schemas.Key{{ID: "k"}}, schemas.OpenAI, "gpt"))
	assert.Equal(t, "k", k.ID)

	req := &schemas.BifrostRequest{RequestType: schemas.ChatCompletionRequest, ChatRequest: &schemas.BifrostChatRequest{
		Provider: schemas.OpenAI, Model: "gpt", Fallbacks: []schemas.Fallback{{Provider: schemas.VLLM, Model: "m"}, {Provider: schemas.Groq, Model: "g"}}}}
	require.NoError(t, w.adapter.PreRequestHook(ctx, req))
	m := schemas.Fallback{Provider: schemas.VLLM, Model: "m"}
	assert.Equal(t, []schemas.Fallback{m, m, m, {Provider: schemas.Groq, Model: "g"}}, req.ChatRequest.Fallbacks)
	_, cut, err := w.adapter.PreLLMHook(ctx, req)
	require.NoError(t, err)
	assert.Nil(t, cut)
	_, _, err = w.adapter.PostLLMHook(ctx, nil, &schemas.BifrostError{})
	require.NoError(t, err)
	assert.Empty(t, w.said(t))
}

// Only a server that has the model, and whose key Bifrost offers, is used.
func TestKeys(t *testing.T) {
	w := newSetup(t, func(c *endpick.Config, _ *AdapterConfig) {
		c.Endpoints[0].Models = []string{"other"}
		c.Endpoints[2].Adapters = []string{"lora"}
	})
	account := &Account{Router: w.router, Provider: schemas.ProviderConfig{NetworkConfig: schemas.NetworkConfig{MaxRetries: 3}}}
	keys := rig.Must(account.GetKeysForProvider(t.Context(), schemas.VLLM))
	require.Len(t, keys, 3)
	assert.Equal(t, []schemas.WhiteList{{"other"}, {"*"}, {"lora"}}, []schemas.WhiteList{keys[0].Models, keys[1].Models, keys[2].Models})

	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "d", Address: "10.0.0.1:8000"}))
	lease := rig.Must(w.router.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: "b"}}))
	defer lease.Done(endpick.Outcome{})
	require.NoError(t, w.router.Remove("b"))
	keys = rig.Must(account.GetKeysForProvider(t.Context(), schemas.VLLM))
	var urls []string
	for _, k := range keys {
		urls = append(urls, k.ID+" "+k.VLLMKeyConfig.URL.GetValue())
	}
	assert.ElementsMatch(t, []string{"a " + w.servers["a"].URL, "c " + w.servers["c"].URL, "d http://10.0.0.1:8000"}, urls)
	require.Error(t, rig.Err(account.GetKeysForProvider(t.Context(), schemas.OpenAI)))
	require.Error(t, rig.Err(account.GetConfigForProvider(schemas.OpenAI)))
	config := rig.Must(account.GetConfigForProvider(schemas.VLLM))
	assert.True(t, config.NetworkConfig.AllowPrivateNetwork)
	assert.Zero(t, config.NetworkConfig.MaxRetries)
}

func TestKeysThatAreNotOffered(t *testing.T) {
	w := newSetup(t, nil)
	ctx, _ := newContext(t)
	req := &schemas.BifrostRequest{RequestType: schemas.ChatCompletionRequest, ChatRequest: chat(16, user("Hi!"))}
	_, cut, err := w.adapter.PreLLMHook(ctx, req)
	require.NoError(t, err)
	require.Nil(t, cut)
	k := rig.Must(w.adapter.SelectKey(ctx, []schemas.Key{{ID: "c"}, {ID: "x"}}, schemas.VLLM, "m"))
	assert.Equal(t, "c", k.ID)
	// Bifrost has excluded that key and asks for another.
	require.ErrorAs(t, rig.Err(w.adapter.SelectKey(ctx, []schemas.Key{{ID: "x"}}, schemas.VLLM, "m")), new(*endpick.NoEndpointError))
	assert.Equal(t, "c refused", w.said(t))

	ctx, _ = newContext(t)
	req.RequestType = schemas.ChatCompletionStreamRequest
	_, _, err = w.adapter.PreLLMHook(ctx, req)
	require.NoError(t, err)
	rig.Must(w.adapter.SelectKey(ctx, []schemas.Key{{ID: "c"}}, schemas.VLLM, "m"))
	k = rig.Must(w.adapter.SelectKey(ctx, []schemas.Key{{ID: "k"}}, schemas.OpenAI, "gpt"))
	assert.Equal(t, "k", k.ID, "of another provider")
	_, _, err = w.adapter.PostLLMHook(ctx, nil, &schemas.BifrostError{IsBifrostError: true})
	require.NoError(t, err)
	assert.Equal(t, "c refused, c canceled", w.said(t), "the failure is Bifrost's own")
}

// sheds rejects every request.
type sheds struct{}

func (sheds) Admit(*endpick.Request, []endpick.Candidate) error { return errors.New("full") }

// A request that endpick rejects gets the matching status and is not retried.
func TestWhatIsTurnedAway(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*endpick.Config, *AdapterConfig)
		want   string
	}{
		"shed": {func(c *endpick.Config, _ *AdapterConfig) { c.Policy.Admitters = []endpick.Admitter{sheds{}} }, "429 "},
		"bad": {func(_ *endpick.Config, c *AdapterConfig) {
			c.Prepare = func(_ *schemas.BifrostContext, call *transport.Call) { call.Request.Tenant = strings.Repeat("x", 300) }
		}, "400 "},
		"too long": {func(_ *endpick.Config, c *AdapterConfig) { c.MaxBodyBytes = 10 }, "413 "},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := newSetup(t, tc.change)
				_, err := w.ask(t, nil, chat(16, user("Hi!")), stream)
				assert.ErrorContains(t, err, tc.want)
				assert.Empty(t, w.said(t))
			})
		}
	}
}

// The headers that Bifrost keeps count: here a target and a session.
func TestHeaders(t *testing.T) {
	var got endpick.Request
	w := newSetup(t, func(_ *endpick.Config, c *AdapterConfig) {
		c.Prepare = func(_ *schemas.BifrostContext, call *transport.Call) {
			got, call.Request.Exclude = call.Request, []string{"a"}
		}
	})
	ctx, _ := newContext(t)
	ctx.SetValue(schemas.BifrostContextKeyRequestHeaders, map[string]string{"x-slo-ttft-ms": "250", "content-encoding": "gzip"})
	w.serves(t, ctx, chat(16, user("Hi!")), true)
	assert.Equal(t, 250*time.Millisecond, got.SLO.TTFT)
	assert.Equal(t, "m", got.Model)
	assert.Equal(t, "b completed", w.said(t), "the host excludes a")
}

// A data-parallel rank is sent to its own server and to no other.
func TestRanks(t *testing.T) {
	w := newSetup(t, func(c *endpick.Config, _ *AdapterConfig) { c.Endpoints[0].Ranked, c.Endpoints[0].Rank = true, 5 })
	w.breaks(status(503), "a")
	ctx, _ := newContext(t)
	ctx.SetValue(schemas.BifrostContextKeyExtraHeaders, map[string][]string{"X-Kept": {"1"}})
	w.serves(t, ctx, chat(16, user("Hi!")), true)
	assert.Equal(t, []string{"a5", "b"}, w.ranks)
	extra, _ := ctx.Value(schemas.BifrostContextKeyExtraHeaders).(map[string][]string)
	assert.Equal(t, []string{"1"}, extra["X-Kept"])
}

// A context that is reused for several requests belongs to each in turn.
func TestOneContextForSeveralRequests(t *testing.T) {
	w := newSetup(t, nil)
	ctx, _ := newContext(t)
	w.breaks(status(400), "a", "b", "c")
	require.Error(t, rig.Err(w.ask(t, ctx, chat(16, user("Hi!")), false)))
	w.breaks(nil, "a", "b", "c")
	for range 2 {
		w.serves(t, ctx, chat(16, user("Hi!")), false)
	}
	req := &schemas.BifrostRequest{RequestType: schemas.ChatCompletionRequest, ChatRequest: chat(16, user("Hi!"))}
	_, _, err := w.adapter.PreLLMHook(ctx, req)
	require.NoError(t, err)
	rig.Must(w.adapter.SelectKey(ctx, []schemas.Key{{ID: "a"}}, schemas.VLLM, "m"))
	require.NoError(t, w.adapter.PreRequestHook(ctx, req)) // the last one was not heard of again
	assert.Equal(t, "a refused, a completed, a completed, a canceled", w.said(t))
}

// What is read is what the server gets: with parameters that Bifrost does not know, or the client's own body if Bifrost
// sends that.
func TestWhatIsRead(t *testing.T) {
	ctx, _ := newContext(t)
	req := &schemas.BifrostRequest{RequestType: schemas.ChatCompletionRequest, ChatRequest: chat(16, user("Hi!"))}
	req.ChatRequest.RawRequestBody, req.ChatRequest.Params.ExtraParams = []byte(`{"raw":1}`), map[string]any{"best_of": 3}
	for _, raw := range []bool{false, true} {
		ctx.SetValue(schemas.BifrostContextKeyUseRawRequestBody, raw)
		_, _, body, err := wire(ctx, req, "m")
		require.NoError(t, err)
		assert.Equal(t, []bool{!raw, raw}, []bool{strings.Contains(string(body), `"best_of": 3`), string(body) == `{"raw":1}`}, "%s", body)
	}
}

// A request that is not parsed is routed by load; embeddings are parsed.
func TestOtherRequests(t *testing.T) {
	w := newSetup(t, nil)
	w.breaks(func(rw http.ResponseWriter, in *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		answer := `{"results":[{"index":0,"relevance_score":0.5}]}`
		if in.URL.Path == "/v1/embeddings" {
			answer = `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1]}],"model":"m","usage":{"prompt_tokens":7,"total_tokens":7}}`
		}
		_, _ = io.WriteString(rw, answer)
	}, "a")
	text := "some text"
	ctx, _ := newContext(t)
	_, failure := w.EmbeddingRequest(ctx, &schemas.BifrostEmbeddingRequest{Provider: schemas.VLLM, Model: "m", Input: &schemas.EmbeddingInput{Text: &text}})
	require.Nil(t, failure)
	ctx, _ = newContext(t)
	_, failure = w.RerankRequest(ctx, &schemas.BifrostRerankRequest{Provider: schemas.VLLM, Model: "m", Query: text, Documents: []schemas.RerankDocument{{Text: text}}})
	require.Nil(t, failure)
	assert.Equal(t, "a completed, a completed", w.said(t))
	assert.Equal(t, 7, w.heard.Ends()[0].Outcome.InputTokens)

	// A request that the provider does not support counts against no server.
	ctx, _ = newContext(t)
	_, failure = w.SpeechRequest(ctx, &schemas.BifrostSpeechRequest{Provider: schemas.VLLM, Model: "m", Input: &schemas.SpeechInput{Input: text}})
	require.NotNil(t, failure)
	assert.Equal(t, "a completed, a completed, a canceled", w.said(t))
}
