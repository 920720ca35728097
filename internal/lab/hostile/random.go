package hostile

import (
	"math/rand/v2"
	"strconv"
	"strings"
)

// places are where items can be repeated: everything before and after them.
var places = []Shape{
	{Path: chat, Head: chatHead + `[`, Tail: `]}`, Comma: ","},
	{Path: chat, Head: chatHead + `[{`, Tail: `}]}`, Comma: ","},
	{Path: chat, Head: userHead + `[`, Tail: `]}]}`, Comma: ","},
	{Path: chat, Head: userHead + `[{`, Tail: `}]}]}`, Comma: ","},
	{Path: chat, Head: userHead + `[{"type":"x","x":{`, Tail: `}}]}]}`, Comma: ","},
	{Path: chat, Head: userHead + `[{"type":"x","x":[`, Tail: `]}]}]}`, Comma: ","},
	{Path: chat, Head: userHead + `"`, Tail: `"}]}`},
	{Path: chat, Head: chatHead + `[{"role":"assistant","tool_calls":[`, Tail: `]}]}`, Comma: ","},
	{Path: chat, Head: chatHead + `[{"tool_calls":[{"function":{`, Tail: `}}]}]}`, Comma: ","},
	{Path: chat, Head: chatHead + `[{"tool_calls":[{"function":{"arguments":"[`, Tail: `]"}}]}]}`, Comma: ","},
	{Path: chat, Head: chatHead + `[{"tool_calls":[{"function":{"arguments":"{`, Tail: `}"}}]}]}`, Comma: ","},
	{Path: chat, Head: userHead + `"x"}],"tools":[`, Tail: `]}`, Comma: ","},
	{Path: chat, Head: userHead + `"x"}],"tools":[{`, Tail: `}]}`, Comma: ","},
	{Path: chat, Head: userHead + `"x"}],"tools":[[`, Tail: `]]}`, Comma: ","},
	{Path: chat, Head: userHead + `"x"}],"tools":["`, Tail: `"]}`},
	{Path: chat, Head: userHead + `"x"}],`, Tail: `}`, Comma: ","},
	{Path: chat, Head: userHead + `"x"}],"stream_options":{`, Tail: `}}`, Comma: ","},
	{Path: chat, Head: userHead + `"x"}],"metadata":{`, Tail: `}}`, Comma: ","},
	{Path: chat, Head: userHead + `"x"}],"logit_bias":{`, Tail: `}}`, Comma: ","},
	{Path: chat, Head: userHead + `"x"}],"user":"`, Tail: `"}`},
	{Path: chat, Head: userHead + `"x"}],"cache_salt":"`, Tail: `"}`},
	{Path: chat, Head: userHead + `"x"}],"`, Tail: `":1}`},
	{Path: messages, Head: `{"messages":[`, Tail: `]}`, Comma: ","},
	{Path: messages, Head: `{"messages":[{"role":"user","content":[`, Tail: `]}]}`, Comma: ","},
	{Path: messages, Head: `{"messages":[{"content":[{`, Tail: `}]}]}`, Comma: ","},
	{Path: messages, Head: `{"messages":[{"content":[{"type":"tool_use","input":{`, Tail: `}}]}]}`, Comma: ","},
	{Path: messages, Head: `{"messages":[{"content":[{"type":"tool_result","content":[`, Tail: `]}]}]}`, Comma: ","},
	{Path: messages, Head: `{"messages":[{}],"tools":[`, Tail: `]}`, Comma: ","},
	{Path: messages, Head: `{"messages":[{}],"tools":[{`, Tail: `}]}`, Comma: ","},
	{Path: messages, Head: `{"messages":[{}],"system":[`, Tail: `]}`, Comma: ","},
	{Path: messages, Head: `{"messages":[{}],"system":"`, Tail: `"}`},
	{Path: messages, Head: `{"messages":[{}],"metadata":{"user_id":"`, Tail: `"}}`},
	{Path: responses, Head: `{"input":[`, Tail: `]}`, Comma: ","},
	{Path: responses, Head: `{"input":[{`, Tail: `}]}`, Comma: ","},
	{Path: responses, Head: `{"input":[{"content":[`, Tail: `]}]}`, Comma: ","},
	{Path: responses, Head: `{"input":[{"type":"function_call_output","output":[`, Tail: `]}]}`, Comma: ","},
	{Path: responses, Head: `{"input":"x","tools":[`, Tail: `]}`, Comma: ","},
	{Path: responses, Head: `{"input":"x","previous_response_id":"`, Tail: `"}`},
	{Path: responses, Head: `{"input":"`, Tail: `","instructions":"x"}`},
	{Path: completion, Head: `{"prompt":[`, Tail: `]}`, Comma: ","},
	{Path: completion, Head: `{"prompt":[[`, Tail: `]]}`, Comma: ","},
	{Path: completion, Head: `{"prompt":["`, Tail: `"]}`},
	{Path: completion, Head: `{"prompt":"`, Tail: `"}`},
	{Path: ranking, Head: `{"query":"x","documents":[`, Tail: `]}`, Comma: ","},
	{Path: ranking, Head: `{"query":"x","documents":["`, Tail: `"]}`},
	{Path: "/v1/embeddings", Head: `{"input":[`, Tail: `]}`, Comma: ","},
	{Path: "/generate", Head: `{"text":[`, Tail: `]}`, Comma: ","},
	{Path: "/generate", Head: `{"text":"x","sampling_params":{`, Tail: `}}`, Comma: ","},
	{Path: "/generate", Head: `{"input_ids":[`, Tail: `]}`, Comma: ","},
	{Path: "/tokenize", Head: `{"messages":[`, Tail: `]}`, Comma: ","},
	{Path: native, Head: `{"prompt":[`, Tail: `]}`, Comma: ","},
	{Path: native, Head: `{"prompt":{"prompt_string":"x","multimodal_data":[`, Tail: `]}}`, Comma: ","},
	{Path: infill, Head: `{"input_prefix":"","input_suffix":"","input_extra":[`, Tail: `]}`, Comma: ","},
	{Path: infill, Head: `{"input_prefix":"`, Tail: `","input_suffix":""}`},
	{Path: "/v1/unknown", Head: `{"a":[`, Tail: `]}`, Comma: ","},
	{Path: "/v1/unknown", Head: `{`, Tail: `}`, Comma: ","},
}

