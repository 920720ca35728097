package tokens_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/tokens"
)

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
	return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		code, body := 404, io.Reader(strings.NewReader("no"))
		if page := p[r.URL.Path]; page != nil {
			code, body = page()
		}
		return &http.Response{StatusCode: code, Header: http.Header{}, Body: closing{body, closed}, Request: r}, nil
	})}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type breaks struct{}

func (breaks) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func text(s string) func() (int, io.Reader) {
	return func() (int, io.Reader) { return 200, strings.NewReader(s) }
}

// Engines' answers and how they are interpreted.
func TestAnswersOfEngines(t *testing.T) {
	const render, old, llama = path + "/render", "/tokenize", "/apply-template"
	status := func(code int) func() (int, io.Reader) {
		return func() (int, io.Reader) { return code, strings.NewReader(`{"token_ids":[9]}`) }
	}
	broken := func() (int, io.Reader) { return 200, io.MultiReader(strings.NewReader(`{"token_ids":[1]`), breaks{}) }
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
		down := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) { return nil, io.ErrClosedPipe })}
		for _, e := range []tokens.Tokenizer{tokens.Llama(u, down), tokens.Rendering(u, down)} {
			_, err := e.Tokens(t.Context(), "/completions", []byte(`{"prompt":"x"}`))
			assert.Error(t, err)
		}
	}
}
