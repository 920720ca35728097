package extproc_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
)

// Older proxies send header values as text, newer ones as raw bytes.
func TestHeadersAsText(t *testing.T) {
	w := newWorld(t, extproc.Config{})
	c := w.talk(t, inPieces)
	text := &corev3.HeaderMap{}
	for _, h := range [][2]string{{":method", "POST"}, {":path", chatPath}, {"content-type", "application/json"}, {"x-slo-ttft-ms", "250"}, {"", "nobody"}} {
		text.Headers = append(text.Headers, &corev3.HeaderValue{Key: h[0], Value: h[1]})
	}
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: text}}})
	c.send(requestBody(chatBody, true))
	names(t, "10.0.0.1:8000", c.recv())
	for !c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
	}
	c.ends()
	assert.EqualValues(t, 250e6, w.heard.request.SLO.TTFT)
}

// ranked is a server of two ranks beside servers with the same rank, another rank and
// none.
func ranked(t *testing.T) *world {
	w := newWorld(t, extproc.Config{Dispatcher: transport.Config{Fallbacks: 5}},
		endpick.Endpoint{ID: "a", Address: "10.0.0.1:80", Ranked: true, Rank: 1},
		endpick.Endpoint{ID: "b", Address: "10.0.0.2:80", Ranked: true, Rank: 0},
		endpick.Endpoint{ID: "c", Address: "10.0.0.3:80"},
		endpick.Endpoint{ID: "d", Address: "10.0.0.1:80", Ranked: true, Rank: 0},
		endpick.Endpoint{ID: "e", Address: "10.0.0.2:80", Ranked: true, Rank: 1},
	)
	w.heard.order = "abcde"
	return w
}

// One header carries the rank, so only servers with the same rank can be fallbacks.
func TestFallbacksHaveTheSameRank(t *testing.T) {
	for order, want := range map[string]struct{ servers, rank string }{
		"abcde": {"10.0.0.1:80,10.0.0.2:80", "1"}, "bacde": {"10.0.0.2:80,10.0.0.1:80", "0"}, "cabde": {"10.0.0.3:80", ""},
	} {
		w := ranked(t)
		w.heard.order = order
		m := first(w.talk(t, inPieces).request(chatBody))
		names(t, want.servers, m)
		assert.Equal(t, want.rank, mutation(m, "x-data-parallel-rank"))
	}
}

// The address reported by the proxy identifies the server: the one with the rank that
// was asked for. An unknown address changes nothing.
func TestServedByTheSameRank(t *testing.T) {
	for by, want := range map[string]string{
		"10.0.0.1:80": "a completed", "10.0.0.2:80": "a failed, e completed", "10.0.0.3:80": "a failed, c completed", "10.9.9.9:80": "a completed", "": "a completed",
		"[::ffff:10.0.0.2]:80": "a failed, e completed", " 10.0.0.3:80 ": "a failed, c completed", "[::ffff:10.0.0.1]:80": "a completed",
	} {
		w := ranked(t)
		c := w.talk(t, inPieces)
		c.exchange(served(responseHeaders("200", false), by), events)
		assert.Equal(t, want, w.heard.said(), by)
		if by == "10.9.9.9:80" {
			require.Len(t, w.warnings(), 1)
			var failed *transport.UpstreamError
			require.ErrorAs(t, w.warnings()[0], &failed)
			assert.Equal(t, by, failed.Endpoint)
			assert.ErrorIs(t, failed, endpick.ErrUnknownEndpoint)
		} else {
			assert.Empty(t, w.warnings())
		}
	}
}

// An announced length is used only as far as that costs nothing.
func TestAnnouncedLengths(t *testing.T) {
	for _, length := range []string{"4611686018427387904", "-5", "many", "1", "0"} {
		w := newWorld(t, extproc.Config{})
		c := w.talk(t, inPieces)
		c.send(requestHeaders(false, "content-length", length))
		c.send(requestBody(chatBody[:20], false))
		c.send(requestBody(chatBody[20:], true))
		names(t, "10.0.0.1:8000", c.recv())
	}
}

// Two endpoints may be one server. It is named once, and what it serves counts for
// the chosen endpoint.
func TestOneServerTwice(t *testing.T) {
	exclude := []string(nil)
	w := newWorld(t, extproc.Config{
		Dispatcher: transport.Config{Fallbacks: 2},
		Describe:   func(_ http.Header, _ []byte, req *endpick.Request) { req.Exclude = exclude },
	}, endpick.Endpoint{ID: "a", Address: "10.0.0.1:8000"}, endpick.Endpoint{ID: "b", Address: "http://10.0.0.1:8000"}, endpick.Endpoint{ID: "c", Address: "10.0.0.3:8000"})
	names(t, "10.0.0.1:8000,10.0.0.3:8000", first(w.talk(t, inPieces).request(chatBody)))

	exclude = []string{"a"}
	c := w.talk(t, inPieces)
	c.exchange(served(responseHeaders("200", false), "10.0.0.1:8000"), events+done)
	require.Eventually(t, func() bool { return strings.Contains(w.heard.said(), "completed") }, 30*time.Second, time.Millisecond)
	assert.Contains(t, w.heard.said(), "b completed")
}

// A client or the proxy may disappear after any message.
func TestVanishing(t *testing.T) {
	script := []*extprocv3.ProcessingRequest{
		requestHeaders(false), requestBody(chatBody[:10], false), requestBody(chatBody[10:], true),
		responseHeaders("200", false), responseBody(events[:20], false), responseBody(events[20:], false), responseBody(usage, false), responseBody(done, true),
	}
	want := map[int]string{0: "", 1: "", 2: "", 3: "a canceled", 4: "a canceled", 5: "a canceled", 6: "a canceled", 7: "a canceled", 8: "a completed"}
	for n := range len(script) + 1 {
		for name, leave := range map[string]func(*talk){
			"reset":       func(c *talk) { c.cancel() },
			"half closed": func(c *talk) { c.stream.CloseSend() },
			"unread":      func(c *talk) { c.stream.CloseSend(); c.cancel() },
		} {
			t.Run(fmt.Sprintf("after %d/%s", n, name), func(t *testing.T) {
				w := newWorld(t, extproc.Config{})
				c := w.talk(t, inPieces)
				for _, m := range script[:n] {
					c.send(m)
				}
				if n >= 3 { // a reset may overtake what was sent
					for range min(n-1, 3) {
						c.recv()
					}
				}
				if n == len(script) {
					for !c.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
					}
				}
				leave(c)
				w.idle(t)
				if n >= 3 {
					require.Eventually(t, func() bool { return w.heard.said() != "" }, 30*time.Second, time.Millisecond)
				}
				assert.Equal(t, want[n], w.heard.said())
			})
		}
	}
}
