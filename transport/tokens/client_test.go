package tokens_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport/tokens"
)

// letters is a tokenizer whose ids are the bytes of all contents; it can be made to
// wait or to fail.
type letters struct {
	asked atomic.Int64
	wait  func()
	err   error
}

func (l *letters) Tokens(_ context.Context, _ string, body []byte) ([]uint32, error) {
	l.asked.Add(1)
	if l.wait != nil {
		l.wait()
	}
	if l.err != nil {
		return nil, l.err
	}
	var ids []uint32
	for _, part := range strings.Split(string(body), `"content":"`)[1:] {
		text, _, _ := strings.Cut(part, `"`)
		for _, b := range []byte(text) {
			ids = append(ids, uint32(b))
		}
	}
	return ids, nil
}

// chat is a request with messages of these contents.
func chat(contents ...string) []byte {
	var messages []string
	for _, c := range contents {
		messages = append(messages, fmt.Sprintf(`{"role":"user","content":"%s"}`, c))
	}
	return []byte(`{"model":"m","temperature":0,"messages":[` + strings.Join(messages, ",") + `]}`)
}

const path = "/v1/chat/completions"

func newClient(t *testing.T, config tokens.Config) *tokens.Client {
	c, err := tokens.New(config)
	require.NoError(t, err)
	return c
}

func TestTokens(t *testing.T) {
	c := newClient(t, tokens.Config{Tokenizer: &letters{}, Within: time.Minute})
	ids, rest := c.Tokens(t.Context(), path, chat("who are you?"))
	require.Equal(t, []uint32{'w', 'h', 'o', ' ', 'a', 'r', 'e', ' ', 'y', 'o', 'u', '?'}, ids)
	require.Zero(t, rest)
	for _, body := range []string{"", "no JSON", `{"messages":[]}`, `{"prompt":""`, `{"messages":[{"content":[{"type":"image_url"}]}]}`, `{"messages":[7]}`} {
		ids, _ := c.Tokens(t.Context(), path, []byte(body))
		require.Empty(t, ids, body)
	}
}

// The same prompt is tokenized once, whatever else is in the request; a different prompt anew.
func TestPromptsAreRemembered(t *testing.T) {
	l := &letters{}
	c := newClient(t, tokens.Config{Tokenizer: l, Within: time.Minute})
	ask := func(body []byte) {
		ids, rest := c.Tokens(t.Context(), path, body)
		require.NotEmpty(t, ids)
		require.Zero(t, rest)
	}
	ask(chat("hello"))
	ask(chat("hello"))
	ask([]byte(strings.Replace(string(chat("hello")), `"temperature":0`, `"temperature":1,"max_tokens":5`, 1)))
	require.Equal(t, int64(1), l.asked.Load())
	for i, change := range []string{`"tools":[]`, `"chat_template":"x"`, `"model":"n"`, `"documents":[1]`, `"reasoning_effort":"low"`} {
		ask([]byte(strings.Replace(string(chat("hello")), `"temperature":0`, change, 1)))
		require.Equal(t, int64(2+i), l.asked.Load(), change)
	}
	ask(chat("hell", "o"))
	require.Equal(t, int64(7), l.asked.Load())
	require.Equal(t, uint64(2), c.Stats().Hits)
}

// A request that can't wait gets the known head of the conversation; a late answer is
// remembered for the next turn.
func TestLateAnswers(t *testing.T) {
	release := make(chan struct{})
	l := &letters{}
	c := newClient(t, tokens.Config{Tokenizer: l, Within: time.Millisecond})
	require.Eventually(t, func() bool { ids, _ := c.Tokens(t.Context(), path, chat("one")); return len(ids) == 3 }, 30*time.Second, time.Millisecond)
	l.wait = func() { <-release }
	body := chat("one", "two")
	ids, rest := c.Tokens(t.Context(), path, body)
	require.Equal(t, []uint32{'o', 'n', 'e'}, ids)
	require.Equal(t, len(`{"role":"user","content":"two"}`), rest)

	ids, _ = c.Tokens(t.Context(), path, chat("something else"))
	require.Empty(t, ids)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	ids, _ = c.Tokens(gone, path, chat("something else again"))
	require.Empty(t, ids)
	close(release)
	require.Eventually(t, func() bool { ids, _ := c.Tokens(t.Context(), path, body); return len(ids) == 6 }, 30*time.Second, time.Millisecond)
	s := c.Stats()
	require.GreaterOrEqual(t, s.Late, uint64(3))
	require.GreaterOrEqual(t, s.Heads, uint64(1))
	require.Equal(t, uint64(4), s.Asked)
}

// Concurrent requests with one prompt share one call.
func TestCallsAreShared(t *testing.T) {
	release := make(chan struct{})
	l := &letters{wait: func() { <-release }}
	c := newClient(t, tokens.Config{Tokenizer: l, Within: time.Minute})
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			ids, _ := c.Tokens(t.Context(), path, chat("same"))
			assert.Len(t, ids, 4)
		})
	}
	require.Eventually(t, func() bool { return c.Stats().Shared == 19 }, 30*time.Second, time.Millisecond)
	close(release)
	group.Wait()
	require.Equal(t, int64(1), l.asked.Load())
}

