package dialect

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/require"
)

// If a stream breaks off, at any point, every event that has come whole is passed on, once and in
// order, including one that was held back to see what follows. Then there is an error, unless
// the stream had ended.
func TestWhatHasComeIsPassedOn(t *testing.T) {
	const whole = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n: still there\n\n" +
		"data: {\"choices\":[{\"delta\":{\"content\":\"so\"}}]}\n\n" +
		"event: x\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n" +
		"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\",\"index\":1}]}\n\n" +
		"data: [DONE]\n\n"
	const failure = "data: {\"error\":{\"message\":\"it died\",\"type\":\"api_error\",\"param\":null,\"code\":\"502\"}}\n\n"
	w := newTalk(t)
	for _, ask := range []string{`{"stream":true,"messages":[{}]}`, `{"stream":true,"stream_options":{"include_usage":true},"messages":[{}]}`} {
		for _, lineEnd := range []string{"\n", "\r\n"} {
			stream := strings.ReplaceAll(whole, "\n", lineEnd)
			for end := range len(stream) + 1 {
				for _, first := range []int{0, end / 2, max(end-1, 0)} {
					m := w.streaming("/v1/chat/completions", ask)
					got := m.Feed(nil, []byte(stream[:first]))
					require.True(t, strings.HasPrefix(stream, string(got)))
					got = m.Break(m.Feed(got, []byte(stream[first:end])), Problem{Status: 502, Message: "it died"})
					passed, failed := strings.CutSuffix(string(got), failure)
					require.True(t, strings.HasPrefix(stream[:end], passed), "%q, broken off at %d", got, end)
					require.NotContains(t, strings.TrimPrefix(strings.TrimPrefix(stream[len(passed):end], "\n"), lineEnd), lineEnd+lineEnd)
					require.Equal(t, !strings.Contains(passed, "[DONE]"), failed)
				}
			}
		}
	}
}

func TestBrokenStreamsEndAsTheirAPIHasIt(t *testing.T) {
	const openAI = `data: {"error":{"message":"it died","type":"api_error","param":null,"code":"502"}}` + "\n\n"
	const half = `{"x":"`
	for _, tc := range []struct{ path, body, event, want string }{
		{"/v1/chat/completions", `{"stream":true,"messages":[{}]}`, `{"choices":[{"delta":{"content":"a"}}]}`, openAI},
		{"/v1/completions", `{"stream":true,"prompt":"x"}`, `{"choices":[{"text":"a"}]}`, openAI},
		{"/generate", `{"stream":true,"text":"x"}`, `{"text":"a","meta_info":{}}`, openAI},
		{"/v1/messages", `{"stream":true,"messages":[{}]}`, `{"type":"content_block_delta","delta":{"text":"a"}}`,
			"event: error\n" + `data: {"type":"error","error":{"type":"api_error","message":"it died"}}` + "\n\n"},
		{"/v1/responses", `{"stream":true,"input":"x"}`, `{"type":"response.output_text.delta","delta":"a","sequence_number":6}`,
			"event: error\n" + `data: {"type":"error","code":"server_error","message":"it died","param":null,"sequence_number":7}` + "\n\n"},
	} {
		for _, closed := range []bool{false, true} {
			m := newTalk(t).streaming(tc.path, tc.body)
			event := "data: " + tc.event + "\n\n"
			got := m.Feed(nil, []byte(event+"data: "+half))
			if closed {
				var err error
				got, err = m.End(got)
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			}
			got = m.Break(got, Problem{Status: 502, Message: "it died"})
			require.Equal(t, event+tc.want, string(got))
			again := newTalk(t).streaming(tc.path, tc.body)
			again.Feed(nil, got)
			require.Equal(t, endpick.Failed, again.Outcome(endpick.Completed).Status, "a router before this one understands it")
			require.Equal(t, string(got)+half, string(again.Break(again.Feed(got, []byte(half)), Problem{Status: 502})), "there is one error")
		}
	}
	// What is held back until it is known whether usage follows comes once.
	held := `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"},{"index":1,"delta":{}}]}` + "\n\n"
	two := newTalk(t).streaming("/v1/chat/completions", `{"stream":true,"n":2,"messages":[{}]}`)
	got, err := two.End(two.Feed(nil, []byte(held)))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, held+openAI, string(two.Break(got, Problem{Status: 502, Message: "it died"})))
	// An event that was too long to be held back has no end, and nothing can follow it.
	m := newTalk(t).streaming("/v1/chat/completions", `{"stream":true,"messages":[{}]}`)
	long := "data: " + strings.Repeat("x", maxEvent)
	require.Equal(t, long+"yz", string(m.Break(m.Feed(m.Feed(nil, []byte(long)), []byte("yz")), Problem{Status: 502})))
}

// An engine's error response is passed on unchanged: it is not parsed, held back or learned from,
// whatever it looks like.
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
			require.Zero(t, w.ask("/v1/chat/completions", ask, nil).Request.ExpectedOutputTokens, "%d, %s", status, kind)
		}
	}
}

