package dialect

import "github.com/endpick/endpick/prefix"

// OpenAI's chat completions.
var (
	chat = &api{
		paths:     []string{"/chat/completions"},
		parts:     map[string]part{"messages": messagesPart, "tools": toolsPart},
		prompt:    readChat,
		asksUsage: true,
		event:     readChunk,
		whole:     readChatBody,
		usage:     (*usage).read,
		usageIn:   "usage",
	}
	chatCount = counting(chat, "/chat/completions/input_tokens")
)

func readChat(p *promptReader) bool {
	list := p.parts[messagesPart]
	if p.known || !hasElements(list) {
		return hasElements(list)
	}
	p.begin()
	for c := p.elementsOf(list); c.element() && !p.canceled(); {
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

// readChunk reads a chunk of a stream: {"choices":[{"index":0,"delta":{"content":"…"}}]} or
// {"choices":[],"usage":{…}}. Engines report errors like this in streams of any API.
func readChunk(to *response, data []byte) {
	var usage []byte
	for m := membersOf(data); m.member(); {
		switch string(m.key) {
		case "choices":
			readChoices(to, &m)
		case "usage":
			usage = m.value()
		case "error":
			if present(m.value()) {
				to.on(event{kind: fails})
			}
		default:
			m.value()
		}
	}
	if isObject(usage) {
		to.on(event{kind: reports, value: usage, own: to.data.said})
	}
}

func readChoices(to *response, m *cursor) {
	if !m.openOrSkip('[') {
		return
	}
	to.on(event{kind: begins, choice: none})
	for m.element() {
		index, end := 0, false
		var delta, words, ids []byte
		for ok := m.openOrSkip('{'); ok && m.member(); {
			v := m.value()
			switch string(m.key) {
			case "index":
				index, _ = count(v)
			case "delta":
				delta = v
			case "text":
				words = v
			case "token_ids": // of vLLM
				ids = v
			case "finish_reason":
				end = present(v)
			}
		}
		to.on(event{kind: begins, choice: index})
		if words != nil || ids != nil {
			to.on(event{kind: text, choice: index, text: words, tokens: length(ids)})
		}
		readDelta(to, index, delta)
		if end {
			to.on(event{kind: ends, choice: index})
		}
	}
}

// readDelta reads what a choice adds to its message, or a message that is whole.
func readDelta(to *response, choice int, delta []byte) {
	for m := membersOf(delta); m.member(); {
		v := m.value()
		if !present(v) || string(v) == `""` {
			continue
		}
		switch string(m.key) {
		case "content":
			to.on(event{kind: text, choice: choice, text: v})
		case "reasoning_content", "reasoning":
			to.on(event{kind: text, choice: choice, text: v, thought: true})
		case "refusal":
			to.on(event{kind: text, choice: choice, text: v, odd: true})
		case "audio":
			to.on(event{kind: text, choice: choice, odd: true})
		case "function_call":
			to.on(event{kind: tool, choice: choice, name: field(v, "name"), text: field(v, "arguments"), odd: true})
		case "tool_calls":
			at := 0
			for calls := elementsOf(v); calls.element(); at++ {
				readCall(to, choice, at, calls.value())
			}
		}
	}
}

// readCall reads a part of a call, which is the one with the index at unless it says otherwise.
func readCall(to *response, choice, at int, call []byte) {
	var id, function []byte
	for m := membersOf(call); m.member(); {
		v := m.value()
		switch string(m.key) {
		case "index":
			at, _ = count(v)
		case "id":
			id = v
		case "function":
			function = v
		}
	}
	to.on(event{kind: tool, choice: choice, part: at, id: id, name: field(function, "name"), text: field(function, "arguments")})
}

func readChatBody(to *response, body []byte) {
	if choices := elementsOf(field(body, "choices")); choices.element() {
		readDelta(to, 0, field(choices.value(), "message"))
	}
}
