package transport_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/dialect"
)

// says answers everything with one body.
func says(kind, body string) func(http.ResponseWriter, *http.Request, []byte) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
		return true
	}
}

func TestMessagesAndResponsesAreMeteredAndPassedOn(t *testing.T) {
	const request = `{"model":"m","messages":[{"role":"user","content":"hi"}],"input":"hi","stream":true}`
	for path, stream := range map[string]string{
		"/v1/messages": "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":36,\"cache_read_input_tokens\":64,\"output_tokens\":1}}}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":4}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		"/v1/responses": "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n" +
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":100,\"input_tokens_details\":{\"cached_tokens\":64},\"output_tokens\":4}}}\n\n",
	} {
		e := startEngine(t, says("text/event-stream", stream))
		w := newWorld(t, transport.Config{}, e.URL)
		_, body := w.ok(t, post(t, path, request))
		assert.Equal(t, stream, body, "byte for byte")
		assert.Equal(t, request, e.lastBody(), "nothing is asked for")
		assert.Equal(t, endpick.Outcome{InputTokens: 100, OutputTokens: 4, CachedTokens: 64, HasCachedTokens: true}, w.outcome(t))
		r := w.record(t)
		require.NotNil(t, r.TTFTMillis)
		assert.Equal(t, []any{true, 100, 4, "completed"}, []any{r.Stream, r.InputTokens, r.OutputTokens, r.Status})
		w.idle(t)
	}
}

// A stream that begins with an error goes elsewhere, whatever the API calls it.
func TestAStreamThatBeginsWithAnErrorGoesElsewhere(t *testing.T) {
	bad := startEngine(t, says("text/event-stream", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"no\"}}\n\n"))
	good := startEngine(t, says("text/event-stream", "data: {\"type\":\"message_stop\"}\n\n"))
	w := newWorld(t, transport.Config{}, bad.URL, good.URL)
	for range 4 {
		_, body := w.ok(t, post(t, "/v1/messages", `{"model":"m","messages":[{}],"stream":true}`))
		assert.Contains(t, body, "message_stop")
	}
	w.idle(t)
}

// What computes no prompt is done well, and teaches nobody anything.
func TestCountingIsNoPrompt(t *testing.T) {
	e := startEngine(t, says("application/json", `{"input_tokens":14}`))
	w := newWorld(t, transport.Config{}, e.URL)
	_, body := w.ok(t, post(t, "/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`))
	assert.Equal(t, `{"input_tokens":14}`, body)
	assert.Equal(t, endpick.Outcome{Status: endpick.Canceled}, w.outcome(t))
	assert.Equal(t, "completed", w.record(t).Status)
	w.idle(t)
}

func TestErrorsHaveTheShapeOfTheirAPI(t *testing.T) {
	w := newWorld(t, transport.Config{Dialect: dialect.Config{DenyUnknown: true}})
	for _, tc := range []struct {
		path   string
		status int
		body   string
	}{
		{"/v1/messages", 503, `{"type":"error","error":{"type":"overloaded_error","message":"no server is available for this model"}}`},
		{"/v1/responses", 503, `{"error":{"message":"no server is available for this model","type":"api_error","param":null,"code":"503"}}`},
		{"/sleep", 403, `{"error":{"message":"this is not for clients","type":"invalid_request_error","param":null,"code":"403"}}`},
		{"/v1/batches", 404, `{"error":{"message":"there is nothing here","type":"invalid_request_error","param":null,"code":"not_found"}}`},
	} {
		in := post(t, tc.path, `{"model":"m","messages":[{}],"input":"x"}`)
		_, _, err := w.do(t, in)
		require.Error(t, err)
		status, header, body := transport.ErrorResponse(tc.path, err)
		assert.Equal(t, tc.status, status)
		assert.JSONEq(t, tc.body, string(body))
		assert.Equal(t, "application/json", header.Get("Content-Type"))
		rec := httptest.NewRecorder()
		transport.ErrorHandler(rec, in, err)
		assert.Equal(t, tc.status, rec.Code)
		assert.JSONEq(t, tc.body, rec.Body.String())
	}
}
