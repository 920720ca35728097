package dialect

import (
	"bytes"

	"github.com/endpick/endpick/prefix"
)

// OpenAI's responses.
var (
	responses = &api{
		paths:  []string{"/v1/responses"},
		parts:  map[string]part{"instructions": systemPart, "input": messagesPart, "tools": toolsPart},
		prompt: readResponses,
		event:  readResponsesEvent,
		whole:  readResponsesBody,
		output: readOutput,
		stores: true,
		single: true,
	}
	responseCount = counting(responses, "/v1/responses/input_tokens")
)

func readResponses(p *promptReader) bool {
	input, system, before := p.parts[messagesPart], p.parts[systemPart], p.before
	if isPrompt := isString(input) || hasElements(input); p.known || !isPrompt {
		return isPrompt
	}
	if before != nil && before.h != nil && before.head == headOfResponse(p.request) {
		p.limitConversation()
		p.h = before.h.Fork()
		p.cut()
	} else {
		p.begin()
		if isString(system) {
			p.say("system", system)
		}
		if before != nil {
			p.size = before.size
		}
		// What is between is not known.
		if p.rough = isString(p.parts[previousPart]); p.rough {
			p.cut()
		}
	}
	if isString(input) {
		p.say("user", input)
	}
	p.items(input)
	p.end()
	if p.rough {
		p.blocks = nil
	}
	return true
}

// say adds a message that is just a text.
func (p *promptReader) say(role string, text []byte) {
	m := p.message(role)
	m.Parts = append(m.Parts, prefix.Part{Content: p.shortest(text)})
	p.write(m)
}

// cut says that the sketch does not have the whole prompt.
func (p *promptReader) cut() {
	if p.sketcher != nil {
		p.sketcher.Prompt.Partial = true
	}
}

// items adds the items of an input, or of an output that will become one.
func (p *promptReader) items(v []byte) {
	for c := p.elementsOf(v); c.element() && !p.canceled(); {
		p.forget()
		p.item(&c)
	}
}

// item adds one item as a message. It skips reasoning, because templates drop it
// from earlier turns.
func (p *promptReader) item(c *cursor) {
	var kind, role, name, id, content, arguments, output []byte
	whole := c.pick(into{"type", &kind}, into{"role", &role}, into{"name", &name}, into{"call_id", &id}, into{"content", &content},
		into{"arguments", &arguments}, into{"input", &arguments}, into{"output", &output})
	if !isObject(whole) {
		return
	}
	m := p.message(p.content(kind))
	switch m.Role {
	case "", "message":
		m.Role = p.content(role)
		m.Parts = p.readParts(m.Parts, content, inputParts)
	case "function_call", "custom_tool_call":
		m.Role = "assistant"
		m.ToolCalls = append(m.ToolCalls, prefix.ToolCall{ID: p.content(id), Name: p.content(name), Arguments: p.content(arguments)})
	case "function_call_output", "custom_tool_call_output":
		m.Role, m.ToolCallID = "tool", p.content(id)
		m.Parts = p.readParts(m.Parts, output, inputParts)
	case "reasoning":
		return
	default:
		m.Parts = append(m.Parts, prefix.Part{Content: viewString(whole)})
	}
	p.write(m)
}

// readItemPart reads parts such as {"type":"input_text","text":"…"} and
// {"type":"input_image", "image_url":"…"}.
func readItemPart(c *cursor) prefix.Part {
	var kind, words, image, data, id, url, audio []byte
	whole := c.pick(into{"type", &kind}, into{"text", &words}, into{"refusal", &words}, into{"image_url", &image},
		into{"file_data", &data}, into{"file_id", &id}, into{"file_url", &url}, into{"input_audio", &audio})
	name := c.content(kind)
	if words != nil || name == "" {
		return prefix.Part{Content: c.shortest(words)}
	}
	for _, v := range [...][]byte{image, data, id, url, audio} {
		if present(v) {
			return prefix.Part{Type: name, Content: identity(v)}
		}
	}
	return prefix.Part{Type: name, Content: viewString(whole)}
}

var (
	responseEvent = []byte("response.")
	deltaEvent    = []byte(".delta")
)

// readResponsesEvent reads an event such as {"type":"response.output_text.delta","delta":"…"}. The
// last one repeats everything.
func readResponsesEvent(to *response, data []byte) {
	var kind, delta, item, response, id, usage, number, status, background []byte
	pick(data, into{"type", &kind}, into{"delta", &delta}, into{"item", &item}, into{"response", &response}, into{"sequence_number", &number})
	if n, ok := count(number); ok {
		to.sequence = n + 1
	}
	kind = stringBytes(kind)
	rest, ok := bytes.CutPrefix(kind, responseEvent)
	switch {
	case string(kind) == "error":
		to.on(event{kind: fails})
		return
	case !ok:
		readChunk(to, data)
		return
	case response != nil:
		pick(response, into{"id", &id}, into{"usage", &usage}, into{"status", &status}, into{"background", &background})
	}
	switch string(rest) {
	case "output_item.added":
		to.on(event{kind: tool, name: field(item, "name")})
	case "completed", "incomplete", "failed":
		e := event{kind: ends, all: true, id: id, value: response}
		if string(rest) == "failed" {
			e.value = nil
			to.on(event{kind: fails})
		}
		to.on(e)
		to.on(event{kind: reports, value: usage})
	case "audio.delta": // not text
		to.on(event{kind: begins, choice: none, odd: true})
	default:
		// Whoever has the id of a background response can come back to it.
		e := event{kind: begins, choice: none, id: id, odd: isTrue(background) || string(status) == `"queued"`}
		if bytes.HasSuffix(rest, deltaEvent) {
			e = event{kind: text, text: delta}
		}
		to.on(e)
	}
}

func readResponsesBody(to *response, body []byte) {
	to.on(event{kind: ends, all: true, id: field(body, "id"), value: body})
}

// readOutput adds the output of a response.
func readOutput(p *promptReader, response []byte) bool {
	output := p.field(response, "output")
	thought, calls := false, false
	for c := p.elementsOf(output); c.element(); {
		switch string(stringBytes(p.field(c.value(), "type"))) {
		case "reasoning":
			thought = true
		case "function_call", "custom_tool_call":
			calls = true
		}
	}
	if !hasElements(output) || thought && !calls {
		return false
	}
	p.items(output)
	return true
}
