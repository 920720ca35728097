package dialect

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// Reusing the parse of the previous event gives the same as parsing each event anew:
// in what is passed on, counted, reported to the lease and kept of the answer.
func TestAnEchoIsWhatReadingGives(t *testing.T) {
	chats := []string{
		`{"choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":null}]}`,
		`{"choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":null}],"usage":null}`,
		`{"usage":null,"choices":[{"index":0,"delta":{"content":TEXT}}]}`,
		`{"choices":[{"index":0,"delta":{"content":TEXT}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":TEXT}}]}`,
		`{"choices":[{"index":0,"delta":{"content":null,"reasoning_content":TEXT}}]}`,
		`{"choices":[{"index":0,"delta":{"reasoning":TEXT,"content":""}}]}`,
		`{"choices":[{"index":0,"delta":{"reasoning":"x","content":TEXT}}]}`,
		`{"choices":[{"index":0,"delta":{"refusal":TEXT}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":TEXT}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":TEXT}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"content":TEXT}},{"index":1,"delta":{}}]}`,
		`{"choices":[{"index":0,"delta":{"content":TEXT}},{"index":1,"delta":{"content":"x"}}]}`,
		`{"choices":[{"index":0,"text":TEXT}]}`,
		`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":TEXT}]}`,
		`{"choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":"stop"}]}`,
		`{"choices":[{"delta":{"content":TEXT}}],"choices":[{"delta":{"content":"x"}}]}`,
		`{"choices":[{"delta":{"content":"x"},"delta":{"content":TEXT}}]}`,
		`{"choices":[{"delta":{"content":TEXT}}],"error":{"message":"x"}}`,
		`{"choices":[{"delta":{"content":TEXT}}],"timings":{"a":1}}`,
		`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
	}
	blocks := []string{
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":TEXT}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":TEXT}}`,
		`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":TEXT}}`,
		`{"type":"content_block_delta","delta":{"type":"text_delta","text":TEXT},"index":2}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":TEXT}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":TEXT}}`,
		`{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":3}}`,
		`{"type":TEXT,"index":0}`,
	}
	values := []string{
		`""`, `"a"`, `" work"`, `"\n"`, `"\u00e9\ud83d\ude00"`, `"é"`, `null`, `1`, `"a","x":"b"`, `"a\"`, `"\\"`, `"text`, `{"a":"b"}`, `"stop"`, `"]}"`,
		`"` + strings.Repeat("long ", 30) + `"`,
	}
	api := map[string][]string{"/v1/chat/completions": chats, "/v1/completions": chats, "/v1/messages": blocks}
	rapid.Check(t, func(rt *rapid.T) {
		path := rapid.SampledFrom([]string{"/v1/chat/completions", "/v1/completions", "/v1/messages"}).Draw(rt, "path")
		body := `{"model":"m","stream":true,"prompt":"x","messages":[{"role":"user","content":"hello"}]}`
		m, twin := startedMeterOf(t, path, body), startedMeterOf(t, path, body)
		template := ""
		for range rapid.IntRange(1, 20).Draw(rt, "events") {
			if template == "" || rapid.IntRange(0, 4).Draw(rt, "change") == 0 {
				template = rapid.SampledFrom(api[path]).Draw(rt, "template")
			}
			event := "data: " + strings.ReplaceAll(template, "TEXT", rapid.SampledFrom(values).Draw(rt, "value")) + "\n\n"
			twin.echo.known = false
			require.Equal(rt, string(twin.Feed(nil, []byte(event))), string(m.Feed(nil, []byte(event))))
			require.Equal(rt, twin.Seen().OutputTokens, m.Seen().OutputTokens)
			a, b := twin.answer, m.answer
			require.Equal(rt, a, b)
			require.Equal(rt, [4]bool{twin.chunks, twin.choices.finished(), twin.failed, twin.whole}, [4]bool{m.chunks, m.choices.finished(), m.failed, m.whole})
			require.Equal(rt, twin.contentBytes, m.contentBytes)
		}
		wholeTwin, errTwin := twin.End(nil)
		whole, err := m.End(nil)
		require.Equal(rt, string(wholeTwin), string(whole))
		require.Equal(rt, errTwin, err)
		require.Equal(rt, twin.Outcome(endpick.Completed), m.Outcome(endpick.Completed))
	})
}

// Events of a common stream repeat the one before; long events are not kept.
func TestEchoes(t *testing.T) {
	var e echo
	read := func(text string) bool {
		data := []byte(text)
		c, like := e.of(data)
		if !like {
			c = readChunk(data)
			e.keep(data, &c)
		}
		return like
	}
	const head, tail = `{"choices":[{"index":0,"delta":{"content":`, `},"finish_reason":null}],"usage":null}`
	assert.False(t, read(head+`"a"`+tail))
	assert.True(t, read(head+`"\n"`+tail))
	assert.False(t, read(head+`""`+tail))
	assert.False(t, read(head+`"a"`+tail))
	assert.True(t, read(head+`"é"`+tail))
	assert.False(t, read(`{"choices":[]}`))
	assert.False(t, read(head+`"a"`+tail))
	assert.False(t, read(head+`"`+strings.Repeat("a", maxEcho)+`"`+strings.Replace(tail, "0", "1", 1)+" "))
	assert.False(t, e.known)
}

// A lease gets all tokens of a piece in one call once the piece has been read,
// including those of an event that ends the stream.
func TestLeaseIsToldOfTokens(t *testing.T) {
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a"}}})
	require.NoError(t, err)
	lease, err := router.Route(endpick.Request{Stream: true})
	require.NoError(t, err)
	told := func() int { return router.Endpoints()[0].Candidate.InFlight.OutputTokens }
	m := startedMeter(t)
	m.lease = lease
	event := strings.Replace(string(oneChunk), "work", strings.Repeat("work ", 20), 1)
	m.Feed(nil, []byte(strings.Repeat(event, 5)+event[:10]))
	require.NotZero(t, told())
	require.Equal(t, m.Seen().OutputTokens, told())
	before := told()
	m.Feed(nil, []byte(strings.TrimRight(event[10:], "\n")))
	require.Equal(t, before, told())
	_, err = m.End(nil)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Greater(t, told(), before)
	require.Equal(t, m.Seen().OutputTokens, told())
}
