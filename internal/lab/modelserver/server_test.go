package modelserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fast is an engine with steps of 1 ms and 10 µs a prompt token.
func fast(blocks int) engine.Config {
	return engine.Config{Profile: engine.Profile{Name: "test", StepMicros: 1000, TokenMicros: 10}, Blocks: blocks}
}

// start serves on a free port until the test ends.
func start(t *testing.T, config Config) (*Server, string) {
	s := rig.Must(New(config))
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		assert.NoError(t, <-served)
	})
	return s, "http://" + l.Addr().String()
}

func post(t *testing.T, ctx context.Context, url, body string) *http.Response {
	req := rig.Must(http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body)))
	resp := rig.Must(http.DefaultClient.Do(req))
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// reply is what comes at once.
func reply(t *testing.T, url, body string) (r response) {
	resp := post(t, t.Context(), url, body)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&r))
	return r
}

func chatBody(stream bool, maxTokens int, messages ...string) string {
	var list []map[string]string
	for i, content := range messages {
		list = append(list, map[string]string{"role": []string{"user", "assistant"}[i%2], "content": content})
	}
	return encoded(map[string]any{
		"model": DefaultModel, "messages": list, "max_tokens": maxTokens, "stream": stream,
		"stream_options": map[string]bool{"include_usage": true},
	})
}

// events reads a stream to its [DONE].
func events(t *testing.T, r io.Reader) []response {
	var all []response
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			require.Empty(t, lines.Text())
			continue
		}
		if data == "[DONE]" {
			return all
		}
		var e response
		require.NoError(t, json.Unmarshal([]byte(data), &e))
		all = append(all, e)
	}
	require.Fail(t, "the stream broke off", "after %d events: %v", len(all), lines.Err())
	return nil
}

func textOf(all []response, index int) (text string) {
	for _, e := range all {
		for _, c := range e.Choices {
			switch {
			case c.Index != index:
			case c.Delta != nil && c.Delta.Content != nil:
				text += *c.Delta.Content
			case c.Text != nil:
				text += *c.Text
			}
		}
	}
	return text
}

func TestStream(t *testing.T) {
	_, url := start(t, Config{Engine: fast(100)})
	resp := post(t, t.Context(), url+"/v1/chat/completions", chatBody(true, 40, strings.Repeat("abcd", 60)))
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "text/event-stream; charset=utf-8", resp.Header.Get("Content-Type"))
	all := events(t, resp.Body)

	first := all[0].Choices[0].Delta
	require.Equal(t, "assistant", first.Role, "the first chunk has the role")
	require.Empty(t, *first.Content, "and no text")
	require.Len(t, textOf(all, 0), 40*bytesPerToken)

	finish, last := all[len(all)-2], all[len(all)-1]
	require.Equal(t, "length", *finish.Choices[0].FinishReason)
	require.Empty(t, last.Choices)
	// A header of "user" is three tokens, one of "assistant" five; the end of a message is one.
	require.Equal(t, &usage{PromptTokens: 3 + 60 + 1 + 5, CompletionTokens: 40, TotalTokens: 109}, last.Usage)
	for _, e := range all[:len(all)-1] {
		require.Nil(t, e.Usage)
		require.Equal(t, "chat.completion.chunk", e.Object)
	}
	body := strings.Replace(chatBody(true, 3, "hello"), `"include_usage":true`, `"include_usage":false`, 1)
	for _, e := range events(t, post(t, t.Context(), url+"/v1/chat/completions", body).Body) {
		require.NotEmpty(t, e.Choices, "there is no usage, for which nobody asks")
	}
}

