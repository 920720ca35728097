package tokens_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/tokens"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
		asked = append(asked, r.Method+" "+r.URL.Path+" "+string(body))
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
		require.ErrorIs(t, rig.Err(e.Tokens(t.Context(), "/v1/embeddings", body)), tokens.ErrNoPrompt)
	})
	for name, pages := range map[string][]string{
		"render is switched off": {"render_chat", "render_messages", "tokenize_chat"}, "there is no render": {"tokenize_chat"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			vllm := rig.VLLM(pages...)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, body, rig.Must(io.ReadAll(r.Body)))
				asked = append(asked, r.URL.Path)
				vllm.ServeHTTP(w, r)
			}))
			defer s.Close()
			e := tokens.Rendering(s.URL, nil)
			require.ErrorIs(t, rig.Err(e.Tokens(t.Context(), "/v1/messages", body)), tokens.ErrNoPrompt)
			for range 2 {
				require.Equal(t, []uint32{0, 2, 62, 270, 226, 779, 305, 468, 372, 19, 1, 3, 45, 337, 442, 1, 4}, ids(e, path))
			}
			require.ErrorIs(t, rig.Err(e.Tokens(t.Context(), "/v1/responses", body)), tokens.ErrNoPrompt)
			require.Equal(t, []string{"/v1/messages/render", path + "/render", "/tokenize", "/tokenize"}, asked)
		})
	}
	t.Run("llama.cpp", func(t *testing.T) {
		url, asked := engine(t, map[string]string{"/apply-template": `{"prompt":"<s>hello"}`, "/tokenize": `{"tokens":[1,15043]}`})
		require.Equal(t, []uint32{1, 15043}, ids(tokens.Llama(url+"/", nil), path))
		require.Equal(t, []string{"POST /apply-template " + string(body), `POST /tokenize {"add_special":true,"content":"\u003cs\u003ehello","parse_special":true}`}, *asked)
		rig.Must(tokens.Llama(url, nil).Tokens(t.Context(), "/completion", []byte(`{"prompt":"mine","Prompt":"another's"}`)))
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

// asks is a function used as a tokenizer.
type asks func(ctx context.Context, path string, body []byte) ([]uint32, error)

func (a asks) Tokens(ctx context.Context, path string, body []byte) ([]uint32, error) {
	return a(ctx, path, body)
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	l := &letters{}
	for field, c := range map[string]tokens.Config{
		"MaxBytes": {Tokenizer: l, MaxBytes: -1}, "MaxCalls": {Tokenizer: l, MaxCalls: -1}, "MaxPrompt": {Tokenizer: l, MaxPrompt: -1}, "RestAfter": {Tokenizer: l, RestAfter: -1},
		"Within": {Tokenizer: l, Within: -1}, "GiveUp": {Tokenizer: l, GiveUp: -1}, "RestFor": {Tokenizer: l, RestFor: -1},
	} {
		assert.Equal(t, &endpick.ConfigError{Field: "tokens.Config." + field, Reason: "is negative"}, rig.Err(tokens.New(c)))
	}
	assert.Equal(t, &endpick.ConfigError{Field: "tokens.Config.Tokenizer", Reason: "is nil"}, rig.Err(tokens.New(tokens.Config{})))
}

// A request waits for five milliseconds, and a call for two seconds at most.
func TestDefaultTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := 4 * time.Millisecond
		c := newClient(tokens.Config{Tokenizer: asks(func(ctx context.Context, _ string, _ []byte) ([]uint32, error) {
			until, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.Equal(t, 2*time.Second, time.Until(until))
			time.Sleep(takes)
			return []uint32{1}, nil
		})})
		ids, _ := c.Tokens(t.Context(), path, chat("in time"))
		assert.Len(t, ids, 1)
		takes = 6 * time.Millisecond
		start := time.Now()
		ids, _ = c.Tokens(t.Context(), path, chat("late"))
		assert.Empty(t, ids)
		assert.Equal(t, 5*time.Millisecond, time.Since(start))
		assert.EqualValues(t, 1, c.Stats().Late)
		ids, rest := c.Tokens(t.Context(), path, chat("in time", "late"))
		assert.Len(t, ids, 1, "the head is known")
		assert.Equal(t, len(`{"role":"user","content":"late"}`), rest)
		assert.Equal(t, []uint64{2, 1}, []uint64{c.Stats().Late, c.Stats().Heads})
		synctest.Wait()
		time.Sleep(time.Second)
		ids, _ = c.Tokens(t.Context(), path, chat("late"))
		assert.Len(t, ids, 1, "remembered all the same")
	})
}

