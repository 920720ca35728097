package conformance

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
	"github.com/openai/openai-go/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limited is a gateway that allows each tenant, by its key, one request in flight.
func limited(t *testing.T) *target {
	c := all.LMetric()
	limits := rig.Must(quota.New(quota.Config{Limits: func(string) quota.Limits { return quota.Limits{Requests: 1} }}))
	c.Policy.Admitters = append(c.Policy.Admitters, limits)
	server := newServer(t)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Hold") == "" {
			server.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		// A response that has begun, and goes on until its client leaves.
		word := `{"choices":[{"index":0,"delta":{"content":"word"}}]}`
		if strings.HasSuffix(r.URL.Path, "/messages") {
			word = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"word"}}`
		}
		_, _ = io.WriteString(w, "data: "+word+"\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(engine.Close)
	c.Endpoints = []endpick.Endpoint{{Address: engine.URL}}
	return gateway(t, c, transport.Config{Describe: func(in *http.Request, _ []byte, req *endpick.Request) {
		req.Tenant = in.Header.Get("Authorization") + in.Header.Get("X-Api-Key")
	}})
}

// refusals counts responses of 429, and calls then at the first.
type refusals struct {
	n          atomic.Int64
	retryAfter atomic.Value
	then       func()
}

func (r *refusals) RoundTrip(in *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(in)
	if err == nil && resp.StatusCode == http.StatusTooManyRequests && r.n.Add(1) == 1 {
		r.retryAfter.Store(resp.Header.Get("Retry-After"))
		r.then()
	}
	return resp, err
}

// A client over its tenant's quota gets an error in the form of its API, and when to
// come back: its SDK waits that long and is served.
func TestClientsOverTheirQuotaComeBack(t *testing.T) {
	ask := map[string]func(s *session) error{
		"openai-go": func(s *session) error {
			_, err := newOpenAI(s).Chat.Completions.New(s.ctx, chatParams(question))
			return err
		},
		"anthropic-sdk-go": func(s *session) error {
			_, err := newAnthropic(s).Messages.New(s.ctx, messageParams(question))
			return err
		},
	}
	for name, ask := range ask {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := limited(t)
			hold := func() (release func()) { // takes the quota until then
				ctx, cancel := context.WithCancel(t.Context())
				gone := make(chan struct{})
				begun := make(chan struct{})
				go func() {
					defer close(gone)
					body := `{"model":"` + model + `","stream":true,"max_tokens":10,"messages":[{"role":"user","content":"x"}]}`
					path, header := "/v1/chat/completions", "Authorization"
					value := "Bearer key"
					if name == "anthropic-sdk-go" {
						path, header, value = "/v1/messages", "X-Api-Key", "key"
					}
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, strings.NewReader(body))
					if !assert.NoError(t, err) {
						return
					}
					req.Header.Set(header, value)
					req.Header.Set("X-Hold", "1")
					resp, err := http.DefaultClient.Do(req)
					close(begun)
					if assert.NoError(t, err) {
						assert.Equal(t, http.StatusOK, resp.StatusCode)
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}()
				<-begun
				return func() { cancel(); <-gone }
			}

			release := hold()
			seen := &refusals{then: func() {}}
			err := ask(&session{ctx: t.Context(), url: p.url, base: seen})
			release()
			var refused *openai.Error
			var over *anthropic.Error
			switch {
			case errors.As(err, &refused):
				assert.Equal(t, http.StatusTooManyRequests, refused.StatusCode)
				assert.Equal(t, "rate_limit_error", refused.Type)
				assert.Contains(t, refused.Message, "too many requests at once")
			case errors.As(err, &over):
				assert.Equal(t, http.StatusTooManyRequests, over.StatusCode)
				assert.EqualValues(t, "rate_limit_error", over.Type())
			default:
				assert.Fail(t, "no error of the SDK", "%T %v", err, err)
			}
			assert.Equal(t, "1", seen.retryAfter.Load(), "seconds until a request may have ended")

			require.Eventually(t, func() bool { return p.router.Stats().OpenLeases == 0 }, 30*time.Second, time.Millisecond)
			seen = &refusals{then: hold()}
			assert.NoError(t, ask(&session{ctx: t.Context(), url: p.url, base: seen, retries: 10}))
			assert.Positive(t, seen.n.Load())
			p.settled(t)
		})
	}
}
