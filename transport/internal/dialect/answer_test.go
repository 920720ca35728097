package dialect

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// said is an answer, independent of API.
type said struct {
	thought bool
	texts   []string
	calls   []madeCall
	// odd is set if it has a part that no client sends back unchanged.
	odd bool
	// quoted writes a text in JSON.
	quoted func(string) string
}

type madeCall struct{ id, name, arguments string }

func someSaid(r *rand.Rand) (s said) {
	texts := []string{"a", " so \"it\" is </b>\n\t😀", strings.Repeat("é€ ", 30), strings.Repeat("word ", 60)}
	arguments := []string{"{}", `{"b":1,"a":[2,"x"]}`, `{"text":"` + strings.Repeat("long ", 40) + `"}`}
	s.thought, s.odd = r.IntN(2) == 0, r.IntN(6) == 0
	for range r.IntN(4) {
		s.texts = append(s.texts, texts[r.IntN(len(texts))])
	}
	for i := range r.IntN(4) {
		s.calls = append(s.calls, madeCall{fmt.Sprint("c", i), []string{"find_it", "g"}[r.IntN(2)], arguments[r.IntN(len(arguments))]})
	}
	return s
}

func quoted(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// encodings are ways of engines and clients to write a text.
var encodings = []func(string) string{
	quoted,
	func(s string) string { return `"` + written(s) + `"` },
	func(s string) string { return strings.ReplaceAll(quoted(s), "/", `\/`) },
	func(s string) (all string) {
		for _, unit := range utf16.Encode([]rune(s)) {
			all += fmt.Sprintf(`\u%04x`, unit)
		}
		return `"` + all + `"`
	},
}

// halves cuts a text in two, between letters.
func halves(r *rand.Rand, s string) [2]string {
	letters := []rune(s)
	at := r.IntN(len(letters) + 1)
	return [2]string{string(letters[:at]), string(letters[at:])}
}

// someNulls adds null members, as many engines do, except those that exist.
func someNulls(r *rand.Rand, members string, names ...string) string {
	for _, name := range names {
		if r.IntN(3) == 0 && !strings.Contains(members, `"`+name+`":`) {
			members += `,"` + name + `":null`
		}
	}
	return members
}

func inBrackets(of []string) string { return "[" + strings.Join(of, ",") + "]" }

// way is how an API presents an answer, and how its clients send it back.
type way struct {
	path  string
	kind  *api
	turn  func(messages string) string
	known func(said) bool // whether the client sends back exactly what the engine has computed
	whole func(said) string
	parts func(*rand.Rand, said) string
	back  func(said) string
}

var ways = []way{
	{"/v1/chat/completions", chat,
		func(m string) string { return `{"model":"m","messages":[` + m + `]}` },
		func(s said) bool { return !s.thought && !s.odd && len(s.texts)+len(s.calls) > 0 },
		func(s said) string {
			more := ""
			if s.thought {
				more += `,"reasoning_content":"h"`
			}
			if s.odd {
				more += `,"refusal":"no"`
			}
			more += `,"function_call":null,"audio":null,"annotations":[]`
			return `{"choices":[{"message":` + chatBack(s)[:len(chatBack(s))-1] + more + `}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`
		},
		func(r *rand.Rand, s said) string {
			event := func(delta string) string {
				return `data: {"choices":[{"delta":{` + someNulls(r, delta, "content", "tool_calls", "reasoning", "reasoning_content", "refusal", "function_call", "audio") + "}}]}\n\n"
			}
			all := event(`"role":"assistant","content":""`)
			if s.thought {
				all += event(`"reasoning":"h"`)
			}
			for _, text := range s.texts {
				for _, half := range halves(r, text) {
					all += event(`"content":` + s.quoted(half))
				}
			}
			each := r.IntN(2) // Ollama's calls all have the first index
			for i, c := range s.calls {
				name := halves(r, c.name) // some engines stream it too
				i *= each
				all += event(fmt.Sprintf(`"tool_calls":[{"index":%d,"id":%q,"function":{"name":%q,"arguments":""}}]`, i, c.id, name[0]))
				if name[1] != "" {
					all += event(fmt.Sprintf(`"tool_calls":[{"index":%d,"function":{"name":%q}}]`, i, name[1]))
				}
				for _, half := range halves(r, c.arguments) {
					all += event(fmt.Sprintf(`"tool_calls":[{"index":%d,"function":{"arguments":%s}}]`, i, s.quoted(half)))
				}
			}
			if s.odd {
				all += event(`"refusal":"no"`)
			}
			return all + "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
		},
		chatBack,
	},
	{"/v1/messages", messages,
		func(m string) string { return `{"model":"m","system":"be","messages":[` + m + `]}` },
		func(s said) bool { return !s.odd && len(s.texts)+len(s.calls) > 0 && (!s.thought || len(s.calls) > 0) },
		func(s said) string {
			return `{"content":` + inBrackets(messageBlocks(s)) + `,"stop_reason":"end_turn"}`
		},
		func(r *rand.Rand, s said) string {
			var all []string
			at := 0
			block := func(start string, kind, field, text string) {
				all = append(all, fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, at, start))
				if text != "" {
					for _, half := range halves(r, text) {
						all = append(all, fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":{"type":%q,%q:%s}}`, at, kind, field, s.quoted(half)))
					}
				}
				at++
			}
			if s.thought {
				if r.IntN(2) == 0 {
					block(`{"type":"redacted_thinking","data":"x"}`, "", "", "")
				} else {
					block(`{"type":"thinking","thinking":""}`, "thinking_delta", "thinking", "h")
				}
			}
			if len(s.calls) > 0 {
				block(`{"type":"text","text":""}`, "", "", "") // which stays empty
			}
			for _, text := range s.texts {
				block(`{"type":"text","text":""}`, "text_delta", "text", text)
			}
			for _, c := range s.calls {
				block(fmt.Sprintf(`{"type":"tool_use","id":%q,"name":%q,"input":{}}`, c.id, c.name), "input_json_delta", "partial_json", strings.TrimPrefix(c.arguments, "{}"))
			}
			if s.odd {
				block(`{"type":"server_tool_use","id":"s","name":"search","input":{}}`, "", "", "")
			}
			return events(append(all, `{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`, `{"type":"message_stop"}`)...)
		},
		func(s said) string { return `{"role":"assistant","content":` + inBrackets(messageBlocks(s)) + `}` },
	},
	{"/v1/responses", responses,
		func(m string) string { return `{"model":"m","instructions":"be","input":[` + m + `]}` },
		func(s said) bool { return len(s.texts)+len(s.calls) > 0 && (!s.thought || len(s.calls) > 0) },
		func(s said) string { return `{"id":"resp_1","output":` + inBrackets(items(s)) + `}` },
		func(r *rand.Rand, s said) string {
			all := []string{`{"type":"response.created","response":{"id":"resp_1","output":[]}}`}
			for _, text := range s.texts {
				all = append(all, `{"type":"response.output_text.delta","delta":`+s.quoted(text)+`}`)
			}
			end := []string{"completed", "incomplete"}[r.IntN(2)] // cut off by the length limit
			return events(append(all, `{"type":"response.`+end+`","response":{"id":"resp_1","output":`+inBrackets(items(s))+`}}`)...)
		},
		func(s said) string { // many clients send back what they know
			return strings.ReplaceAll(strings.Join(items(s), ","), `"status":"completed",`, "")
		},
	},
}

func chatBack(s said) string {
	content := s.quoted(strings.Join(s.texts, ""))
	if len(s.texts) == 0 {
		content = "null"
	}
	var calls []string
	for _, c := range s.calls {
		calls = append(calls, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":%q,"arguments":%s}}`, c.id, c.name, s.quoted(c.arguments)))
	}
	if len(calls) == 0 {
		return `{"role":"assistant","content":` + content + `}`
	}
	return `{"role":"assistant","content":` + content + `,"tool_calls":` + inBrackets(calls) + `}`
}

func messageBlocks(s said) (all []string) {
	if s.thought {
		all = append(all, `{"type":"thinking","thinking":"h","signature":"x"}`, `{"type":"redacted_thinking","data":"x"}`)
	}
	for _, text := range s.texts {
		all = append(all, `{"type":"text","text":`+s.quoted(text)+`}`)
	}
	for _, c := range s.calls {
		all = append(all, fmt.Sprintf(`{"type":"tool_use","id":%q,"name":%q,"input":%s}`, c.id, c.name, c.arguments))
	}
	if s.odd {
		all = append(all, `{"type":"server_tool_use","id":"s","name":"search","input":{}}`)
	}
	return all
}

func items(s said) (all []string) {
	if s.thought {
		all = append(all, `{"type":"reasoning","id":"r","summary":[]}`)
	}
	for _, text := range s.texts {
		all = append(all, `{"type":"message","role":"assistant","content":[{"type":"output_text","text":`+s.quoted(text)+`}]}`)
	}
	for i, c := range s.calls {
		if i%2 == 1 {
			all = append(all, fmt.Sprintf(`{"type":"custom_tool_call","status":"completed","call_id":%q,"name":%q,"input":%s}`, c.id, c.name, s.quoted(c.arguments)))
			continue
		}
		all = append(all, fmt.Sprintf(`{"type":"function_call","status":"completed","call_id":%q,"name":%q,"arguments":%s}`, c.id, c.name, s.quoted(c.arguments)))
	}
	return all
}

// For any answer, from any API, whole or as a stream: its blocks are those of the next
// turn, up to the last full one; if the client will send back something else, no blocks
// are reported.
func TestTheNextTurnGoesOnFromTheAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// A seed, since rapid mostly draws small values.
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range 10 {
			continues(t, r)
		}
	})
}

