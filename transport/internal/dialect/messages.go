package dialect

import "github.com/endpick/endpick/prefix"

// Anthropic's messages.
var (
	messages = &api{
		paths:     []string{"/v1/messages"},
		parts:     map[string]part{"system": systemPart, "messages": messagesPart, "tools": toolsPart},
		prompt:    readMessages,
		event:     readMessagesEvent,
		whole:     readMessagesBody,
		usage:     (*usage).readMessages,
		usageIn:   "usage",
		hasBlocks: true,
		single:    true,
		errors:    anthropicErrors,
	}
	messageCount = counting(messages, "/v1/messages/count_tokens")
)

func readMessages(p *promptReader) bool {
	list, system := p.parts[messagesPart], p.parts[systemPart]
	if p.known || !hasElements(list) {
		return hasElements(list)
	}
	p.begin()
	w := blockWriter{promptReader: p}
	if present(system) {
		w.message("system", system)
	}
	for c := p.elementsOf(list); c.element() && !p.canceled(); {
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
			return prefix.Part{Type: b.kind, Content: plain(v)}
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

// readMessagesEvent reads an event such as
// {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"…"}}.
func readMessagesEvent(to *response, data []byte) {
	var kind, message, delta, block, usage, failure []byte
	at := 0
	for m := membersOf(data); m.member(); {
		v := m.value()
		switch string(m.key) {
		case "type":
			kind = stringBytes(v)
		case "index":
			at, _ = count(v)
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
		to.on(event{kind: begins, choice: none})
		to.on(event{kind: reports, value: field(message, "usage"), opening: true})
	case "content_block_start":
		readContentBlock(to, at, block, false)
	case "content_block_delta":
		to.on(event{kind: begins})
		for d := membersOf(delta); d.member(); {
			v := d.value()
			switch string(d.key) {
			case "text":
				to.on(event{kind: text, part: at, text: v})
			case "thinking":
				to.on(event{kind: text, part: at, text: v, thought: true})
			case "partial_json":
				to.on(event{kind: tool, part: at, text: v})
			}
		}
	case "message_delta":
		if present(field(delta, "stop_reason")) {
			to.on(event{kind: ends})
		} else {
			to.on(event{kind: begins, choice: none})
		}
		to.on(event{kind: reports, value: usage})
	case "message_stop":
		to.on(event{kind: ends, choice: none, all: true})
	case "error":
		to.on(event{kind: fails})
	default:
		if present(failure) { // in the form of another API
			to.on(event{kind: fails})
		}
	}
}

// readContentBlock reads the beginning of a block, or one that is whole.
func readContentBlock(to *response, at int, block []byte, whole bool) {
	c := cursor{b: block}
	switch b := readBlock(&c); b.kind {
	case "text":
		to.on(event{kind: text, part: at, text: b.text})
	case "thinking", "redacted_thinking":
		to.on(event{kind: text, part: at, text: field(block, "thinking"), thought: true})
	case "tool_use":
		e := event{kind: tool, part: at, id: field(block, "id"), name: field(block, "name")}
		if whole { // a beginning has an empty object
			e.text, e.raw = b.input, true
		}
		to.on(e)
	default:
		to.on(event{kind: text, part: at, text: b.text, name: field(block, "name"), odd: true})
	}
}

func readMessagesBody(to *response, body []byte) {
	at := 0
	for c := elementsOf(field(body, "content")); c.element(); at++ {
		readContentBlock(to, at, c.value(), true)
	}
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
