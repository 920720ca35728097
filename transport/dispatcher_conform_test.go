package transport_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/transporttest"
)

// The example's gateway keeps correct accounts, however an engine misbehaves.
func TestTheDispatcherConforms(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, router *endpick.Router) http.Handler {
		s, err := transport.NewDispatcher(transport.Config{Router: router})
		require.NoError(t, err)
		base := &http.Transport{}
		t.Cleanup(base.CloseIdleConnections)
		return &gateway{dispatcher: s, client: &http.Client{Transport: base}}
	})
}

// A stream that ends without a byte has failed, unless the program did not see its body.
func TestAStreamOfNothing(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		unread     bool
		status     int
		said       string
	}{
		{"nothing", chatBody, false, 200, "a failed"},
		{"not seen", chatBody, true, 200, "a completed"},
		{"no stream", strings.Replace(chatBody, "true", "false", 1), false, 200, "a completed"},
		{"no content", chatBody, false, 204, "a completed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newDriven(t, transport.Config{})
			call := w.read(t, tc.body)
			defer call.Close()
			a := w.route(t, call)
			require.NoError(t, a.Header(tc.status, streamHeader, nil))
			if tc.unread {
				a.Unread()
			}
			a.Feed(nil, nil)
			_, err := a.End(nil)
			assert.Equal(t, tc.said == "a failed", errors.Is(err, io.ErrUnexpectedEOF))
			assert.Equal(t, tc.said, w.heard.said())
			w.idle(t)
		})
	}
}

// A response from an endpoint that was removed meanwhile belongs to no endpoint's
// accounts, and the client gets it as from any other.
func TestServedByWhoIsGone(t *testing.T) {
	w := newDriven(t, transport.Config{Fallbacks: 2})
	call := w.read(t, chatBody)
	a := w.route(t, call)
	require.NoError(t, w.router.Remove("b"))
	require.ErrorIs(t, a.ServedBy("b"), endpick.ErrUnknownEndpoint)
	header := http.Header{"Content-Type": {"text/event-stream"}, "Content-Length": {fmt.Sprint(len(events))}}
	require.NoError(t, a.Header(200, header, nil))
	assert.Empty(t, header.Get("Content-Length"))
	out := a.Feed(nil, []byte(events[:100]))
	out = a.Feed(out, []byte(events[100:]))
	out, err := a.End(out)
	require.NoError(t, err)
	assert.NotContains(t, string(out), "usage")
	assert.Contains(t, string(out), "[DONE]")
	call.Close()
	w.idle(t)
	assert.Equal(t, "a failed", w.heard.said())
}
