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
	single:       true,
	errors:       anthropicErrors,
}

// messageCountDialect counts the tokens of a prompt, which will be sent to the
// same endpoint.
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
	for c := p.elementsOf(p.messages); c.element() && !p.canceled(); {
		p.forget()
		w.read(&c)
	}
	p.end()
	return true
}

// blockWriter writes messages that consist of content blocks. Tool results become
// messages of their own, as in templates; thinking is skipped, because templates
// drop it from earlier turns.
type blockWriter struct {
	*promptReader
	// Reused memory.
	m, result prefix.Message
}

func (w *blockWriter) read(c *cursor) {
	var role string
	var content []byte
	for ok := c.openOrSkip('{'); ok && c.member(); {
		switch string(c.key) {
		case "role":
			role = c.text()
		case "content":
			content = c.value()
		default:
			c.value()
		}
	}
	w.message(role, content)
}

func (w *blockWriter) message(role string, content []byte) {
	m := &w.m
	*m = prefix.Message{Role: role, Parts: m.Parts[:0], ToolCalls: m.ToolCalls[:0]}
	c := w.elementsOf(content)
	if c.b == nil {
		if isString(content) {
			m.Parts = append(m.Parts, prefix.Part{Content: w.shortest(content)})
		}
		w.write(m)
		return
	}
	written := false
	for c.element() && !w.canceled() {
		switch b := readBlock(&c); b.kind {
		case "", "text":
			m.Parts = appended(m.Parts, prefix.Part{Content: w.shortest(b.text)})
		case "thinking", "redacted_thinking":
		case "tool_use", "server_tool_use":
			m.ToolCalls = appended(m.ToolCalls, prefix.ToolCall{ID: b.id, Name: b.name, Arguments: viewString(b.input)})
		case "tool_result":
			if len(m.Parts)+len(m.ToolCalls) > 0 {
				w.write(m)
				m.Parts, m.ToolCalls = m.Parts[:0], m.ToolCalls[:0]
			}
			r := &w.result
			*r = prefix.Message{Role: "tool", ToolCallID: b.answers, Parts: r.Parts[:0]}
			if len(b.content) > 0 {
				c := cursor{b: b.content, allowance: c.allowance}
				r.Parts = readParts(&c, r.Parts, blockParts)
			}
			w.write(r)
			written = true
		default:
			m.Parts = appended(m.Parts, b.part())
		}
	}
	if !written || len(m.Parts)+len(m.ToolCalls) > 0 {
		w.write(m)
	}
}

// readBlockPart reads a block of a tool's result.
func readBlockPart(c *cursor) prefix.Part {
	b := readBlock(c)
	if b.kind == "" || b.kind == "text" {
		return prefix.Part{Content: c.shortest(b.text)}
	}
	return b.part()
}

// contentBlock is a block of a message, as it is in the request.
type contentBlock struct {
	kind, id, name, answers      string
	text, input, content, source []byte
	whole                        []byte
	marked                       bool // it has a cache_control
}

// readBlock reads a block, which may be just a text without members.
func readBlock(c *cursor) (b contentBlock) {
	c.peek()
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
		case "cache_control":
			b.marked = true
			c.value()
		default:
			c.value()
		}
	}
	b.whole = c.b[start:c.i]
	return b
}

// part returns a block that is neither text nor a tool's: a picture, a document.
// Its content is its data or location, or else the whole block.
func (b *contentBlock) part() prefix.Part {
	for _, key := range [...]string{"data", "url", "file_id"} {
		if v := field(b.source, key); isString(v) {
			return prefix.Part{Type: b.kind, Content: text(v)}
		}
	}
	if b.source != nil {
		return prefix.Part{Type: b.kind, Content: viewString(b.source)}
	}
	if b.marked {
		return prefix.Part{Content: viewString(withoutCacheControl(b.whole))}
	}
	return prefix.Part{Content: viewString(b.whole)}
}

func readMessagesEvent(data []byte) (c chunk) {
	var kind, message, delta, block, usage, failure []byte
	for m := membersOf(data); m.member(); {
		v := m.value()
		switch string(m.key) {
		case "type":
			kind = stringBytes(v)
		case "message":
			message = v
		case "delta":
			delta = v
		case "content_block":
			block = v
		case "usage":
			usage = v
		case "error":
			failure = v
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
		for d := membersOf(delta); d.member(); {
			v := d.value()
			switch string(d.key) {
			case "text", "thinking", "partial_json":
				c.content += stringLen(v)
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

// readMessages reads Anthropic's usage, in which input_tokens are those neither
// read from the cache nor written to it.
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
