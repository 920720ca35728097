package dialect

import "github.com/endpick/endpick/prefix"

// Anthropic's messages.
var messagesDialect = dialect{
	paths:        []string{"/v1/messages"},
	place:        placeMessages,
	hasPrompt:    func(c *call) bool { return hasElements(c.messages) },
	prompt:       readMessages,
	event:        readMessagesEvent,
	usage:        (*usage).readMessages,
	inUsage:      "usage",
	collect:      collectMessages,
	answered:     messagesAnswered,
	keepsThought: true,
	errors:       anthropicErrors,
}

// messageCountDialect counts the tokens of a prompt, which goes where the prompt
// itself will go.
var messageCountDialect = dialect{
	paths:     []string{"/v1/messages/count_tokens"},
	place:     placeMessages,
	hasPrompt: func(c *call) bool { return hasElements(c.messages) },
	prompt:    readMessages,
	usage:     func(*usage, []byte) {},
	idle:      true,
	errors:    anthropicErrors,
}

func placeMessages(c *call, key []byte) *[]byte {
	switch string(key) {
	case "system":
		return &c.system
	case "messages":
		return &c.messages
	case "tools":
		return &c.tools
	}
	return nil
}

func readMessages(p *promptReader) bool {
	if p.known {
		return true
	}
	p.begin()
	w := blockWriter{promptReader: p}
	if present(p.system) {
		w.message("system", p.system)
	}
	c := p.cursor(p.messages)
	c.open('[')
	for c.element() && p.goOn() {
		var role string
		var content []byte
		if !c.open('{') {
			c.value()
		} else {
			for c.member() {
				switch string(c.key) {
				case "role":
					role = c.text()
				case "content":
					content = c.value()
				default:
					c.value()
				}
			}
		}
		w.message(role, content)
	}
	p.end()
	return true
}

// blockWriter writes messages that are made of content blocks. The results of
// tools become messages of their own, as templates have them; thinking counts for
// nothing, since templates leave it out of what is past.
type blockWriter struct {
	*promptReader
	m prefix.Message // memory that is used again
}

func (w *blockWriter) message(role string, content []byte) {
	m := &w.m
	*m = prefix.Message{Role: role, Parts: m.Parts[:0], ToolCalls: m.ToolCalls[:0]}
	written := false
	c := w.cursor(content)
	if !c.open('[') {
		if isString(content) {
			m.Parts = append(m.Parts, prefix.Part{Content: text(content)})
		}
		w.write(m)
		return
	}
	for c.element() && w.goOn() {
		b := readBlock(&c)
		switch b.kind {
		case "", "text":
			m.Parts = append(m.Parts, prefix.Part{Content: text(b.text)})
		case "thinking", "redacted_thinking":
		case "tool_use", "server_tool_use":
			m.ToolCalls = append(m.ToolCalls, prefix.ToolCall{ID: b.id, Name: b.name, Arguments: viewString(b.input)})
		case "tool_result":
			if len(m.Parts)+len(m.ToolCalls) > 0 {
				w.write(m)
				m.Parts, m.ToolCalls = m.Parts[:0], m.ToolCalls[:0]
			}
			w.write(&prefix.Message{Role: "tool", ToolCallID: b.answers, Parts: w.parts(b.content)})
			written = true
		default:
			m.Parts = append(m.Parts, b.part())
		}
	}
	if !written || len(m.Parts)+len(m.ToolCalls) > 0 {
		w.write(m)
	}
}

// parts reads the content of a tool's result.
func (w *blockWriter) parts(content []byte) (parts []prefix.Part) {
	c := w.cursor(content)
	if !c.open('[') {
		if isString(content) {
			parts = append(parts, prefix.Part{Content: text(content)})
		}
		return parts
	}
	for c.element() {
		if b := readBlock(&c); b.kind == "" || b.kind == "text" {
			parts = append(parts, prefix.Part{Content: text(b.text)})
		} else {
			parts = append(parts, b.part())
		}
	}
	return parts
}

// contentBlock is a block of a message, as it stands in the request.
type contentBlock struct {
	kind, id, name, answers             string
	text, input, content, source, whole []byte
}

func readBlock(c *cursor) (b contentBlock) {
	c.i = skipSpace(c.b, c.i)
	start := c.i
	if !c.open('{') {
		if v := c.value(); isString(v) {
			b.text = v
		}
		return b
	}
	for c.member() {
		switch string(c.key) {
		case "type":
			b.kind = c.text()
		case "id":
			b.id = c.text()
		case "name":
			b.name = c.text()
		case "tool_use_id":
			b.answers = c.text()
		case "text":
			b.text = c.value()
		case "input":
			b.input = c.value()
		case "content":
			b.content = c.value()
		case "source":
			b.source = c.value()
		default:
			c.value()
		}
	}
	b.whole = c.b[start:c.i]
	return b
}

// part is a block that is neither text nor a tool's: a picture, a document. It is
// told by its data or by where it is; what is neither, by all it says.
func (b *contentBlock) part() prefix.Part {
	for _, key := range [...]string{"data", "url", "file_id"} {
		if v := field(b.source, key); isString(v) {
			return prefix.Part{Type: b.kind, Content: text(v)}
		}
	}
	if b.source != nil {
		return prefix.Part{Type: b.kind, Content: viewString(b.source)}
	}
	return prefix.Part{Content: viewString(withoutCacheControl(b.whole))}
}

func readMessagesEvent(data []byte) (c chunk) {
	var kind, message, delta, block, usage, failure []byte
	m, _ := membersOf(data)
	for f, ok := m.next(); ok; f, ok = m.next() {
		switch string(f.key) {
		case "type":
			kind = stringBytes(f.value)
		case "message":
			message = f.value
		case "delta":
			delta = f.value
		case "content_block":
			block = f.value
		case "usage":
			usage = f.value
		case "error":
			failure = f.value
		}
	}
	switch string(kind) {
	case "message_start":
		c.choices, c.opening = true, true
		c.usage = field(message, "usage")
	case "content_block_start":
		c.choices, c.any = true, true
		c.content = stringLen(field(block, "text")) + stringLen(field(block, "thinking")) + stringLen(field(block, "name"))
	case "content_block_delta":
		c.choices, c.any = true, true
		d, _ := membersOf(delta)
		for f, ok := d.next(); ok; f, ok = d.next() {
			switch string(f.key) {
			case "text", "thinking", "partial_json":
				c.content += stringLen(f.value)
			}
		}
	case "message_delta":
		c.choices, c.finished = true, present(field(delta, "stop_reason"))
		c.usage = usage
	case "message_stop":
		c.whole = true
	default:
		c.failed = string(kind) == "error" || present(failure)
	}
	if !present(c.usage) {
		c.usage = nil
	}
	return c
}

// readMessages takes the figures of Anthropic's usage: input_tokens are those that
// were neither read from the cache nor written to it.
func (u *usage) readMessages(v []byte) {
	fresh, ok := count(field(v, "input_tokens"))
	read, hasRead := count(field(v, "cache_read_input_tokens"))
	created, _ := count(field(v, "cache_creation_input_tokens"))
	if ok && (hasRead || !u.hasCached) {
		u.prompt, u.hasPrompt = fresh+read+created, true
	}
	if hasRead {
		u.cached, u.hasCached = read, true
	}
	u.completion, u.hasCompletion = merge(u.completion, u.hasCompletion, field(v, "output_tokens"))
}