// All of it would take minutes; the first tokens come at once.
func TestStreamComesInPieces(t *testing.T) {
	_, url := start(t, Config{Engine: fast(1000), Speed: 0.02})
	resp := post(t, t.Context(), url+"/v1/chat/completions", chatBody(true, 4000, "abcd"))
	lines := bufio.NewScanner(resp.Body)
	var seen []response
	for len(textOf(seen, 0)) < 2*bytesPerToken && lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var e response
			require.NoError(t, json.Unmarshal([]byte(data), &e))
			seen = append(seen, e)
		}
	}
	require.NoError(t, lines.Err())
	require.Less(t, len(textOf(seen, 0)), 4000*bytesPerToken)
	require.NoError(t, resp.Body.Close())
}

func TestNextTurnHitsPromptAndOutput(t *testing.T) {
	_, url := start(t, Config{Engine: fast(1000)})
	ask := func(messages ...string) response {
		return reply(t, url+"/v1/chat/completions", chatBody(false, 50, messages...))
	}
	question := strings.Repeat("What is it? ", 20) // 240 bytes, 60 tokens
	one := ask(question)
	require.Equal(t, 69, one.Usage.PromptTokens)
	require.Equal(t, 0, one.Usage.Details.CachedTokens)
	said := *one.Choices[0].Message.Content
	require.Len(t, said, 200)

	two := ask(question, said, "And then?")
	// The first turn ends with 69 + 50 tokens. The last one generated was never
	// fed back, so 118 are in the cache: seven full blocks of 16.
	require.Equal(t, 112, two.Usage.Details.CachedTokens)
	require.Equal(t, 69+50+1+3+3+1+5, two.Usage.PromptTokens)

	require.Equal(t, said, *ask(question).Choices[0].Message.Content, "the same prompt gives the same text")
	require.NotEqual(t, said, *ask("x" + question).Choices[0].Message.Content)
}

func TestCompletions(t *testing.T) {
	_, url := start(t, Config{Engine: fast(100)})
	t.Run("choices share their prompt", func(t *testing.T) {
		body := `{"model":"demo-8b","prompt":"` + strings.Repeat("word", 40) + `","n":3,"max_tokens":5}`
		reply(t, url+"/v1/completions", body)
		r := reply(t, url+"/v1/completions", body) // which finds the first one's prompt
		require.Len(t, r.Choices, 3)
		seen := map[string]bool{}
		for i, c := range r.Choices {
			require.Equal(t, i, c.Index)
			require.Len(t, *c.Text, 20)
			seen[*c.Text] = true
		}
		require.Len(t, seen, 3, "choices differ")
		// Two full blocks of 16 were cached.
		require.Equal(t, &usage{PromptTokens: 40, CompletionTokens: 15, TotalTokens: 55, Details: promptDetails{32}}, r.Usage)
	})
	t.Run("streams of several choices", func(t *testing.T) {
		all := events(t, post(t, t.Context(), url+"/v1/completions", `{"model":"demo-8b","prompt":"abc","n":3,"max_tokens":5,"stream":true}`).Body)
		for i := range 3 {
			require.Len(t, textOf(all, i), 20)
		}
	})
	t.Run("without max_tokens", func(t *testing.T) {
		r := reply(t, url+"/v1/completions", `{"model":"demo-8b","prompt":"hi"}`)
		require.Equal(t, DefaultOutputTokens, r.Usage.CompletionTokens)
		require.Equal(t, "stop", *r.Choices[0].FinishReason)
	})
}