// Five failures in a row cause a rest of half a second, and each further failure one
// twice as long, up to a minute.
func TestRestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &letters{err: errors.New("down")}
		c := newClient(tokens.Config{Tokenizer: l})
		n := 0
		ask := func() {
			n++
			c.Tokens(t.Context(), path, chat(fmt.Sprint(n)))
		}
		for range 4 {
			ask()
			assert.True(t, c.Stats().RestUntil.IsZero())
		}
		for _, want := range []time.Duration{500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000} {
			ask()
			rest := time.Until(c.Stats().RestUntil)
			require.Equal(t, want*time.Millisecond, rest)
			time.Sleep(rest - time.Nanosecond)
			declined := c.Stats().Declined
			ask()
			require.Equal(t, declined+1, c.Stats().Declined, "still resting")
			time.Sleep(time.Nanosecond)
		}
		assert.EqualValues(t, 13, c.Stats().Failed)
		assert.EqualValues(t, 13, c.Stats().Asked)
		l.err = nil
		ask()
		l.err = errors.New("down")
		for range 5 {
			ask()
		}
		assert.Equal(t, 500*time.Millisecond, time.Until(c.Stats().RestUntil), "after a success it begins anew")

		down := asks(func(context.Context, string, []byte) ([]uint32, error) {
			time.Sleep(time.Second)
			return nil, errors.New("down")
		})
		c = newClient(tokens.Config{Tokenizer: down})
		for range 64 {
			ask()
		}
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		assert.EqualValues(t, 64, c.Stats().Failed)
		assert.LessOrEqual(t, time.Until(c.Stats().RestUntil), 500*time.Millisecond, "one outage is no reason for a minute's rest")
	})
}

// An error caused by one client's request does not stop calls for others; an engine's error
// does.
func TestWhoseFaultItIs(t *testing.T) {
	for status, rests := range map[int]bool{399: true, 400: false, 404: false, 422: false, 499: false, 500: true, 503: true} {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		c := newClient(tokens.Config{Tokenizer: tokens.Rendering(engine.URL, nil), Within: time.Minute, RestAfter: 2})
		for i := range 4 {
			c.Tokens(t.Context(), path, chat(fmt.Sprint(i)))
		}
		want := uint64(4)
		if rests {
			want = 2
		}
		assert.Equal(t, want, c.Stats().Failed, "%d", status)
		assert.Equal(t, rests, !c.Stats().RestUntil.IsZero(), "%d", status)
		engine.Close()
	}
	none := newClient(tokens.Config{Tokenizer: asks(func(context.Context, string, []byte) ([]uint32, error) { return nil, nil }), Within: time.Minute, RestAfter: 1})
	ids, rest := none.Tokens(t.Context(), path, chat("one"))
	assert.Empty(t, ids)
	assert.Zero(t, rest)
	assert.EqualValues(t, 1, none.Stats().Failed, "no ids are no answer")
	assert.Zero(t, none.Stats().Prompts)
	assert.False(t, none.Stats().RestUntil.IsZero())
}

// A body may be as long as the limit, and every declined request is counted.
func TestWhatIsDeclined(t *testing.T) {
	c := newClient(tokens.Config{Tokenizer: &letters{}, Within: time.Minute, MaxPrompt: len(chat("12345"))})
	ids, _ := c.Tokens(t.Context(), path, chat("12345"))
	assert.Len(t, ids, 5)
	for i, body := range []string{
		string(chat("123456")), "", "no JSON", `{"prompt":""`, `{"messages":[]}`, `{"messages":7,"prompt":"x"}`, `{"messages":[7]}`,
		`{"messages":[{"content":[7]}]}`, `{"messages":[{"content":[{"type":"image_url"}]}]}`,
	} {
		ids, rest := c.Tokens(t.Context(), path, []byte(body))
		assert.Empty(t, ids, body)
		assert.Zero(t, rest)
		assert.EqualValues(t, i+1, c.Stats().Declined, body)
	}
	assert.EqualValues(t, 1, c.Stats().Asked)
}

