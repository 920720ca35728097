package tokens_test

import (
	"bytes"
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
			err := ask(&http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
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

// A request to an engine ends with its call.
func TestRequestsEndWithTheirCall(t *testing.T) {
	hangs := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
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
		_, err := e.Tokens(ctx, path, chat("a"))
		assert.ErrorIs(t, err, context.Canceled)
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
