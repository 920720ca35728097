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

	"github.com/endpick/endpick/transport/tokens"
)

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