// Text parts have tokens, other parts have more than these; the first message with
// such a part decides.
func TestMessagesOfParts(t *testing.T) {
	l := &letters{}
	c := newClient(tokens.Config{Tokenizer: asks(func(context.Context, string, []byte) ([]uint32, error) {
		l.asked.Add(1)
		return []uint32{1, 2}, nil
	}), Within: time.Minute})
	for content, asked := range map[string]bool{
		`[{"type":"text","text":"a"},{"type":"text","text":"b"}]`: true,
		`[]`: true, `"text"`: true, `null`: true,
		`[{"type":"text","text":"a"},{"type":"image_url"}]`: false,
		`[{"type":"image_url"},{"type":"text","text":"a"}]`: false,
		`[{"text":"a"}]`: false,
	} {
		before := l.asked.Load()
		ids, _ := c.Tokens(t.Context(), path, []byte(`{"messages":[{"role":"system","content":"s"},{"content":`+content+`}]}`))
		assert.Equal(t, asked, l.asked.Load() > before, content)
		assert.Equal(t, asked, len(ids) == 2, content)
	}
	before := l.asked.Load()
	c.Tokens(t.Context(), path, []byte(`{"messages":[{"role":"assistant","tool_calls":[]}]}`))
	assert.Equal(t, before+1, l.asked.Load(), "no content at all")
}

// Two prompts are the same only if everything that shapes them is, in the same place.
func TestPromptsAreToldApart(t *testing.T) {
	l := &letters{}
	c := newClient(tokens.Config{Tokenizer: asks(func(ctx context.Context, path string, body []byte) ([]uint32, error) {
		l.asked.Add(1)
		return []uint32{uint32(l.asked.Load())}, nil
	}), Within: time.Minute})
	bodies := []string{
		`{"prompt":"x"}`, `{"messages":[{"content":"x"}]}`, `{"messages":[{"content":"x"},{"content":"x"}]}`,
		`{"a":1,"b":2,"prompt":"x"}`, `{"a1b":2,"prompt":"x"}`, `{"prompt":"evil","Prompt":"x"}`, `{"messages":[{"content":"evil"}],"Messages":[{"content":"x"}]}`,
	}
	for _, member := range []string{
		"model", "tools", "tool_choice", "functions", "documents", "chat_template", "chat_template_kwargs", "add_generation_prompt",
		"continue_final_message", "add_special_tokens", "reasoning_effort", "response_format", "truncate_prompt_tokens",
		"system", "whatever comes",
	} {
		bodies = append(bodies, fmt.Sprintf(`{%q:"x","prompt":"x"}`, member), fmt.Sprintf(`{%q:"x","messages":[{"content":"x"}]}`, member))
	}
	seen := map[uint32]string{}
	for range 2 {
		for _, p := range []string{"/v1/completions", path} {
			for _, body := range bodies {
				ids, rest := c.Tokens(t.Context(), p, []byte(body))
				require.Len(t, ids, 1)
				require.Zero(t, rest)
				name := p + body
				if other, ok := seen[ids[0]]; ok && other != name {
					t.Fatalf("%s is taken for %s", name, other)
				}
				seen[ids[0]] = name
			}
		}
	}
	c.Tokens(t.Context(), path, []byte(`{"temperature":1,"prompt":"x","max_tokens":5}`))
	assert.EqualValues(t, 2*len(bodies), l.asked.Load(), "what shapes only the answer does not count")
	assert.EqualValues(t, 2*len(bodies)+1, c.Stats().Hits)
}

// Remembered bytes are counted exactly, and an entry larger than the whole memory
// evicts nothing.
func TestBytesAreCounted(t *testing.T) {
	n := 100
	config := tokens.Config{Tokenizer: asks(func(context.Context, string, []byte) ([]uint32, error) { return make([]uint32, n), nil }), Within: time.Minute, MaxBytes: 550}
	c := newClient(config)
	ask := func(text string) { c.Tokens(t.Context(), path, chat(text)) }
	ask("as long as the bound")
	assert.Equal(t, 1, c.Stats().Prompts)
	config.MaxBytes *= 2
	c = newClient(config)
	ask("one")
	assert.EqualValues(t, 550, c.Stats().Bytes)
	ask("two")
	assert.Equal(t, []any{int64(1100), 2}, []any{c.Stats().Bytes, c.Stats().Prompts}, "just room enough")
	n = 300
	ask("too long")
	assert.Equal(t, []any{int64(1100), 2}, []any{c.Stats().Bytes, c.Stats().Prompts})
	n = 237 // 1,098 bytes
	ask("alone")
	assert.Equal(t, []any{int64(1098), 1}, []any{c.Stats().Bytes, c.Stats().Prompts})
}

