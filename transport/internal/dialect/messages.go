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
	c := p.cursor(p.messages)
	c.open('[')
	for c.element() && p.goOn() {
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
	m, answer prefix.Message
}

// read reads a message. If the role comes first, as nearly all clients send it,
// the content is written while it is read. If another content or role turns out
// to count, that is undone.
func (w *blockWriter) read(c *cursor) {
	var role string
	var content []byte
	var before progress
	named, written := false, false
	if !c.open('{') {
		c.value()
	} else {
		for c.member() {
			switch string(c.key) {
			case "role":
				if written {
					w.progress, written = before, false
				}
				role, named = c.text(), true
			case "content":
				if written {
					w.progress, written = before, false
				}
				if !named || c.peek() != '[' {
					content = c.value()
					continue
				}
				before = w.progress
				start := c.i
				w.blocks(role, c)
				content, written = c.b[start:c.i], true
			default:
				c.value()
			}
		}
	}
	if !written {
		w.message(role, content)
	}
}

func (w *blockWriter) message(role string, content []byte) {
	c := w.cursor(content)
	if c.peek() == '[' {
		w.blocks(role, &c)
		return
	}
	m := &w.m
	*m = prefix.Message{Role: role, Parts: m.Parts[:0], ToolCalls: m.ToolCalls[:0]}
	if isString(content) {
		m.Parts = append(m.Parts, prefix.Part{Content: w.written(content)})
	}
	w.write(m)
}

// blocks reads the array at c, and writes its messages.
func (w *blockWriter) blocks(role string, c *cursor) {
	m := &w.m
	*m = prefix.Message{Role: role, Parts: m.Parts[:0], ToolCalls: m.ToolCalls[:0]}
	written := false
	var b contentBlock
	for c.open('['); c.element() && w.goOn(); {
		w.block(c, &b)
		switch b.kind {
		case "", "text":
			m.Parts = appended(m.Parts, prefix.Part{Content: c.written(b.text)})
		case "thinking", "redacted_thinking":
		case "tool_use", "server_tool_use":
			m.ToolCalls = appended(m.ToolCalls, prefix.ToolCall{ID: b.id, Name: b.name, Arguments: viewString(b.input)})
		case "tool_result":
			if len(m.Parts)+len(m.ToolCalls) > 0 {
				w.write(m)
				m.Parts, m.ToolCalls = m.Parts[:0], m.ToolCalls[:0]
			}
			a := &w.answer
			if !b.answered {
				a.Parts = a.Parts[:0]
				if len(b.content) > 0 {
					c := w.cursor(b.content)
					a.Parts = readParts(&c, a.Parts, blockParts)
				}
			}
			*a = prefix.Message{Role: "tool", ToolCallID: b.answers, Parts: a.Parts}
			w.write(a)
			written = true
		default:
			m.Parts = appended(m.Parts, b.part())
		}
	}
	if !written || len(m.Parts)+len(m.ToolCalls) > 0 {
		w.write(m)
	}
}

// block reads a block. If its type comes first, it reads the content of a
// tool's result at once, into answer.
func (w *blockWriter) block(c *cursor, b *contentBlock) {
	if !b.open(c) {
		return
	}
	for c.member() {
		if string(c.key) == "content" && b.kind == "tool_result" {
			w.answer.Parts = readParts(c, w.answer.Parts[:0], blockParts)
			b.answered = true
			continue
		}
		b.member(c)
	}
	b.whole = c.b[b.start:c.i]
}

// readBlockPart reads a block of a tool's result.
func readBlockPart(c *cursor) prefix.Part {
	var b contentBlock
	readBlock(c, &b)
	if b.kind == "" || b.kind == "text" {
		return prefix.Part{Content: c.written(b.text)}
	}
	return b.part()
}

// contentBlock is a block of a message, as it is in the request.
type contentBlock struct {
	kind, id, name, answers string
	text, input, content    []byte
	source, data, url, file []byte
	whole                   []byte
	start                   int
	marked                  bool // it has a cache_control
	answered                bool // its content is in blockWriter.answer
}

func readBlock(c *cursor, b *contentBlock) {
	if !b.open(c) {
		return
	}
	for c.member() {
		b.member(c)
	}
	b.whole = c.b[b.start:c.i]
}

// open begins another block, which may be just a text without members.
func (b *contentBlock) open(c *cursor) bool {
	*b = contentBlock{start: skipSpace(c.b, c.i)}
	if !c.open('{') {
		if v := c.value(); isString(v) {
			b.text = v
		}
		return false
	}
	return true
}

func (b *contentBlock) member(c *cursor) {
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
		b.content, b.answered = c.value(), false
	case "source":
		b.readSource(c)
	case "cache_control":
		b.marked = true
		c.value()
	default:
		c.value()
	}
}

func (b *contentBlock) readSource(c *cursor) {
	b.data, b.url, b.file = nil, nil, nil
	if c.peek() != '{' {
		b.source = c.value()
		return
	}
	start := c.i
	for c.open('{'); c.member(); {
		switch string(c.key) {
		case "data":
			b.data = c.value()
		case "url":
			b.url = c.value()
		case "file_id":
			b.file = c.value()
		default:
			c.value()
		}
	}
	b.source = c.b[start:c.i]
}

// part returns a block that is neither text nor a tool's: a picture, a document.
// Its content is its data or location, or else the whole block.
func (b *contentBlock) part() prefix.Part {
	for _, v := range [...][]byte{b.data, b.url, b.file} {
		if isString(v) {
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
		case "index":
			c.index, _ = count(f.value)
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
			case "text":
				c.counts(f.value, true)
			case "thinking":
				c.counts(f.value, false)
			case "partial_json":
				c.content += stringLen(f.value)
				c.texts += 2 // not part of the answer's text
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