func continues(t *rapid.T, r *rand.Rand) {
	w, s := ways[r.IntN(len(ways))], someSaid(r)
	back := s
	s.quoted, back.quoted = encodings[r.IntN(len(encodings))], encodings[r.IntN(len(encodings))]
	asked := `{"role":"user","content":` + quoted(strings.Repeat("why ", 1+r.IntN(40))) + `}`
	stream := r.IntN(2) == 0
	body, kind, response := w.turn(asked), "application/json", ""
	if stream {
		body, kind, response = strings.Replace(body, "{", `{"stream":true,`, 1), EventStream, w.parts(r, s)
	} else {
		response = w.whole(s)
	}
	several := r.IntN(5) == 0 // the client sends one back, and it is unknown which
	if several {
		body = strings.Replace(body, "{", `{"n":2,`, 1)
		several = w.path == "/v1/chat/completions" // other APIs have no such thing
	}
	talk := newTalk(t)
	asks := func(body string) []uint64 { return talk.ask(w.path, body, nil).Request.Blocks }
	call := talk.ask(w.path, body, nil)
	blocks := talk.answer(call, kind, response, endpick.Completed).Blocks
	if several || !w.known(s) {
		require.Nil(t, blocks, "%+v", s)
		return
	}
	want := asks(w.turn(asked + "," + w.back(back)))
	if len(want) == len(call.Request.Blocks) {
		want = nil // no full block
	}
	require.Equal(t, want, blocks, "%s %+v", w.path, s)
	if want != nil {
		next := asks(w.turn(asked + "," + w.back(back) + `,{"role":"user","content":"` + words("and") + `"}`))
		require.Greater(t, len(next), len(want))
		require.Equal(t, want, next[:len(want)])
	}
}
