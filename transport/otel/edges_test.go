package otel_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/otel"
)

// The operation is taken from the end of the path, with a slash or without.
func TestOperations(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/chat/completions/": "chat", "/api/v1/messages": "chat", "/v1/responses": "chat", "/v1/completions": "text_completion",
		"/generate/": "text_completion", "/v1/embeddings": "embeddings", "/v1/rerank": "request", "/": "request", "/completions/x": "request",
	} {
		r, provider := newReceiver(t)
		tracer := otel.New(otel.Config{Provider: provider})
		next := roundTripper(func(*http.Request) (*http.Response, error) { return nil, http.ErrHandlerTimeout })
		req, err := http.NewRequest(http.MethodPost, "http://gateway"+path, nil)
		require.NoError(t, err)
		_, err = tracer.RoundTripper(next).RoundTrip(req)
		require.ErrorIs(t, err, http.ErrHandlerTimeout)
		s := r.wait(t, 1)[0]
		assert.Equal(t, want, s.Name, path)
		assert.Equal(t, want, attributes(s.Attributes)["gen_ai.operation.name"])
	}
}

// Strings from clients are truncated and made valid UTF-8.
func TestLongWordsAreCut(t *testing.T) {
	r, provider := newReceiver(t)
	tracer := otel.New(otel.Config{Provider: provider})
	next := roundTripper(func(*http.Request) (*http.Response, error) { return nil, http.ErrHandlerTimeout })
	req := rig.Must(http.NewRequest(http.MethodPost, "http://gateway/v1/completions", nil))
	req.URL.Path = "/" + strings.Repeat("é", 5000)
	_, _ = tracer.RoundTripper(next).RoundTrip(req)
	path := attributes(r.wait(t, 1)[0].Attributes)["url.path"].(string)
	assert.Less(t, len(path), 2000)
	assert.True(t, strings.HasPrefix(path, "/éé"))
	assert.Equal(t, path, strings.ToValidUTF8(path, "?"))

	r, provider = newReceiver(t)
	req.URL.Path = "/a\xffb"
	_, _ = otel.New(otel.Config{Provider: provider}).RoundTripper(next).RoundTrip(req)
	assert.Equal(t, "/a\uFFFDb", attributes(r.wait(t, 1)[0].Attributes)["url.path"])
}

type closes struct {
	http.RoundTripper
	closed int
}

func (c *closes) CloseIdleConnections() { c.closed++ }

// The tracer is transparent: the response refers to the client's own request, and idle
// connections are closed in the base transport.
func TestTheTracerIsNotSeen(t *testing.T) {
	_, provider := newReceiver(t)
	tracer := otel.New(otel.Config{Provider: provider})
	var got *http.Request
	next := &closes{RoundTripper: roundTripper(func(in *http.Request) (*http.Response, error) {
		got = in
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: in}, nil
	})}
	rt := tracer.RoundTripper(next)
	req := rig.Must(http.NewRequestWithContext(context.Background(), http.MethodPost, "http://gateway/v1/completions", nil))
	resp := rig.Must(rt.RoundTrip(req))
	assert.Same(t, req, resp.Request)
	assert.NotSame(t, req, got)
	assert.Empty(t, req.Header.Get("Traceparent"), "the client's header is the client's")
	assert.NotEmpty(t, got.Header.Get("Traceparent"))
	(&http.Client{Transport: rt}).CloseIdleConnections()
	assert.Equal(t, 1, next.closed)
}