// When a stream is complete, so that a client that leaves has received all of it, and when it was
// cut off. A stream in which nothing was understood is neither.
func TestWhatEndsAStream(t *testing.T) {
	const chat, native = "/v1/chat/completions", "/completion"
	const chatBody, one, two = `{"stream":true,"messages":[{}]}`, `{"stream":true,"prompt":"x"}`, `{"stream":true,"prompt":"x","n":2}`
	const three, completions, texts = `{"stream":true,"n":3,"messages":[{}]}`, "/v1/completions", `{"stream":true,"prompt":["x","y"]}`
	const sglang = `{"stream":true,"text":"x","sampling_params":{"n":2}}`
	const a = `{"choices":[{"delta":{"content":"a"}}]}`
	of := func(index int, text, reason string) string {
		if reason != "" {
			reason = `,"finish_reason":"` + reason + `"`
		}
		return fmt.Sprintf(`{"choices":[{"index":%d,"delta":{"content":%q}%s}]}`, index, text, reason)
	}
	for _, tc := range []struct {
		path, body string
		events     []string
		cut, whole bool
	}{
		{chat, chatBody, nil, false, false},
		{chat, chatBody, []string{`{"x":1}`}, false, false},
		{chat, chatBody, []string{`no JSON`}, false, false},
		{chat, chatBody, []string{a}, true, false},
		{chat, chatBody, []string{`{"choices":[]}`}, true, false},
		{chat, chatBody, []string{a, `{"choices":[{"delta":{},"finish_reason":"stop"}]}`}, false, false},
		{chat, chatBody, []string{a, `{"error":{"message":"no"}}`}, false, false},
		{chat, chatBody, []string{a, `[DONE]`}, false, true},
		{chat, chatBody, []string{`[DONE]`}, false, true},
		{chat, chatBody, []string{`[DONE]`, a}, false, true}, // it stays so, whatever follows
		{"/v1/messages", chatBody, []string{`{"type":"message_stop"}`, `{"type":"content_block_delta","delta":{"text":"a"}}`}, false, true},
		{native, one, []string{`{"content":"a","stop":false}`}, true, false},
		{native, one, []string{`{"content":"a","stop":false}`, `{"content":"","stop":true}`}, false, true},
		{native, two, []string{`{"content":"a","stop":false}`, `{"content":"","stop":true}`}, false, false},
		{native, two, []string{`{"content":"","stop":true}`, `{"content":"","stop":true}`, `[DONE]`}, false, true},
		{native, two, []string{`{"index":0,"content":"a","stop":false}`, `{"index":1,"content":"b","stop":false}`, `{"index":1,"content":"","stop":true}`}, true, false},
		{native, two, []string{`{"index":0,"content":"a","stop":false}`, `{"index":1,"content":"b","stop":true}`, `{"index":0,"content":"","stop":true}`}, false, true},
		{native, two, []string{`{"index":0,"content":"","stop":true}`, `{"index":0,"content":"","stop":true}`}, false, false},
		{chat, three, []string{of(0, "a", ""), of(1, "b", ""), of(2, "c", ""), of(1, "", "stop")}, true, false},
		{chat, three, []string{of(0, "a", ""), of(1, "b", ""), of(1, "b", ""), of(1, "", "stop"), of(1, "", "stop"), of(1, "", "stop")}, true, false},
		{chat, three, []string{of(0, "a", "stop"), of(1, "b", ""), of(1, "", "length")}, false, false}, // an engine may return fewer
		{chat, three, []string{of(2, "a", "stop"), of(0, "b", "stop"), of(1, "", "length")}, false, false},
		{chat, three, []string{`{"choices":[{"index":0,"text":"a","finish_reason":"stop"},{"index":1,"text":"b"}]}`}, true, false},
		{chat, three, []string{`{"choices":[{"index":1,"text":"b"},{"index":0,"text":"a","finish_reason":"stop"}]}`, of(1, "", "stop")}, false, false},
		{chat, three, []string{of(0, "a", ""), of(1, "b", "stop"), `[DONE]`}, false, true},
		{chat, three, []string{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{},"finish_reason":"stop"}]}`}, false, false}, // none is named
		{completions, texts, []string{of(0, "a", ""), of(1, "b", ""), of(0, "", "stop")}, true, false},
		{completions, texts, []string{of(0, "a", ""), of(1, "b", ""), of(0, "", "stop"), of(1, "", "stop")}, false, false},
		{"/generate", sglang, []string{`{"text":"a","meta_info":{},"index":0}`, `{"text":"b","meta_info":{"finish_reason":null},"index":1}`, `{"text":"b","meta_info":{"finish_reason":{"type":"stop"}},"index":1}`}, true, false},
		{"/generate", sglang, []string{`{"text":"a","meta_info":{"finish_reason":{"type":"stop"}},"index":0}`, `{"text":"b","meta_info":{"finish_reason":{"type":"stop"}},"index":1}`}, false, false},
		{"/v1/messages", `{"n":2,` + chatBody[1:], []string{`{"type":"message_start","message":{}}`, `{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`}, false, false},
		{"/v1/messages", chatBody, []string{`{"type":"ping"}`}, false, false},
		{"/v1/messages", chatBody, []string{`{"type":"message_start","message":{}}`}, true, false},
		{"/v1/messages", chatBody, []string{`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`}, false, false},
		{"/v1/messages", chatBody, []string{`{"type":"message_stop"}`}, false, true},
	} {
		m := newTalk(t).streaming(tc.path, tc.body)
		m.Feed(nil, []byte(": ping\n\n"))
		for _, data := range tc.events {
			m.Feed(nil, []byte("data: "+data+"\n\n"))
		}
		require.Equal(t, tc.whole, m.Whole(), "%s %q", tc.body, tc.events)
		_, err := m.End(nil)
		require.Equal(t, tc.cut, err != nil, "%s %q", tc.body, tc.events)
		if tc.cut {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		}
	}
}