// A tokenizer without a client of the host's asks its engine and nobody else: it follows no
// redirect, which is a failure of the engine, and uses no proxy.
func TestEnginesSendNobodyElsewhere(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		elsewhere.Add(1)
		_, _ = io.WriteString(w, `{"prompt":"x","token_ids":[1],"tokens":[1]}`)
	}))
	defer other.Close()
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.Path, status)
		}))
		for _, by := range []tokens.Tokenizer{tokens.Rendering(engine.URL, nil), tokens.Llama(engine.URL, nil)} {
			assert.ErrorContains(t, rig.Err(by.Tokens(t.Context(), path, chat("x"))), fmt.Sprint(status), "%T", by)
		}
		engine.Close()
	}
	assert.Zero(t, elsewhere.Load())
}

// A process reads the environment's proxies once, so another one asks; they don't apply to
// 127.0.0.1, but to 0.0.0.0, where nobody listens at port 1.
func TestEnginesAreAskedWithoutProxy(t *testing.T) {
	if os.Getenv("ENDPICK_ASK") != "" {
		for _, by := range []tokens.Tokenizer{tokens.Rendering("http://0.0.0.0:1", nil), tokens.Llama("http://0.0.0.0:1", nil)} {
			assert.Error(t, rig.Err(by.Tokens(t.Context(), path, chat("x"))), "%T", by)
		}
		return
	}
	proxy, asked := engine(t, map[string]string{
		path + "/render": `{"token_ids":[1]}`, "/apply-template": `{"prompt":"x"}`, "/tokenize": `{"tokens":[1]}`,
	})
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEnginesAreAskedWithoutProxy$")
	again.Env = append(os.Environ(), "ENDPICK_ASK=1", "HTTP_PROXY="+proxy, "NO_PROXY=")
	out, err := again.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Empty(t, *asked)
}

// If a conversation's ids can't be had, for whatever reason, the longest known head counts;
// a remembered prompt is not a head.
func TestHeadsOfWhatFails(t *testing.T) {
	l := &letters{}
	c := newClient(tokens.Config{Tokenizer: l, Within: time.Minute, RestAfter: 1, MaxPrompt: 200})
	for range 2 {
		ids, rest := c.Tokens(t.Context(), path, chat("ab"))
		require.Len(t, ids, 2)
		require.Zero(t, rest)
	}
	assert.Zero(t, c.Stats().Heads)
	assert.EqualValues(t, 1, c.Stats().Hits)
	l.err = errors.New("down")
	second := len(`{"role":"user","content":"cde"}`)
	for i := range 2 { // it fails, then it rests
		ids, rest := c.Tokens(t.Context(), path, chat("ab", "cde"))
		assert.Equal(t, []uint32{'a', 'b'}, ids)
		assert.Equal(t, second, rest)
		assert.EqualValues(t, 1+i, c.Stats().Heads)
	}
	assert.Equal(t, []uint64{1, 1}, []uint64{c.Stats().Failed, c.Stats().Declined})
	ids, rest := c.Tokens(t.Context(), path, chat("xy", "cde"))
	assert.Empty(t, ids)
	assert.Zero(t, rest)
	ids, _ = c.Tokens(t.Context(), path, chat("ab", strings.Repeat("c", 200)))
	assert.Empty(t, ids, "too long to look at")
}

// Ids that come with an error do not count; a call's context ends with the call, not
// with the request that started it.
func TestIdsWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := errors.New("half of it")
		var calls []context.Context
		type name struct{}
		c := newClient(tokens.Config{Within: time.Second, Tokenizer: asks(func(ctx context.Context, _ string, _ []byte) ([]uint32, error) {
			calls = append(calls, ctx)
			assert.Equal(t, "x", ctx.Value(name{}), "what the host has put there is there")
			time.Sleep(100 * time.Millisecond)
			assert.NoError(t, ctx.Err())
			return []uint32{1}, fails
		})})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), name{}, "x"))
		time.AfterFunc(50*time.Millisecond, cancel)
		start := time.Now()
		ids, _ := c.Tokens(ctx, path, chat("a"))
		assert.Empty(t, ids)
		assert.Equal(t, 50*time.Millisecond, time.Since(start), "who has gone does not wait")
		time.Sleep(time.Second)
		ids, _ = c.Tokens(context.WithValue(t.Context(), name{}, "x"), path, chat("a"))
		assert.Empty(t, ids)
		assert.EqualValues(t, 2, c.Stats().Failed)
		assert.Zero(t, c.Stats().Prompts)
		synctest.Wait()
		for _, ctx := range calls {
			assert.Error(t, ctx.Err())
		}
	})
}

