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
	c := p.cursor(p.messages)
	c.open('[')
	for c.element() && p.goOn() {
		p.forget()
		readMessage(&c, &p.m)
		p.write(&p.m)
	}
	p.end()
	return true
}

func readMessage(c *cursor, m *prefix.Message) {
	*m = prefix.Message{Parts: m.Parts[:0], ToolCalls: m.ToolCalls[:0]}
	if !c.open('{') {
		c.value()
		return
	}
	for c.member() {
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
			m.ToolCalls = readToolCalls(c, m.ToolCalls[:0])
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
			parts = append(parts, prefix.Part{Content: c.written(v)})
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
	c.i = skipSpace(c.b, c.i)
	start := c.i
	if !c.open('{') {
		c.value()
		return prefix.Part{}
	}
	var kind string
	var words []byte
	// The first few members other than type and text.
	var beside [3]struct{ key, value []byte }
	n := 0
	for c.member() {
		switch string(c.key) {
		case "type":
			kind = c.text()
		case "text":
			words = c.value()
		default:
			if c.escaped {
				n = len(beside)
			}
			if n < len(beside) {
				beside[n].key = c.key
				beside[n].value = c.value()
			} else {
				c.value()
			}
			n++
		}
	}
	if kind == "" || kind == "text" {
		return prefix.Part{Content: c.written(words)}
	}
	var content []byte
	if n > len(beside) || kind == "type" {
		content = c.field(c.b[start:c.i], kind)
	} else {
		for _, m := range beside[:n] {
			if string(m.key) == kind {
				content = m.value
			}
		}
	}
	if url := c.field(content, "url"); isString(url) {
		content = url
	}
	if isString(content) {
		content = stringBytes(content)
	}
	return prefix.Part{Type: kind, Content: viewString(content)}
}

func readToolCalls(c *cursor, calls []prefix.ToolCall) []prefix.ToolCall {
	if !c.open('[') {
		c.value()
		return calls
	}
	for c.element() {
		calls = appended(calls, readToolCall(c))
	}
	return calls
}

func readToolCall(c *cursor) (t prefix.ToolCall) {
	if !c.open('{') {
		c.value()
		return t
	}
	for c.member() {
		switch string(c.key) {
		case "id":
			t.ID = c.text()
		case "function":
			t.Name, t.Arguments = "", ""
			if !c.open('{') {
				c.value()
				continue
			}
			for c.member() {
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

func readChunk(data []byte) chunk {
	var c chunk
	m, _ := membersOf(data)
	for {
		f, ok := m.next()
		if !ok {
			return c
		}
		switch string(f.key) {
		case "choices":
			c.readChoices(f.value)
		case "usage":
			c.usage, c.usageAt, c.usageEnd = nil, 0, 0
			if isNull(f.value) {
				c.usageAt, c.usageEnd = withComma(data, f.at, f.end)
			} else if len(f.value) > 0 && f.value[0] == '{' {
				c.usage = f.value
				c.usageAt, c.usageEnd = withComma(data, f.at, f.end)
			}
		case "error":
			c.failed = present(f.value)
			c.more = c.more || c.failed
		case "timings": // of llama.cpp, in the last event
			if present(f.value) {
				c.timings = data[f.at:f.end]
			}
		case "id", "object", "created", "model", "system_fingerprint", "service_tier":
		default:
			c.more = c.more || !isNull(f.value)
		}
	}
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

func (c *chunk) readChoices(v []byte) {
	e, ok := elementsOf(v)
	c.choices, c.any, c.content, c.finished, c.texts, c.text, c.spoken = ok, false, 0, false, 0, nil, false
	for {
		choice, ok := e.next()
		if !ok {
			return
		}
		c.any = true
		m, _ := membersOf(choice)
		for {
			f, ok := m.next()
			if !ok {
				break
			}
			switch string(f.key) {
			case "text":
				c.counts(f.value, false)
			case "delta":
				c.readDelta(f.value)
			case "finish_reason":
				c.finished = c.finished || present(f.value)
			}
		}
	}
}

// readDelta reads the model's output in a delta.
func (c *chunk) readDelta(v []byte) {
	c.delta, c.spoken = v, false
	m, _ := membersOf(v)
	for {
		f, ok := m.next()
		if !ok {
			return
		}
		switch string(f.key) {
		case "content":
			c.counts(f.value, true)
		case "reasoning_content", "reasoning", "refusal":
			c.counts(f.value, false)
		case "function_call":
			c.called(f.value)
		case "tool_calls":
			e, _ := elementsOf(f.value)
			for {
				call, ok := e.next()
				if !ok {
					break
				}
				c.called(field(call, "function"))
			}
		}
	}
}

// called reads a function call: text of another kind.
func (c *chunk) called(v []byte) {
	c.content += functionLen(v)
	c.texts += 2
}

func functionLen(v []byte) int {
	return stringLen(field(v, "name")) + stringLen(field(v, "arguments"))
}
