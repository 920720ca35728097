package dialect

import "github.com/endpick/endpick/prefix"

// OpenAI's chat completions.
var chatDialect = dialect{
	paths:     []string{"/chat/completions"},
	place:     placeChat,
	hasPrompt: func(c *call) bool { return hasElements(c.messages) },
	prompt:    readChat,
	options:   true,
	event:     readChunk,
	usage:     (*usage).read,
	inUsage:   "usage",
	collect:   collectChat,
	answered:  chatAnswered,
}

// chatCountDialect counts the tokens of a prompt, which will be sent to the same
// endpoint.
var chatCountDialect = dialect{
	paths:     []string{"/chat/completions/input_tokens"},
	place:     placeChat,
	hasPrompt: chatDialect.hasPrompt,
	prompt:    readChat,
	usage:     func(*usage, []byte) {},
	idle:      true,
}

func placeChat(c *call, key []byte) *[]byte {
	switch string(key) {
	case "messages":
		return &c.messages
	case "tools":
		return &c.tools
	}
	return nil
}

func readChat(p *promptReader) bool {
	if p.known {
		return true
	}
	p.begin()
	for c := p.elementsOf(p.messages); c.element() && !p.canceled(); {
		p.forget()
		readMessage(&c, &p.m)
		p.write(&p.m)
	}
	p.end()
	return true
}

func readMessage(c *cursor, m *prefix.Message) {
	*m = prefix.Message{Parts: m.Parts[:0], ToolCalls: m.ToolCalls[:0]}
	for ok := c.openOrSkip('{'); ok && c.member(); {
		switch string(c.key) {
		case "role":
			m.Role = c.text()
		case "name":
			m.Name = c.text()
		case "tool_call_id":
			m.ToolCallID = c.text()
		case "content":
			m.Parts = readParts(c, m.Parts[:0], chatParts)
		case "tool_calls":
			m.ToolCalls = m.ToolCalls[:0]
			for ok := c.openOrSkip('['); ok && c.element(); {
				m.ToolCalls = appended(m.ToolCalls, readToolCall(c))
			}
		default:
			c.value()
		}
	}
}

// partForm is the API that defines what parts look like. (A function instead would make
// every cursor escape to the heap.)
type partForm uint8

const (
	chatParts  partForm = iota
	inputParts          // of responses
	blockParts          // of a tool's result, in Anthropic's messages
)

// readParts reads content: a text, or a list of parts.
func readParts(c *cursor, parts []prefix.Part, form partForm) []prefix.Part {
	if !c.open('[') {
		if v := c.value(); isString(v) {
			parts = append(parts, prefix.Part{Content: c.shortest(v)})
		}
		return parts
	}
	for c.element() {
		switch form {
		case chatParts:
			parts = appended(parts, readPart(c))
		case inputParts:
			parts = appended(parts, readItemPart(c))
		case blockParts:
			parts = appended(parts, readBlockPart(c))
		}
	}
	return parts
}

// readPart reads {"type":"text","text":"…"} or another part, such as
// {"type":"image_url","image_url":{"url":"…"}}, whose content is the member with
// the name of the type.
func readPart(c *cursor) prefix.Part {
	c.peek()
	start := c.i
	var kind string
	var words []byte
	for ok := c.openOrSkip('{'); ok && c.member(); {
		switch string(c.key) {
		case "type":
			kind = c.text()
		case "text":
			words = c.value()
		default:
			c.value()
		}
	}
	if kind == "" || kind == "text" {
		return prefix.Part{Content: c.shortest(words)}
	}
	content := field(c.b[start:c.i], kind)
	if url := field(content, "url"); isString(url) {
		content = url
	}
	if isString(content) {
		content = stringBytes(content)
	}
	return prefix.Part{Type: kind, Content: viewString(content)}
}

func readToolCall(c *cursor) (t prefix.ToolCall) {
	for ok := c.openOrSkip('{'); ok && c.member(); {
		switch string(c.key) {
		case "id":
			t.ID = c.text()
		case "function":
			t.Name, t.Arguments = "", ""
			for ok := c.openOrSkip('{'); ok && c.member(); {
				switch string(c.key) {
				case "name":
					t.Name = c.text()
				case "arguments":
					t.Arguments = c.text()
				default:
					c.value()
				}
			}
		default:
			c.value()
		}
	}
	return t
}

func readChunk(data []byte) (c chunk) {
	for m := membersOf(data); m.member(); {
		start := m.start
		if string(m.key) == "choices" {
			c.readChoices(&m)
			continue
		}
		v := m.value()
		switch string(m.key) {
		case "usage":
			c.usage, c.usageAt, c.usageEnd = nil, 0, 0
			if isObject(v) {
				c.usage = v
			}
			if isObject(v) || isNull(v) {
				c.usageAt, c.usageEnd = withComma(data, start, m.i)
			}
		case "error":
			c.failed = present(v)
			c.more = c.more || c.failed
		case "timings": // of llama.cpp, in the last event
			if present(v) {
				c.timings = data[start:m.i]
			}
		case "id", "object", "created", "model", "system_fingerprint", "service_tier":
		default:
			c.more = c.more || !isNull(v)
		}
	}
	return c
}

// withComma extends the bounds of a member by one adjacent comma.
func withComma(data []byte, at, end int) (int, int) {
	if i := skipSpace(data, end); i < len(data) && data[i] == ',' {
		return at, i + 1
	}
	i := at - 1
	for i > 0 && skipSpace(data[i:i+1], 0) == 1 {
		i--
	}
	if i > 0 && data[i] == ',' {
		return i, end
	}
	return at, end
}

func (c *chunk) readChoices(m *cursor) {
	c.choices, c.any, c.content, c.finished = m.peek() == '[', false, 0, false
	for ok := m.openOrSkip('['); ok && m.element(); {
		c.any = true
		for ok := m.openOrSkip('{'); ok && m.member(); {
			switch string(m.key) {
			case "text":
				c.content += stringLen(m.value())
			case "delta":
				c.readDelta(m)
			case "finish_reason":
				c.finished = present(m.value()) || c.finished
			default:
				m.value()
			}
		}
	}
}

// readDelta reads the model's output in a delta.
func (c *chunk) readDelta(m *cursor) {
	m.peek()
	start := m.i
	for ok := m.openOrSkip('{'); ok && m.member(); {
		v := m.value()
		switch string(m.key) {
		case "content", "reasoning_content", "reasoning", "refusal":
			c.content += stringLen(v)
		case "function_call":
			c.content += functionLen(v)
		case "tool_calls":
			for e := elementsOf(v); e.element(); {
				c.content += functionLen(field(e.value(), "function"))
			}
		}
	}
	c.delta = m.b[start:m.i]
}

func functionLen(v []byte) int {
	return stringLen(field(v, "name")) + stringLen(field(v, "arguments"))
}
