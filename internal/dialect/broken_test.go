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

// What an engine answers to a request that it does not serve is the client's as it is: it is not read, held back or
// learned from, whatever it looks like.
func TestErrorsPassUnread(t *testing.T) {
	const ask = `{"stream":true,"messages":[{"role":"user","content":"hi"}]}`
	const figures = `"usage":{"prompt_tokens":500,"completion_tokens":70,"prompt_tokens_details":{"cached_tokens":400}}`
	for _, status := range []int{http.StatusBadRequest, http.StatusNotFound, http.StatusTooManyRequests, http.StatusInternalServerError} {
		for kind, body := range map[string]string{
			"application/json": `{"error":{"message":"no"},` + figures + `}`,
			EventStream:        "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"choices\":[]," + figures + "}\n\ndata: [DONE]\n\n",
		} {
			w := newTalk(t)
			m := w.ask("/v1/chat/completions", ask, nil).Meter(endpick.Lease{}, time.Now)
			header := http.Header{"Content-Type": {kind}, "Content-Length": {"7"}}
			require.False(t, m.Header(status, header))
			require.Equal(t, "7", header.Get("Content-Length"))
			for i := range body {
				require.Equal(t, body[i:i+1], string(m.Feed(nil, []byte(body[i:i+1]))), "at once")
			}
			got, err := m.End(nil)
			require.NoError(t, err)
			require.Empty(t, got)
			require.False(t, m.Whole())
			require.Equal(t, Seen{}, m.Seen())
			require.Equal(t, endpick.Outcome{}, m.Outcome(endpick.Completed))
			before := w.ask("/v1/chat/completions", ask, nil).Request
			require.Zero(t, before.ExpectedOutputTokens, "%d, %s", status, kind)
		}
	}
}
