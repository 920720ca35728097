package dialect

import (
	"bytes"

	"github.com/endpick/endpick/prefix"
)

// OpenAI's responses.
var (
	responses = &api{
		paths:   []string{"/v1/responses"},
		parts:   map[string]part{"instructions": systemPart, "input": messagesPart, "tools": toolsPart},
		prompt:  readResponses,
		event:   readResponsesEvent,
		whole:   readResponsesBody,
		output:  readOutput,
		usage:   (*usage).read,
		usageIn: "usage",
		stores:  true,
		single:  true,
	}
	responseCount = counting(responses, "/v1/responses/input_tokens")
)

func readResponses(p *promptReader) bool {
	input, system, before := p.parts[messagesPart], p.parts[systemPart], p.before
	if isPrompt := isString(input) || hasElements(input); p.known || !isPrompt {
		return isPrompt
	}
	p.limitConversation()
	if before != nil && before.h != nil && before.head == headOfResponse(p.request) {
		p.h = before.h.Fork()
		p.cut()
	} else {
		p.begin()
		if isString(system) {
			p.write(&prefix.Message{Role: "system", Parts: []prefix.Part{{Content: p.shortest(system)}}})
		}
		if before != nil {
			p.size = before.size
		}
		// What is between is not known.
		if p.rough = isString(p.session.previous); p.rough {
			p.cut()
		}
	}
	if isString(input) {
		p.write(&prefix.Message{Role: "user", Parts: []prefix.Part{{Content: p.shortest(input)}}})
	}
	p.items(input)
	p.end()
	if p.rough {
		p.blocks = nil
	}
	return true
}

// cut says that the sketch does not have the whole prompt.
func (p *promptReader) cut() {
	if p.sketcher != nil {
		p.sketcher.Prompt.Partial = true
	}
}

// items writes the items of an input, or of an output that will become one.
func (p *promptReader) items(v []byte) {
	for c := p.elementsOf(v); c.element() && !p.canceled(); {
		p.forget()
		p.item(&c)
	}
}

// item writes one item as a message. It skips reasoning, because templates drop it
// from earlier turns.
func (p *promptReader) item(c *cursor) {
	c.peek()
	start := c.i
	if !c.openOrSkip('{') {
		return
	}
	var kind, role, name, id string
	var arguments []byte
	m := &p.m
	content, output := m.Parts[:0], p.output[:0]
	for c.member() {
		switch string(c.key) {
		case "type":
			kind = c.text()
		case "role":
			role = c.text()
		case "name":
			name = c.text()
		case "call_id":
			id = c.text()
		case "content":
			content = readParts(c, content[:0], inputParts)
		case "arguments", "input":
			arguments = c.value()
		case "output":
			output = readParts(c, output[:0], inputParts)
		default:
			c.value()
		}
	}
	*m = prefix.Message{Parts: content, ToolCalls: m.ToolCalls[:0]}
	p.output = output
	switch kind {
	case "", "message":
		m.Role = role
	case "function_call", "custom_tool_call":
		m.Role, m.Parts = "assistant", content[:0]
		m.ToolCalls = append(m.ToolCalls, prefix.ToolCall{ID: id, Name: name, Arguments: p.content(arguments)})
	case "function_call_output", "custom_tool_call_output":
		m.Role, m.ToolCallID, m.Parts = "tool", id, output
	case "reasoning":
		return
	default:
		m.Role = kind
		m.Parts = append(content[:0], prefix.Part{Content: viewString(c.b[start:c.i])})
	}
	p.write(m)
	m.Parts = content[:0]
}

// readItemPart reads parts such as {"type":"input_text","text":"…"} and
// {"type":"input_image", "image_url":"…"}.
func readItemPart(c *cursor) prefix.Part {
	c.peek()
	start := c.i
	if !c.openOrSkip('{') {
		return prefix.Part{}
	}
	var kind string
	var words, content []byte
	for c.member() {
		switch string(c.key) {
		case "type":
			kind = c.text()
		case "text", "refusal":
			words = c.value()
		case "image_url", "file_data", "file_id", "file_url", "input_audio":
			if v := c.value(); present(v) {
				content = v
			}
		default:
			c.value()
		}
	}
	switch {
	case words != nil || kind == "":
		return prefix.Part{Content: c.shortest(words)}
	case content == nil:
		content = c.b[start:c.i]
	case isString(content):
		content = stringBytes(content)
	}
	return prefix.Part{Type: kind, Content: viewString(content)}
}

var (
	responseEvent = []byte("response.")
	deltaEvent    = []byte(".delta")
)

// readResponsesEvent reads an event such as {"type":"response.output_text.delta","delta":"…"}. The
// last one repeats everything.
func readResponsesEvent(to *response, data []byte) {
	var kind, delta, item, response []byte
	for m := membersOf(data); m.member(); {
		v := m.value()
		switch string(m.key) {
		case "type":
			kind = stringBytes(v)
		case "delta":
			delta = v
		case "item":
			item = v
		case "response":
			response = v
		}
	}
	if string(kind) == "error" {
		to.on(event{kind: fails})
		return
	}
	rest, ok := bytes.CutPrefix(kind, responseEvent)
	if !ok {
		readChunk(to, data)
		return
	}
	switch string(rest) {
	case "output_item.added":
		to.on(event{kind: tool, name: field(item, "name")})
	case "completed", "incomplete":
		to.on(event{kind: ends, all: true, id: field(response, "id"), value: response})
		to.on(event{kind: reports, value: field(response, "usage")})
	case "failed":
		to.on(event{kind: ends, all: true, id: field(response, "id")})
		to.on(event{kind: reports, value: field(response, "usage")})
		to.on(event{kind: fails})
	case "audio.delta": // not text
		to.on(event{kind: begins, choice: none})
	default:
		to.on(event{kind: begins, choice: none, id: field(response, "id")})
		if bytes.HasSuffix(rest, deltaEvent) {
			to.on(event{kind: text, text: delta})
		}
	}
}

func readResponsesBody(to *response, body []byte) {
	to.on(event{kind: ends, all: true, id: field(body, "id"), value: body})
}

// readOutput writes the output of a response.
func readOutput(p *promptReader, response []byte) bool {
	output := p.field(response, "output")
	thought, calls, n := false, false, 0
	for c := p.elementsOf(output); c.element(); n++ {
		switch string(stringBytes(p.field(c.value(), "type"))) {
		case "reasoning":
			thought = true
		case "function_call", "custom_tool_call":
			calls = true
		}
	}
	if n == 0 || thought && !calls {
		return false
	}
	p.items(output)
	return true
}
