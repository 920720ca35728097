package dialect

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// Of a stream that breaks off, wherever that is, all that has come is passed on, once and in its order: also what was held
// back to see what follows.
func TestWhatHasComeIsPassedOn(t *testing.T) {
	const whole = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n: still there\n\n" +
		"data: {\"choices\":[{\"delta\":{\"content\":\"so\"}}]}\n\n" +
		"event: x\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n" +
		"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\",\"index\":1}]}\n\n" +
		"data: [DONE]\n\n"
	w := newTalk(t)
	for _, ask := range []string{`{"stream":true,"messages":[{}]}`, `{"stream":true,"stream_options":{"include_usage":true},"messages":[{}]}`} {
		for _, lineEnd := range []string{"\n", "\r\n", "\r"} {
			stream := strings.ReplaceAll(whole, "\n", lineEnd)
			for end := range len(stream) + 1 {
				for _, first := range []int{0, end / 2, max(end-1, 0)} {
					m := w.ask("/v1/chat/completions", ask, nil).Meter(endpick.Lease{}, time.Now)
					m.Header(http.StatusOK, http.Header{"Content-Type": {EventStream}})
					got := m.Feed(nil, []byte(stream[:first]))
					require.True(t, strings.HasPrefix(stream, string(got)))
					got = m.Rest(m.Feed(got, []byte(stream[first:end])))
					require.Equal(t, stream[:end], string(got), "%q, broken off at %d", lineEnd, end)
					require.Equal(t, string(got), string(m.Rest(got)), "and nothing twice")
				}
			}
		}
	}
}