// pages answers by path and records which responses were closed.
type pages map[string]func() (int, io.Reader)

type closing struct {
	io.Reader
	closed *int
}

func (c closing) Close() error { *c.closed++; return nil }

func (p pages) client(closed *int) *http.Client {
	return &http.Client{Transport: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
		code, body := 404, io.Reader(strings.NewReader("no"))
		if page := p[r.URL.Path]; page != nil {
			code, body = page()
		}
		return &http.Response{StatusCode: code, Header: http.Header{}, Body: closing{body, closed}, Request: r}, nil
	})}
}

func text(s string) func() (int, io.Reader) {
	return func() (int, io.Reader) { return 200, strings.NewReader(s) }
}

func TestAnswersOfEngines(t *testing.T) {
	const render, old, llama = path + "/render", "/tokenize", "/apply-template"
	status := func(code int) func() (int, io.Reader) {
		return func() (int, io.Reader) { return code, strings.NewReader(`{"token_ids":[9]}`) }
	}
	broken := func() (int, io.Reader) {
		return 200, io.MultiReader(strings.NewReader(`{"token_ids":[1]`), iotest.ErrReader(io.ErrUnexpectedEOF))
	}
	for name, tc := range map[string]struct {
		pages pages
		want  []uint32
		err   string
	}{
		"a chat":                 {pages{render: text(` {"token_ids":[1,2]}`)}, []uint32{1, 2}, ""},
		"a list of one":          {pages{render: text(` [{"token_ids":[1,2]}]`)}, []uint32{1, 2}, ""},
		"a list of two":          {pages{render: text(`[{"token_ids":[1]},{"token_ids":[2]}]`)}, nil, tokens.ErrNoPrompt.Error()},
		"an empty list":          {pages{render: text(`[]`)}, nil, tokens.ErrNoPrompt.Error()},
		"a list of something":    {pages{render: text(`[7]`)}, nil, "cannot unmarshal number"},
		"something":              {pages{render: text(`7`)}, nil, "cannot unmarshal number"},
		"nothing":                {pages{render: text(``)}, nil, "unexpected end"},
		"no token ids":           {pages{render: text(`{}`)}, nil, "the answer has no token ids"},
		"a negative id":          {pages{render: text(`{"token_ids":[-1]}`)}, nil, "cannot unmarshal number"},
		"half":                   {pages{render: broken}, nil, "unexpected EOF"},
		"an old engine":          {pages{old: text(`{"tokens":[3]}`)}, []uint32{3}, ""},
		"an older engine":        {pages{render: status(405), old: text(`{"tokens":[3]}`)}, []uint32{3}, ""},
		"an old one without ids": {pages{old: text(`{}`)}, nil, "the answer has no token ids"},
		"neither":                {pages{}, nil, "the engine answers 404"},
		"one that is overloaded": {pages{render: status(503), old: text(`{"tokens":[3]}`)}, nil, "the engine answers 503"},
		"one that refuses":       {pages{render: status(400), old: text(`{"tokens":[3]}`)}, nil, "the engine answers 400"},
		"one that redirects":     {pages{render: status(300), old: text(`{"tokens":[3]}`)}, nil, "the engine answers 300"},
	} {
		closed := 0
		e := tokens.Rendering("http://e", tc.pages.client(&closed))
		got, err := e.Tokens(t.Context(), path, chat("a"))
		if tc.err != "" {
			assert.ErrorContains(t, err, tc.err, name)
			assert.Empty(t, got, name)
		} else {
			assert.NoError(t, err, name)
			assert.Equal(t, tc.want, got, name)
		}
		assert.Positive(t, closed, name)
	}
	// An engine counts as old once it has answered like one.
	closed := 0
	p := pages{}
	e := tokens.Rendering("http://e", p.client(&closed))
	_, err := e.Tokens(t.Context(), path, chat("a"))
	require.Error(t, err)
	p[render] = text(`{"token_ids":[1]}`)
	got := rig.Must(e.Tokens(t.Context(), path, chat("a")))
	assert.Equal(t, []uint32{1}, got, "it had only not begun")
	delete(p, render)
	p[old] = text(`{"tokens":[3]}`)
	_ = rig.Must(e.Tokens(t.Context(), path, chat("a")))
	closed = 0
	_ = rig.Must(e.Tokens(t.Context(), "/v1/completions/", []byte(`{"prompt":"a"}`)))
	assert.Equal(t, 1, closed, "it is asked at once")

	for name, tc := range map[string]struct {
		path, body string
		pages      pages
		err        string
	}{
		"a chat":            {"v1/chat/completions/", "{}", pages{llama: text(`{"prompt":"x"}`), old: text(`{"tokens":[3]}`)}, ""},
		"a completion":      {"/completion", `{"prompt":"x"}`, pages{old: text(`{"tokens":[3]}`)}, ""},
		"several":           {"/v1/completions", `{"prompt":["x"]}`, pages{old: text(`{"tokens":[3]}`)}, tokens.ErrNoPrompt.Error()},
		"ids":               {"/completion", `{"prompt":[1,2]}`, pages{old: text(`{"tokens":[3]}`)}, tokens.ErrNoPrompt.Error()},
		"no JSON":           {"/completion", "x", pages{old: text(`{"tokens":[3]}`)}, tokens.ErrNoPrompt.Error()},
		"no template":       {"/chat/completions", "{}", pages{old: text(`{"tokens":[3]}`)}, "answers 404"},
		"another path":      {"/v1/embeddings", `{"prompt":"x"}`, pages{old: text(`{"tokens":[3]}`)}, tokens.ErrNoPrompt.Error()},
		"a template fails":  {"/chat/completions", "{}", pages{llama: status(500), old: text(`{"tokens":[3]}`)}, "answers 500"},
		"tokenizing fails":  {"/completions", `{"prompt":"x"}`, pages{old: status(500)}, "answers 500"},
		"tokenizing breaks": {"/completions", `{"prompt":"x"}`, pages{old: broken}, "unexpected EOF"},
		"no token ids":      {"/completions", `{"prompt":"x"}`, pages{old: text("{}")}, "no token ids"},
	} {
		e := tokens.Llama("http://e", tc.pages.client(new(int)))
		got, err := e.Tokens(t.Context(), tc.path, []byte(tc.body))
		if tc.err != "" {
			assert.ErrorContains(t, err, tc.err, name)
			continue
		}
		assert.NoError(t, err, name)
		assert.Equal(t, []uint32{3}, got, name)
	}
	for _, u := range []string{"http://[::1", "http://e"} {
		down := &http.Client{Transport: rig.RoundTrip(func(*http.Request) (*http.Response, error) { return nil, io.ErrClosedPipe })}
		for _, e := range []tokens.Tokenizer{tokens.Llama(u, down), tokens.Rendering(u, down)} {
			assert.Error(t, rig.Err(e.Tokens(t.Context(), "/completions", []byte(`{"prompt":"x"}`))))
		}
	}
}

