package extproc_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
)

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

// A thousand streams are open at once, each with its lease, and end in six ways: each
// lease and each goroutine ends with its stream.
func TestAThousandStreamsAtOnce(t *testing.T) {
	const n = 1000
	before := runtime.NumGoroutine()
	t.Run("streams", func(t *testing.T) {
		w := newWorld(t, extproc.Config{Dispatcher: transport.Config{Fallbacks: 2}})
		talks := make([]*talk, n)
		for i := range talks {
			mode := inPieces
			if i%2 == 1 {
				mode = atOnce
			}
			talks[i] = w.talk(t, mode)
			header, _ := destination(first(talks[i].request(chatBody)))
			require.NotEmpty(t, header)
		}
		assert.Equal(t, n, w.router.Stats().OpenLeases)
		for i, c := range talks {
			if i%6 >= 3 {
				c.send(responseHeaders(map[bool]string{true: "500", false: "200"}[i%6 == 3], false))
				c.recv()
			}
			switch i % 6 {
			case 0, 3: // disappears silently
				c.cancel()
			case 1, 4:
				require.NoError(t, c.stream.CloseSend())
			case 2: // violates the protocol
				c.send(&extprocv3.ProcessingRequest{})
			case 5:
				assert.Equal(t, events+done, c.response(events+usage+done))
				c.ends()
			}
		}
		w.idle(t)
		assert.EqualValues(t, n, w.router.Stats().Closed)
		assert.Zero(t, w.router.Stats().Reaped)
	})
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 30*time.Second, 10*time.Millisecond, "goroutines stay")
}
