package transport_test

import (
	"context"
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
)

// A request without a model is repeated only if its method makes that safe.
func TestMethodsThatMayBeRepeated(t *testing.T) {
	for method, again := range map[string]bool{
		"GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "": true,
		"POST": false, "PUT": false, "PATCH": false, "DELETE": false, "get": false,
	} {
		w := newDriven(t, transport.Config{})
		call, err := w.Read(transport.Incoming{Method: method, Path: "/v1/other"})
		require.NoError(t, err)
		a := w.route(t, call)
		require.Error(t, a.Header(503, http.Header{}, nil))
		assert.Equal(t, again, a.Again(), method)
		call.Close()
	}
}

// Health shows why an endpoint has failed its latest request, even after the first byte.
func TestWhatBreaksOffIsShown(t *testing.T) {
	w := newDriven(t, transport.Config{})
	a := w.route(t, w.read(t, chatBody))
	require.NoError(t, a.Header(200, streamHeader.Clone(), nil))
	a.Feed(nil, []byte(events[:60]))
	require.ErrorIs(t, a.Fail(errBroken), errBroken)
	assert.ErrorIs(t, w.monitor.Endpoints()[0].Err, errBroken)
}

func TestWarnings(t *testing.T) {
	w := newDriven(t, transport.Config{})
	call, err := w.Read(transport.Incoming{Method: "POST", Path: chatPath, Body: []byte(chatBody), Header: http.Header{"X-Slo-Ttft-Ms": {"soon"}}})
	require.NoError(t, err)
	defer call.Close()
	require.Len(t, call.Warnings, 1)
	assert.ErrorContains(t, call.Warnings[0], "soon")
}

// An empty body has no coding, whatever its header says; the coding of a body that
// was not unpacked is left to the engine.
func TestCodingsThatAreLeftAlone(t *testing.T) {
	w := newDriven(t, transport.Config{})
	call, err := w.Read(transport.Incoming{Method: "GET", Path: "/v1/models", Header: http.Header{"Content-Encoding": {"gzip"}}})
	require.NoError(t, err)
	call.Close()
	call = w.read(t, chatBody)
	defer call.Close()
	out := http.Header{"Content-Encoding": {"x-own"}}
	w.route(t, call).SetHeader(out)
	assert.Equal(t, "x-own", out.Get("Content-Encoding"))
}

// A prompt is read and cut into blocks, by its token IDs, once, however many endpoints are asked.
func TestPromptsAreReadOnce(t *testing.T) {
	asked := 0
	w := newDriven(t, transport.Config{Tokens: func(_ context.Context, req *endpick.Request, path string, body []byte) ([]uint32, int) {
		asked++
		assert.Equal(t, []string{"m", chatPath, chatBody}, []string{req.Model, path, string(body)})
		return make([]uint32, 40), 0
	}})
	call := w.read(t, chatBody)
	call.Request.Receipt = new(endpick.Receipt)
	defer call.Close()
	for range 2 {
		require.Error(t, w.route(t, call).Header(503, http.Header{}, nil))
	}
	assert.Equal(t, []int{40, 40}, []int{call.Request.InputTokens, call.Request.Receipt.InputTokens})
	w.route(t, call)
	assert.Equal(t, 1, asked)
}

// If only one endpoint refuses, the fault is its own: after the second refusal another
// is asked, and if that one serves the requests the first is put out.
func TestRefusalsOfOneEndpoint(t *testing.T) {
	w := newDriven(t, transport.Config{})
	var again []bool
	for range 7 {
		call := w.read(t, chatBody)
		a := w.route(t, call)
		if a.Endpoint().ID == "a" {
			require.Error(t, a.Header(400, http.Header{}, nil))
			again = append(again, a.Again())
			if again[len(again)-1] {
				a = w.route(t, call)
				require.Equal(t, "b", a.Endpoint().ID)
			}
		}
		_ = a.Header(200, streamHeader.Clone(), nil)
		a.Feed(nil, []byte(events))
		_, _ = a.End(nil)
		call.Close()
	}
	assert.Equal(t, []bool{false, true, true, true}, again)
	assert.Equal(t, 1, w.unhealthy())
	w.idle(t)
}

func TestWhatIsNamedIsPassedOn(t *testing.T) {
	admin := transport.Incoming{Method: "POST", Path: "/v1/load_lora_adapter", Body: []byte(`{"lora_name":"x"}`)}
	_, err := newDriven(t, transport.Config{Pass: []string{"/x"}}).Read(admin)
	require.ErrorIs(t, err, transport.ErrUnknownPath)
	call, err := newDriven(t, transport.Config{Pass: []string{"/v1/load_lora_adapter"}}).Read(admin)
	require.NoError(t, err)
	call.Close()
}

// The body of a failed response is the server's explanation and is passed on whole.
func TestTheBodyOfAFailureIsPassedOnWhole(t *testing.T) {
	w := newDriven(t, transport.Config{})
	call := w.read(t, chatBody)
	defer call.Close()
	a := w.route(t, call)
	require.Error(t, a.Header(500, streamHeader.Clone(), nil))
	assert.Equal(t, events, string(a.Feed(nil, []byte(events))))
	rest, err := a.End(nil)
	require.NoError(t, err)
	assert.Empty(t, rest)
	assert.Equal(t, "a failed", w.heard.said())
	assert.Equal(t, io.EOF, func() error { _, err := a.Reader(http.NoBody).Read(make([]byte, 1)); return err }())
}

func TestWhatIsMeteredIsKnownBeforeItIsRouted(t *testing.T) {
	w := newDriven(t, transport.Config{DisableUsage: true, MaxAttempts: 1})
	call := w.read(t, chatBody)
	a := w.route(t, call)
	assert.Equal(t, chatBody, string(concat(call.Body())), "usage is not asked for")
	require.Error(t, a.Fail(noDial))
	assert.False(t, a.Again(), "one attempt is all")
	call.Close()
	call, err := w.Read(transport.Incoming{Method: "GET", Path: "/v1/models"})
	require.NoError(t, err)
	out := http.Header{}
	w.route(t, call).SetHeader(out)
	assert.Empty(t, out.Get("Accept-Encoding"), "it may have any coding")
	call.Close()
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