// A failing tokenizer is left alone for a while, longer each time; one that refuses a
// client's prompt is not.
func TestRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &letters{err: errors.New("down")}
		c := newClient(t, tokens.Config{Tokenizer: l, Within: time.Minute, RestAfter: 3, RestFor: time.Second})
		n := 0
		ask := func() {
			n++
			c.Tokens(t.Context(), path, chat(fmt.Sprint(n)))
		}
		for range 10 {
			ask()
		}
		require.Equal(t, int64(3), l.asked.Load())
		time.Sleep(time.Second)
		ask()
		ask()
		require.Equal(t, int64(4), l.asked.Load())
		time.Sleep(time.Second)
		ask()
		require.Equal(t, int64(4), l.asked.Load(), "two seconds this time")
		time.Sleep(time.Second)
		l.err = nil
		ask()
		ask()
		require.Equal(t, int64(6), l.asked.Load())
		l.err = tokens.ErrNoPrompt
		for range 10 {
			ask()
		}
		require.Equal(t, int64(16), l.asked.Load())
		l.err, l.wait = nil, func() { panic("a bug") }
		for range 10 {
			ask()
		}
		require.Equal(t, int64(19), l.asked.Load(), "a panic is a failure")
	})
}

// engine answers as engines do.
func engine(t *testing.T, answers map[string]string) (string, *[]string) {
	var mu sync.Mutex
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		mu.Lock()
		asked = append(asked, r.Method+" "+r.URL.Path+" "+string(body))
		mu.Unlock()
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s.URL, &asked
}

// The answers are those of vLLM's GenerateRequest (vllm-project/vllm#39819), of its
// /tokenize, and of llama.cpp.
func TestEngines(t *testing.T) {
	body := chat("hello")
	t.Run("render", func(t *testing.T) {
		url, asked := engine(t, map[string]string{
			"/v1/chat/completions/render": `{"request_id":"chatcmpl-1","token_ids":[8948,198],"features":null,"sampling_params":{"temperature":0.7}}`,
			"/v1/completions/render":      `[{"request_id":"cmpl-1","token_ids":[1,2,3]}]`,
		})
		e := tokens.Rendering(url, nil)
		ids, err := e.Tokens(t.Context(), path, body)
		require.NoError(t, err)
		require.Equal(t, []uint32{8948, 198}, ids)
		ids, err = e.Tokens(t.Context(), "/v1/completions/", []byte(`{"prompt":"x"}`))
		require.NoError(t, err)
		require.Equal(t, []uint32{1, 2, 3}, ids)
		require.Equal(t, []string{"POST /v1/chat/completions/render " + string(body), `POST /v1/completions/render {"prompt":"x"}`}, *asked)
		_, err = e.Tokens(t.Context(), "/v1/embeddings", body)
		require.ErrorIs(t, err, tokens.ErrNoPrompt)
	})
	t.Run("tokenize", func(t *testing.T) {
		url, asked := engine(t, map[string]string{"/tokenize": `{"count":3,"max_model_len":4096,"tokens":[5,6,7]}`})
		e := tokens.Rendering(url, nil)
		for range 2 {
			ids, err := e.Tokens(t.Context(), path, body)
			require.NoError(t, err)
			require.Equal(t, []uint32{5, 6, 7}, ids)
		}
		require.Len(t, *asked, 3, "it is remembered that there is no render")
	})
	t.Run("llama.cpp", func(t *testing.T) {
		url, asked := engine(t, map[string]string{"/apply-template": `{"prompt":"<s>hello"}`, "/tokenize": `{"tokens":[1,15043]}`})
		e := tokens.Llama(url, nil)
		ids, err := e.Tokens(t.Context(), path, body)
		require.NoError(t, err)
		require.Equal(t, []uint32{1, 15043}, ids)
		require.Equal(t, []string{"POST /apply-template " + string(body), `POST /tokenize {"add_special":true,"content":"\u003cs\u003ehello","parse_special":true}`}, *asked)
	})
}

// A request that can't wait gets its body back: the call continues with a copy.
func TestBodiesAreCopied(t *testing.T) {
	release := make(chan struct{})
	c := newClient(t, tokens.Config{Tokenizer: &letters{wait: func() { <-release }}, Within: time.Nanosecond})
	body := chat("right")
	c.Tokens(t.Context(), path, body)
	copy(body, chat("wrong"))
	close(release)
	var ids []uint32
	require.Eventually(t, func() bool { ids, _ = c.Tokens(t.Context(), path, chat("right")); return ids != nil }, 30*time.Second, time.Millisecond)
	require.Equal(t, []uint32{'r', 'i', 'g', 'h', 't'}, ids)
}

// After a success the next rest is short again.
func TestRestsBeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &letters{err: errors.New("down")}
		c := newClient(t, tokens.Config{Tokenizer: l, Within: time.Minute, RestAfter: 1, RestFor: time.Second})
		ask := func(i int) { c.Tokens(t.Context(), path, chat(fmt.Sprint(i))) }
		ask(1)
		time.Sleep(time.Second)
		ask(2)
		require.Equal(t, time.Now().Add(2*time.Second), c.Stats().RestUntil)
		time.Sleep(2 * time.Second)
		l.err = nil
		ask(3)
		l.err = errors.New("down")
		ask(4)
		require.Equal(t, time.Now().Add(time.Second), c.Stats().RestUntil)
	})
}
