package suite

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
)

const (
	chatPath    = "/v1/chat/completions"
	eventStream = "Content-Type: text/event-stream; charset=utf-8"
	done        = "data: [DONE]\n\n"
)

// event is an event of OpenAI's.
func event(data string) string { return "data: " + data + "\n\n" }

// named is an event of Anthropic's, or of the responses API.
func named(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }

// question is a chat request, with additional members.
func question(more string) string {
	return `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What is the weather like?"}],"max_tokens":16` + more + `}`
}

// delta is a chunk of a chat.
func delta(choice int, delta string) string {
	return event(fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":%d,"delta":%s,"finish_reason":null}]}`, choice, delta))
}

func finish(choice int, reason string) string {
	return event(fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":%d,"delta":{},"finish_reason":%q}]}`, choice, reason))
}

var chatUsage = event(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],"usage":{"prompt_tokens":21,"completion_tokens":3,"total_tokens":24,"prompt_tokens_details":{"cached_tokens":16}}}`)

// answerOf is a chat that does not stream.
func answerOf(choices ...string) string {
	return `{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[` + strings.Join(choices, ",") +
		`],"usage":{"prompt_tokens":21,"completion_tokens":3,"total_tokens":24,"prompt_tokens_details":{"cached_tokens":16}}}`
}

func choice(i int, content string) string {
	return fmt.Sprintf(`{"index":%d,"message":{"role":"assistant","content":%q},"logprobs":null,"finish_reason":"stop"}`, i, content)
}

// chatStream is a chat stream.
func chatStream() []string {
	return []string{
		delta(0, `{"role":"assistant","content":""}`), delta(0, `{"content":"It"}`), delta(0, `{"content":" is"}`), delta(0, `{"content":" raining."}`),
		finish(0, "stop"), done,
	}
}

// failure is an error in OpenAI's format.
func failure(status int) string {
	return fmt.Sprintf(`{"error":{"message":"the engine says %d","type":"engine","param":null,"code":%d}}`, status, status)
}

func packed(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return b.String()
}

// form is the request of a transcription.
func form(file string) string {
	return "--line\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n" +
		"--line\r\nContent-Disposition: form-data; name=\"file\"; filename=\"speech.wav\"\r\nContent-Type: audio/wav\r\n\r\n" + file + "\r\n--line--\r\n"
}
