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
		assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
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
			"/v1/messages/render":         `{"request_id":"chatcmpl-2","token_ids":[0,3]}`,
			"/v1/responses/render":        `{"request_id":"resp_3","token_ids":[0,4]}`,
		})
		e := tokens.Rendering(url, nil)
		ids, err := e.Tokens(t.Context(), path, body)
		require.NoError(t, err)
		require.Equal(t, []uint32{8948, 198}, ids)
		ids, err = e.Tokens(t.Context(), "/v1/completions/", []byte(`{"prompt":"x"}`))
		require.NoError(t, err)
		require.Equal(t, []uint32{1, 2, 3}, ids)
		require.Equal(t, []string{"POST /v1/chat/completions/render " + string(body), `POST /v1/completions/render {"prompt":"x"}`}, *asked)
		for path, want := range map[string]uint32{"/v1/messages": 3, "/v1/responses": 4} {
			ids, err = e.Tokens(t.Context(), path, body)
			require.NoError(t, err)
			require.Equal(t, []uint32{0, want}, ids)
		}
		_, err = e.Tokens(t.Context(), "/v1/embeddings", body)
		require.ErrorIs(t, err, tokens.ErrNoPrompt)
	})
	t.Run("render is switched off", func(t *testing.T) { // vLLM 0.32 without --enable-scale-out
		var asked []string
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Path)
			if r.URL.Path != "/tokenize" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			_, _ = io.WriteString(w, `{"tokens":[5]}`)
		}))
		defer s.Close()
		e := tokens.Rendering(s.URL, nil)
		_, err := e.Tokens(t.Context(), "/v1/messages", body)
		require.ErrorIs(t, err, tokens.ErrNoPrompt)
		for range 2 {
			ids, err := e.Tokens(t.Context(), path, body)
			require.NoError(t, err)
			require.Equal(t, []uint32{5}, ids)
		}
		_, err = e.Tokens(t.Context(), "/v1/responses", body)
		require.ErrorIs(t, err, tokens.ErrNoPrompt)
		require.Equal(t, []string{"/v1/messages/render", path + "/render", "/tokenize", "/tokenize"}, asked)
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
