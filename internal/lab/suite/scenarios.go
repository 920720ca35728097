package suite

import (
	"slices"
	"strings"
)

// Scenarios returns all scenarios, in the order of the table.
func Scenarios() []Scenario { return slices.Concat(apis(), wires(), troubles()) }

func whole(body string) []Reply { return []Reply{{Parts: []string{body}}} }

func stream(parts ...string) []Reply {
	return []Reply{{Header: []string{eventStream, "Cache-Control: no-cache"}, Parts: parts}}
}

// metered is a chat stream that reports its usage on request.
func metered(parts []string) []Reply {
	all := stream(parts...)
	all[0].Usage = chatUsage
	return all
}

const (
	streamed  = `,"stream":true`
	withUsage = `,"stream":true,"stream_options":{"include_usage":true}`
	tools     = `,"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`
)

// apis are successful requests of each API.
func apis() []Scenario {
	called := `{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Paris\"}"}}]},"finish_reason":"tool_calls"}`
	calls := func(i int, id, arguments string) string {
		return delta(0, `{"tool_calls":[{"index":`+string(rune('0'+i))+`,`+id+`"function":{`+arguments+`}}]}`)
	}
	returned := `,"stream":true` + tools
	completion := func(text, reason string) string {
		return event(`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,"text":"` + text + `","finish_reason":` + reason + `}]}`)
	}
	message := `{"model":"m","max_tokens":16,"system":"Be brief.","messages":[{"role":"user","content":"What is the weather like?"}]`
	response := `{"model":"m","instructions":"Be brief.","input":[{"type":"message","role":"user","content":"What is the weather like?"}]`
	spoken := `{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"It is raining.","annotations":[]}]}`
	responded := `{"id":"resp_1","object":"response","created_at":1700000000,"model":"m","status":"completed","output":[` + spoken + `],"usage":{"input_tokens":21,"input_tokens_details":{"cached_tokens":16},"output_tokens":3,"total_tokens":24}}`
	return []Scenario{
		{Name: "chat", Request: Request{Body: question("")}, Replies: whole(answerOf(choice(0, "It is raining.")))},
		{Name: "chat, stream", Request: Request{Body: question(streamed)}, Replies: metered(chatStream())},
		{Name: "chat, stream, usage asked for", Request: Request{Body: question(withUsage)}, Replies: metered(chatStream())},
		{Name: "chat, n = 2", Request: Request{Body: question(`,"n":2`)}, Replies: whole(answerOf(choice(0, "It is raining."), choice(1, "It rains.")))},
		{
			Name: "chat, n = 2, stream", Request: Request{Body: question(`,"n":2` + withUsage)},
			Replies: metered([]string{
				delta(0, `{"role":"assistant","content":"It is"}`), delta(1, `{"role":"assistant","content":"It"}`), delta(0, `{"content":" raining."}`),
				finish(0, "stop"), delta(1, `{"content":" rains."}`), finish(1, "length"), done,
			}),
		},
		{Name: "chat, tools", Request: Request{Body: question(tools)}, Replies: whole(answerOf(called))},
		{
			Name: "chat, tools, stream", Request: Request{Body: question(returned)},
			Replies: metered([]string{
				calls(0, `"id":"call_1","type":"function",`, `"name":"weather","arguments":""`), calls(0, "", `"arguments":"{\"city\":"`), calls(0, "", `"arguments":"\"Paris\"}"`),
				calls(1, `"id":"call_2","type":"function",`, `"name":"weather","arguments":"{}"`), finish(0, "tool_calls"), done,
			}),
		},
		{
			Name: "chat, reasoning, stream", Request: Request{Body: question(`,"reasoning_effort":"low"` + withUsage)},
			Replies: metered([]string{delta(0, `{"role":"assistant","reasoning_content":"Clouds."}`), delta(0, `{"content":"It rains."}`), finish(0, "stop"), done}),
		},
		{
			Name: "completions", Request: Request{Path: "/v1/completions", Body: `{"model":"m","prompt":"The weather is","max_tokens":16}`},
			Replies: whole(`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,"text":" wet.","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`),
		},
		{
			Name: "completions, stream", Request: Request{Path: "/v1/completions", Body: `{"model":"m","prompt":"The weather is","max_tokens":16,"stream":true}`},
			Replies: []Reply{{
				Header: []string{eventStream}, Parts: []string{completion(" wet", "null"), completion(".", `"stop"`), done},
				Usage: event(`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`),
			}},
		},
		{
			Name: "messages", Request: Request{Path: "/v1/messages", Header: []string{"Anthropic-Version: 2023-06-01", "X-Api-Key: key"}, Body: message + "}"},
			Replies: whole(`{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"It is raining."}],"stop_reason":"end_turn","usage":{"input_tokens":5,"cache_read_input_tokens":16,"output_tokens":3}}`),
		},
		{
			Name: "messages, stream", Request: Request{Path: "/v1/messages", Header: []string{"Anthropic-Version: 2023-06-01"}, Body: message + `,"stream":true}`},
			Replies: stream(
				named("message_start", `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":5,"cache_read_input_tokens":16,"output_tokens":0}}}`),
				named("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`), named("ping", `{"type":"ping"}`),
				named("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"It is raining."}}`),
				named("content_block_stop", `{"type":"content_block_stop","index":0}`),
				named("message_delta", `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}`), named("message_stop", `{"type":"message_stop"}`),
			),
		},
		{Name: "messages, count tokens", Request: Request{Path: "/v1/messages/count_tokens", Body: message + "}"}, Replies: whole(`{"input_tokens":21}`)},
		{Name: "responses", Request: Request{Path: "/v1/responses", Body: response + "}"}, Replies: whole(responded)},
		{
			Name: "responses, stream", Request: Request{Path: "/v1/responses", Body: response + `,"stream":true}`},
			Replies: stream(
				named("response.created", `{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","output":[]}}`),
				named("response.output_text.delta", `{"type":"response.output_text.delta","sequence_number":1,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"It is raining."}`),
				named("response.output_item.done", `{"type":"response.output_item.done","sequence_number":2,"output_index":0,"item":`+spoken+`}`),
				named("response.completed", `{"type":"response.completed","sequence_number":3,"response":`+responded+`}`),
			),
		},
		{Name: "responses, a stored one", Request: Request{Method: "GET", Path: "/v1/responses/resp_1"}, Replies: whole(responded)},
		{
			Name: "embeddings", Request: Request{Path: "/v1/embeddings", Body: `{"model":"m","input":["It rains.","It shines."]}`},
			Replies: whole(`{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[0.25,-0.5]},{"object":"embedding","index":1,"embedding":[1,0]}],"usage":{"prompt_tokens":6,"total_tokens":6}}`),
		},
		{
			Name: "embeddings, long", Request: Request{Path: "/v1/embeddings", Body: `{"model":"m","input":"It rains.","encoding_format":"base64"}`},
			Replies: whole(`{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":"` + strings.Repeat("AACAPw", 43700) + `"}],"usage":{"prompt_tokens":3,"total_tokens":3}}`),
		},
		{
			Name: "rerank", Request: Request{Path: "/v1/rerank", Body: `{"model":"m","query":"rain","documents":["It rains.","It shines."]}`},
			Replies: whole(`{"id":"r","model":"m","usage":{"total_tokens":9},"results":[{"index":0,"relevance_score":0.9},{"index":1,"relevance_score":0.1}]}`),
		},
		{
			Name: "multipart", Replies: whole(`{"text":"It is raining."}`),
			Request: Request{Path: "/v1/audio/transcriptions", Header: []string{"Content-Type: multipart/form-data; boundary=line"}, Body: form("RIFF\x00\x01\xff\r\n")},
		},
		{
			Name: "multipart, long", Replies: whole(`{"text":"It is raining."}`),
			Request: Request{Path: "/v1/audio/transcriptions", Header: []string{"Content-Type: multipart/form-data; boundary=line"}, Body: form(strings.Repeat("\x00\x80\xff", 100<<10)), Chunked: true},
		},
		{Name: "models", Request: Request{Method: "GET", Path: "/v1/models"}, Replies: whole(`{"object":"list","data":[{"id":"m","object":"model","created":1700000000,"owned_by":"engine"}]}`)},
		{Name: "a path of no API", Request: Request{Method: "GET", Path: "/version?a=1;b=%2F&c"}, Replies: whole(`{"version":"1.0"}`)},
	}
}
