package dialect

import (
	"bytes"

	"github.com/endpick/endpick/prefix"
)

// OpenAI's responses.
var responsesDialect = dialect{
	paths:     []string{"/v1/responses"},
	place:     placeResponses,
	hasPrompt: func(c *call) bool { return isString(c.messages) || hasElements(c.messages) },
	prompt:    readResponses,
	event:     readResponsesEvent,
	usage:     (*usage).read,
	inUsage:   "usage",
	collect:   collectResponses,
	answered:  responsesAnswered,
	stores:    true,
	single:    true,
}

// responseCountDialect counts the tokens of a prompt, which will be sent to the
// same endpoint.
var responseCountDialect = dialect{
	paths:     []string{"/v1/responses/input_tokens"},
	place:     placeResponses,
	hasPrompt: func(c *call) bool { return isString(c.messages) || hasElements(c.messages) },
	prompt:    readResponses,
	usage:     func(*usage, []byte) {},
	idle:      true,
}

func placeResponses(c *call, key []byte) *[]byte {
	switch string(key) {
	case "instructions":
		return &c.system
	case "input":
		return &c.messages
	case "tools":
		return &c.tools
	}
	return nil
}

func readResponses(p *promptReader) bool {
	if p.known {
		return true
	}
	before := p.before
	p.limitConversation()
	if before != nil && before.h != nil && before.head == headOfResponse(p.call) {
		p.h = before.h.Fork()
		p.cut()
	} else {
		p.begin()
		if isString(p.system) {
			p.write(&prefix.Message{Role: "system", Parts: []prefix.Part{{Content: p.shortest(p.system)}}})
		}
		if before != nil {
			p.size = before.size
		}
		// What is between is not known.
		if p.rough = isString(p.session.previous); p.rough {
			p.cut()
		}
	}
	if isString(p.messages) {
		p.write(&prefix.Message{Role: "user", Parts: []prefix.Part{{Content: p.shortest(p.messages)}}})
	}
	p.items(p.messages)
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

func readResponsesEvent(data []byte) (c chunk) {
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
		c.failed = true
		return c
	}
	rest, ok := bytes.CutPrefix(kind, responseEvent)
	if !ok {
		return readChunk(data) // engines report errors like this in any stream
	}
	c.choices = true
	switch string(rest) {
	case "output_item.added":
		c.any = true
		c.content = stringLen(field(item, "name"))
	case "completed", "incomplete", "failed":
		c.finished, c.whole = true, true
		c.failed = string(rest) == "failed"
		if u := field(response, "usage"); present(u) {
			c.usage = u
		}
	case "audio.delta": // not text
	default:
		if bytes.HasSuffix(rest, deltaEvent) {
			c.any = true
			c.content = stringLen(delta)
		}
	}
	return c
}