// What parsers look for, as building blocks for random shapes.
var (
	keys = []string{
		"role", "content", "type", "text", "name", "tool_calls", "function", "arguments", "id", "tool_call_id", "image_url", "url", "source",
		"data", "input", "output", "tool_use_id", "cache_control", "thinking", "system", "messages", "prompt", "parameters", "stream", "model",
		"call_id", "refusal", "file_id", "prompt_string", "multimodal_data", "is_error", "user_id", "", "a", "p", "\x00", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", `\u0061`, `type\u0000`,
	}
	texts = []string{
		"", "x", "user", "text", "tool", "image", "image_url", "tool_use", "tool_result", "function_call", "function_call_output", "message", "reasoning",
		"thinking", "document", "input_text", "p", `\n`, `\\`, `\"`, `\u0061`, `\u00e9`, `\ud83d\ude00`, `\ud83d`, "\xff", "\xffx", "\xc3", `{\"b\":1,\"a\":2}`, `[[]]`, `{}`, "\x00\x00\x00", "é", "aaaaaaa\\n",
		"twelve bytes", "a text of forty bytes and no escapes at all",
	}
	words = []string{"1", "0", "-1", "1.5", "1e9", "12345678901234567890", "true", "null", "[]", "{}", `""`, "x", "000001", " "}
)

// Random returns a random shape. It leaves strings out of items inside of strings,
// which they would end.
func Random(r *rand.Rand) Shape {
	s := places[r.IntN(len(places))]
	switch {
	case strings.HasSuffix(s.Head, `"`) && s.Comma == "":
		for range 1 + r.IntN(3) {
			s.Item += texts[r.IntN(len(texts))]
		}
	case strings.HasSuffix(s.Head, "{"):
		s.Item = member(r, 2)
	default:
		s.Item = value(r, 3)
	}
	if strings.HasSuffix(s.Head, `"{`) || strings.HasSuffix(s.Head, `"[`) {
		s.Item = strings.ReplaceAll(strings.ReplaceAll(s.Item, `\`, `\\`), `"`, `\"`)
	}
	if r.IntN(8) == 0 {
		s.Comma += strings.Repeat(" ", r.IntN(10))
	}
	if s.Item == "" {
		s.Item = "x"
	}
	return s
}

func value(r *rand.Rand, depth int) string {
	n := 1 + r.IntN(3)
	switch k := r.IntN(10); {
	case depth > 0 && k < 5:
		var all []string
		for range n {
			all = append(all, member(r, depth-1))
		}
		return "{" + strings.Join(all, ",") + "}"
	case depth > 0 && k < 7:
		var all []string
		for range n {
			all = append(all, value(r, depth-1))
		}
		return "[" + strings.Join(all, ",") + "]"
	case k < 9:
		return `"` + texts[r.IntN(len(texts))] + `"`
	}
	return words[r.IntN(len(words))]
}

func member(r *rand.Rand, depth int) string {
	space := [...]string{"", "", "", "", " ", "  "}
	return `"` + keys[r.IntN(len(keys))] + `"` + space[r.IntN(len(space))] + ":" + space[r.IntN(len(space))] + value(r, depth)
}

// Mixed returns a shape whose items are those of several, for places that allow that.
func Mixed(r *rand.Rand, s, other Shape) Shape {
	if s.Comma != "" && r.IntN(2) == 0 && strings.HasSuffix(s.Head, "{") == strings.HasSuffix(other.Head, "{") && other.Comma != "" {
		s.Item += s.Comma + other.Item
	} else {
		s.Item = strings.Replace(s.Item, "x", strconv.Itoa(r.IntN(1000)), 1)
	}
	return s
}
