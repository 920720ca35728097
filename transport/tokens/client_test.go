package tokens_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/rig"
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

func newClient(config tokens.Config) *tokens.Client { return rig.Must(tokens.New(config)) }

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

// vLLM 0.32.0 renders prompts of each API if it is started with --enable-scale-out; without it,
// and before, chats and completions are tokenized elsewhere.
func TestEngines(t *testing.T) {
	body := chat("hello")
	ids := func(e tokens.Tokenizer, path string) []uint32 { return rig.Must(e.Tokens(t.Context(), path, body)) }
	t.Run("render", func(t *testing.T) {
		s := httptest.NewServer(rig.VLLM("scale_out/render_chat", "scale_out/render_completions", "scale_out/render_messages", "scale_out/render_responses"))
		defer s.Close()
		e := tokens.Rendering(s.URL+"/", nil)
		require.Equal(t, []uint32{0, 2, 62, 270, 226, 779, 305, 468, 372, 19, 1, 3, 45, 337, 442, 1, 4}, ids(e, path))
		require.Equal(t, []uint32{287, 302}, ids(e, "/v1/completions/"))
		require.Equal(t, []uint32{0, 3, 45, 337, 442, 1, 4}, ids(e, "/v1/messages"))
		require.Equal(t, []uint32{0, 3, 45, 337, 442, 1, 4}, ids(e, "/v1/responses"))
		_, err := e.Tokens(t.Context(), "/v1/embeddings", body)
		require.ErrorIs(t, err, tokens.ErrNoPrompt)
	})
	for name, pages := range map[string][]string{
		"render is switched off": {"render_chat", "render_messages", "tokenize_chat"}, "there is no render": {"tokenize_chat"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			vllm := rig.VLLM(pages...)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				sent, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, body, sent)
				asked = append(asked, r.URL.Path)
				vllm.ServeHTTP(w, r)
			}))
			defer s.Close()
			e := tokens.Rendering(s.URL, nil)
			_, err := e.Tokens(t.Context(), "/v1/messages", body)
			require.ErrorIs(t, err, tokens.ErrNoPrompt)
			for range 2 {
				require.Equal(t, []uint32{0, 2, 62, 270, 226, 779, 305, 468, 372, 19, 1, 3, 45, 337, 442, 1, 4}, ids(e, path))
			}
			_, err = e.Tokens(t.Context(), "/v1/responses", body)
			require.ErrorIs(t, err, tokens.ErrNoPrompt)
			require.Equal(t, []string{"/v1/messages/render", path + "/render", "/tokenize", "/tokenize"}, asked)
		})
	}
	t.Run("llama.cpp", func(t *testing.T) {
		url, asked := engine(t, map[string]string{"/apply-template": `{"prompt":"<s>hello"}`, "/tokenize": `{"tokens":[1,15043]}`})
		require.Equal(t, []uint32{1, 15043}, ids(tokens.Llama(url+"/", nil), path))
		require.Equal(t, []string{"POST /apply-template " + string(body), `POST /tokenize {"add_special":true,"content":"\u003cs\u003ehello","parse_special":true}`}, *asked)
		_, err := tokens.Llama(url, nil).Tokens(t.Context(), "/completion", []byte(`{"prompt":"mine","Prompt":"another's"}`))
		require.NoError(t, err)
		require.Contains(t, (*asked)[2], `"content":"mine"`, "as the engine reads it")
	})
}

// A request that can't wait gets its body back: the call continues with a copy.
func TestBodiesAreCopied(t *testing.T) {
	release := make(chan struct{})
	c := newClient(tokens.Config{Tokenizer: &letters{wait: func() { <-release }}, Within: time.Nanosecond})
	body := chat("right")
	c.Tokens(t.Context(), path, body)
	copy(body, chat("wrong"))
	close(release)
	var ids []uint32
	require.Eventually(t, func() bool { ids, _ = c.Tokens(t.Context(), path, chat("right")); return ids != nil }, 30*time.Second, time.Millisecond)
	require.Equal(t, []uint32{'r', 'i', 'g', 'h', 't'}, ids)
}