// endless is a response without an end, up to the most that a test will read.
type endless struct{ read, most int }

func (e *endless) Read(b []byte) (int, error) {
	if e.read >= e.most {
		return 0, errors.New("somebody reads on and on")
	}
	e.read += len(b)
	clear(b)
	return len(b), nil
}

// Whatever an engine answers, reading is bounded: 64 MiB of ids, and of a refusal what is
// needed to reuse the connection. Nothing ends what comes after a 101.
func TestAnswersAreBounded(t *testing.T) {
	for code, most := range map[int]int{101: 0, 200: 64 << 20, 404: 64 << 10, 500: 64 << 10} {
		for name, ask := range map[string]func(*http.Client) error{
			"rendering": func(c *http.Client) error {
				_, err := tokens.Rendering("http://e", c).Tokens(t.Context(), path, chat("a"))
				return err
			},
			"llama": func(c *http.Client) error {
				_, err := tokens.Llama("http://e", c).Tokens(t.Context(), "/completion", []byte(`{"prompt":"a"}`))
				return err
			},
		} {
			var answer *endless
			err := ask(&http.Client{Transport: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
				answer = &endless{most: 65 << 20}
				return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(answer), Request: r}, nil
			})})
			require.Error(t, err, name)
			assert.LessOrEqual(t, answer.read, most, "%s: %d", name, code)
			assert.GreaterOrEqual(t, answer.read, most/2, "%s: %d", name, code)
		}
	}
}