func TestRefusals(t *testing.T) {
	_, url := start(t, Config{Engine: fast(4)}) // 64 tokens
	for name, c := range map[string]struct {
		path, body, kind string
		status           int
	}{
		"no JSON":             {"chat/completions", `{"model":`, "BadRequestError", 400},
		"no messages":         {"chat/completions", `{"model":"demo-8b"}`, "BadRequestError", 400},
		"content of a number": {"chat/completions", `{"model":"demo-8b","messages":[{"role":"user","content":3}]}`, "BadRequestError", 400},
		"unknown part":        {"chat/completions", `{"model":"demo-8b","messages":[{"role":"user","content":[{"type":"video"}]}]}`, "BadRequestError", 400},
		"other model":         {"chat/completions", `{"model":"gpt","messages":[{"role":"user","content":"hi"}]}`, "NotFoundError", 404},
		"too long a prompt":   {"completions", `{"model":"demo-8b","max_tokens":1,"prompt":"` + strings.Repeat("abcd", 65) + `"}`, "BadRequestError", 400},
		"too long an output":  {"completions", `{"model":"demo-8b","prompt":"hi","max_tokens":2147483647}`, "BadRequestError", 400},
		"no tokens":           {"completions", `{"model":"demo-8b","prompt":"hi","max_tokens":0}`, "BadRequestError", 400},
		"no choice":           {"completions", `{"model":"demo-8b","prompt":"hi","n":0}`, "BadRequestError", 400},
		"too many choices":    {"completions", `{"model":"demo-8b","prompt":"a","n":65}`, "BadRequestError", 400},
		"no prompt":           {"completions", `{"model":"demo-8b"}`, "BadRequestError", 400},
		"empty prompt":        {"completions", `{"model":"demo-8b","prompt":""}`, "BadRequestError", 400},
		"a list of prompts":   {"completions", `{"model":"demo-8b","prompt":["a"]}`, "BadRequestError", 400},
	} {
		t.Run(name, func(t *testing.T) {
			resp := post(t, t.Context(), url+"/v1/"+c.path, c.body)
			require.Equal(t, c.status, resp.StatusCode)
			var r struct {
				Error struct {
					Message, Type string
					Code          int
				}
			}
			require.NoError(t, json.NewDecoder(resp.Body).Decode(&r))
			require.NotEmpty(t, r.Error.Message)
			require.Equal(t, []any{c.kind, c.status}, []any{r.Error.Type, r.Error.Code})
		})
	}
	t.Run("body over the limit", func(t *testing.T) {
		s := rig.Must(New(Config{}))
		defer s.Close()
		r := rig.Must(http.NewRequest(http.MethodPost, "/v1/completions", io.LimitReader(zeros{}, MaxBodyBytes+1)))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAbortFreesTheEngine(t *testing.T) {
	s, url := start(t, Config{Engine: fast(1000)})
	for _, stream := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			resp, err := tryPost(ctx, url, chatBody(stream, 10_000, "a question"))
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			assert.ErrorIs(t, err, context.Canceled)
		}()
		require.Eventually(t, func() bool { return s.Load().Running == 1 }, 30*time.Second, time.Millisecond)
		cancel()
		<-gone
		require.Eventually(t, func() bool {
			l := s.Load()
			return l.Running == 0 && l.Waiting == 0 && l.KVUsage == 0
		}, 30*time.Second, time.Millisecond)
	}
	require.Zero(t, s.Totals().Completed)
}

func TestParallelStreams(t *testing.T) {
	s, url := start(t, Config{Engine: fast(200), Speed: 4}) // too small for all at once
	const clients, turns = 12, 3
	var group sync.WaitGroup
	for client := range clients {
		group.Go(func() {
			messages := []string{fmt.Sprintf("client %d asks", client)}
			for turn := range turns {
				if client%4 == 3 { // leaves in mid-stream
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(turn+1)*3*time.Millisecond)
					if resp, err := tryPost(ctx, url, chatBody(true, 3000, messages...)); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
					}
					cancel()
					continue
				}
				resp, err := tryPost(t.Context(), url, chatBody(true, 100, messages...))
				if !assert.NoError(t, err) {
					return
				}
				all := events(t, resp.Body)
				_ = resp.Body.Close()
				text := textOf(all, 0)
				assert.Len(t, text, 400)
				messages = append(messages, text, "and then?")
			}
		})
	}
	group.Wait()
	require.Eventually(t, func() bool { return s.Load().KVUsage == 0 }, 30*time.Second, time.Millisecond)
	// A request whose client has left may be complete before the server notices, if the machine stalls for long.
	completed := int(s.Totals().Completed)
	require.GreaterOrEqual(t, completed, 9*turns)
	require.LessOrEqual(t, completed, clients*turns)
}

func tryPost(ctx context.Context, url, body string) (*http.Response, error) {
	req := rig.Must(http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body)))
	return http.DefaultClient.Do(req)
}

func TestSpeed(t *testing.T) {
	// 200 steps of 1 ms, ten times as fast: 20 ms. A busy machine only adds to that.
	_, url := start(t, Config{Engine: fast(100), Speed: 10})
	begin := time.Now()
	require.NoError(t, rig.Err(io.Copy(io.Discard, post(t, t.Context(), url+"/v1/chat/completions", chatBody(false, 200, "hi")).Body)))
	require.GreaterOrEqual(t, time.Since(begin), 20*time.Millisecond)
}

func TestCloseBreaksStreams(t *testing.T) {
	s, url := start(t, Config{Engine: fast(1000)})
	resp := post(t, t.Context(), url+"/v1/chat/completions", chatBody(true, 10_000, "a question"))
	waiting := make(chan error, 1)
	go func() {
		_, err := tryPost(t.Context(), url, chatBody(false, 10_000, "another"))
		waiting <- err
	}()
	require.Eventually(t, func() bool { return s.Load().Running == 2 }, 30*time.Second, time.Millisecond)
	require.NoError(t, s.Close())
	require.Error(t, rig.Err(io.Copy(io.Discard, resp.Body)), "not a clean end")
	require.Error(t, <-waiting)
	require.NoError(t, s.Close(), "twice is no harm")

	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/health", nil),
		httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(chatBody(true, 1, "too late"))),
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
	}
}

func TestMetricsHealthModels(t *testing.T) {
	s, url := start(t, Config{Engine: fast(100), Model: `a"b\c`})
	get := func(path string) string {
		resp := rig.Must(http.Get(url + path))
		defer resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
		return string(rig.Must(io.ReadAll(resp.Body)))
	}
	require.Empty(t, get("/health"))
	require.Contains(t, get("/v1/models"), `"id":"a\"b\\c"`)
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":4}`, `a"b\c`, strings.Repeat("abcd", 32))
	for range 2 {
		reply(t, url+"/v1/completions", body)
	}
	require.Eventually(t, func() bool { return s.Load().Running == 0 }, 30*time.Second, time.Millisecond)
	metrics := get("/metrics")
	for _, line := range []string{
		`# TYPE vllm:num_requests_waiting gauge`,
		`vllm:num_requests_waiting{engine="0",model_name="a\"b\\c"} 0`,
		`vllm:num_requests_running{engine="0",model_name="a\"b\\c"} 0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="a\"b\\c"} 0`,
		`# TYPE vllm:prefix_cache_queries_total counter`,
		`vllm:prefix_cache_queries_total{engine="0",model_name="a\"b\\c"} 64`,
		`vllm:prefix_cache_hits_total{engine="0",model_name="a\"b\\c"} 16`, // the last token is computed again
		`vllm:generation_tokens_total{engine="0",model_name="a\"b\\c"} 8`,
	} {
		require.Contains(t, metrics, line+"\n")
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{Speed: -1}, {Speed: math.NaN()}, {Speed: math.Inf(1)}, {Engine: engine.Config{Blocks: -1}}} {
		require.ErrorContains(t, rig.Err(New(c)), "modelserver: ")
	}
}

func TestEndOfTime(t *testing.T) {
	s, url := start(t, Config{Engine: fast(100)})
	s.driver.mu.Lock()
	s.driver.epoch = time.Now().Add(-engine.MaxTime)
	s.driver.mu.Unlock()
	s.driver.poke()
	<-s.driver.ended
	resp := rig.Must(tryPost(t.Context(), url, chatBody(false, 1, "hello")))
	defer resp.Body.Close()
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
}