// While no new calls are made, after too many failures or with too many in flight,
// requests still share the calls in flight and use remembered prompts.
func TestWhoSharesACallIsNotDeclined(t *testing.T) {
	for _, resting := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			c := newClient(tokens.Config{Within: time.Minute, MaxCalls: 2, RestAfter: 1, RestFor: time.Minute, GiveUp: time.Hour, Tokenizer: asks(func(_ context.Context, _ string, body []byte) ([]uint32, error) {
				switch text := string(body); {
				case strings.Contains(text, "known"):
					return []uint32{1}, nil
				case strings.Contains(text, "fails"):
					return nil, errors.New("down")
				}
				<-release
				return []uint32{2, 3}, nil
			})})
			has := func(text string, want int) {
				ids, rest := c.Tokens(t.Context(), path, chat(text))
				assert.Len(t, ids, want, text)
				assert.Zero(t, rest)
			}
			has("known", 1)
			go has("slow", 2)
			synctest.Wait()
			if resting {
				has("fails", 0)
				assert.Equal(t, time.Now().Add(time.Minute), c.Stats().RestUntil)
			} else {
				go has("as slow", 2)
				synctest.Wait()
			}
			has("another", 0)
			assert.EqualValues(t, 1, c.Stats().Declined)
			has("known", 1)
			go has("slow", 2)
			synctest.Wait()
			s := c.Stats()
			assert.Equal(t, []uint64{1, 1, 1}, []uint64{s.Declined, s.Shared, s.Hits})
			close(release)
			synctest.Wait()
			if !resting { // a call may be made again
				assert.EqualValues(t, 3, c.Stats().Asked)
				has("another", 2)
				assert.EqualValues(t, 4, c.Stats().Asked)
			}
		})
	}
}

// A call that ends, in whatever way, makes room for another, and failures
// between successes cause no rest.
func TestCallsMakeRoom(t *testing.T) {
	var err error
	n := 0
	c := newClient(tokens.Config{Within: time.Minute, MaxCalls: 1, RestAfter: 3, Tokenizer: asks(func(context.Context, string, []byte) ([]uint32, error) {
		if n++; n%7 == 0 {
			panic("a bug")
		}
		return []uint32{1}, err
	})})
	for i := range 50 {
		err = nil
		if i%3 == 0 {
			err = errors.New("down")
		}
		c.Tokens(t.Context(), path, chat(strings.Repeat("x", i)))
	}
	s := c.Stats()
	assert.Equal(t, []uint64{50, 0}, []uint64{s.Asked, s.Declined})
	assert.True(t, s.RestUntil.IsZero())
}

func TestRequestsEndWithTheirCall(t *testing.T) {
	hangs := &http.Client{Transport: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(30 * time.Second):
			return nil, errors.New("nobody ends it")
		}
	})}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, e := range []tokens.Tokenizer{tokens.Rendering("http://e", hangs), tokens.Llama("http://e", hangs)} {
		assert.ErrorIs(t, rig.Err(e.Tokens(ctx, path, chat("a"))), context.Canceled)
	}
}

// By default there are 64 calls at once, bodies of up to 8 MiB, and 64 MiB of remembered
// ids.
func TestDefaultBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := newClient(tokens.Config{Tokenizer: &letters{wait: func() { <-release }}})
		for i := range 66 {
			c.Tokens(t.Context(), path, chat(strings.Repeat("x", i)))
		}
		assert.Equal(t, []uint64{64, 2}, []uint64{c.Stats().Asked, c.Stats().Declined})
		close(release)
		synctest.Wait()
	})
	n := (64<<20 - 150) / 4
	c := newClient(tokens.Config{Within: time.Minute, Tokenizer: asks(func(context.Context, string, []byte) ([]uint32, error) {
		return make([]uint32, n), nil
	})})
	c.Tokens(t.Context(), path, chat("just short enough"))
	assert.Equal(t, 1, c.Stats().Prompts)
	n++
	c.Tokens(t.Context(), path, chat("too long"))
	assert.Equal(t, 1, c.Stats().Prompts)

	n = 1
	body := bytes.Repeat([]byte(" "), 8<<20)
	copy(body, chat("x"))
	ids, _ := c.Tokens(t.Context(), path, body)
	assert.Len(t, ids, 1)
	ids, _ = c.Tokens(t.Context(), path, append(body, ' '))
	assert.Empty(t, ids)
}
