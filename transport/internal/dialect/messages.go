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
		hasBlocks: true,
		single:    true,
		errors:    anthropicErrors,
	}
	messageCount = counting(messages, "/v1/messages/count_tokens")
)

func readMessages(p *promptReader) bool {
	list, system := p.parts[messagesPart], p.parts[systemPart]
	return p.conversation(hasElements(list), func() {
		if present(system) {
			p.blockMessage("system", system)
		}
		for c := p.elementsOf(list); c.element() && !p.canceled(); {
			p.forget()
			var role, content []byte
			c.pick(into{"role", &role}, into{"content", &content})
			p.blockMessage(p.content(role), content)
		}
	})
}

// blockMessage adds a message that consists of content blocks. Results of tools become
// messages of their own, as in templates; thinking is skipped, because templates
// drop it from earlier turns.
func (p *promptReader) blockMessage(role string, content []byte) {
	m := p.message(role)
	c := p.elementsOf(content)
	if c.b == nil {
		m.Parts = p.readParts(m.Parts, content, blockParts)
		p.write(m)
		return
	}
	written := false
	for c.element() && !p.canceled() {
		switch b := readBlock(&c); b.kind {
		case "thinking", "redacted_thinking":
		case "tool_use", "server_tool_use":
			m.ToolCalls = append(m.ToolCalls, prefix.ToolCall{ID: p.content(b.id), Name: p.content(b.name), Arguments: viewString(b.input)})
		case "tool_result":
			if len(m.Parts)+len(m.ToolCalls) > 0 {
				p.write(m)
				m.Parts, m.ToolCalls = m.Parts[:0], m.ToolCalls[:0]
			}
			r := prefix.Message{Role: "tool", ToolCallID: p.content(b.answers), Parts: p.readParts(p.results[:0], b.content, blockParts)}
			p.results = r.Parts[:0]
			p.write(&r)
			written = true
		default:
			m.Parts = append(m.Parts, b.part(&c))
		}
	}
	if !written || len(m.Parts)+len(m.ToolCalls) > 0 {
		p.write(m)
	}
}

// contentBlock is a block of a message, as it is in the text.
type contentBlock struct {
	kind                                            string
	id, name, answers, text, input, content, source []byte
	mark                                            []byte // cache_control
	whole                                           []byte
}

// readBlock reads a block, which may be just a text without members.
func readBlock(c *cursor) (b contentBlock) {
	var kind []byte
	b.whole = c.pick(into{"type", &kind}, into{"id", &b.id}, into{"name", &b.name}, into{"tool_use_id", &b.answers}, into{"text", &b.text},
		into{"input", &b.input}, into{"content", &b.content}, into{"source", &b.source}, into{"cache_control", &b.mark})
	if isString(b.whole) {
		b.text = b.whole
	}
	b.kind = c.content(kind)
	return b
}

// part returns a block that is not a tool's: a text, a picture, a document.
// Its content is its data or location, or else the whole block.
func (b *contentBlock) part(c *cursor) prefix.Part {
	if b.kind == "" || b.kind == "text" {
		return prefix.Part{Content: c.shortest(b.text)}
	}
	var data, url, file []byte
	pick(b.source, into{"data", &data}, into{"url", &url}, into{"file_id", &file})
	for _, v := range [...][]byte{data, url, file} {
		if isString(v) {
			return prefix.Part{Type: b.kind, Content: identity(v)}
		}
	}
	switch {
	case b.source != nil:
		return prefix.Part{Type: b.kind, Content: viewString(b.source)}
	case b.mark != nil:
		return prefix.Part{Content: viewString(withoutCacheControl(b.whole))}
	}
	return prefix.Part{Content: viewString(b.whole)}
}

// readMessagesEvent reads an event such as
// {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"…"}}.
func readMessagesEvent(to *response, data []byte) {
	var kind, index, message, delta, block, usage, failure []byte
	pick(data, into{"type", &kind}, into{"index", &index}, into{"message", &message}, into{"delta", &delta},
		into{"content_block", &block}, into{"usage", &usage}, into{"error", &failure})
	at, _ := count(index)
	switch string(stringBytes(kind)) {
	case "message_start":
		to.on(event{kind: begins, choice: none})
		to.on(event{kind: reports, value: field(message, "usage"), opening: true})
	case "content_block_start":
		c := cursor{b: block}
		readContentBlock(to, at, &c, false)
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
		e := event{kind: begins, choice: none}
		if present(field(delta, "stop_reason")) {
			e = event{kind: ends}
		}
		to.on(e)
		to.on(event{kind: reports, value: usage})
	case "message_stop":
		to.on(event{kind: ends, choice: none, all: true})
	case "error":
		to.on(event{kind: fails})
	case "ping":
		to.on(event{})
	default:
		if present(failure) { // in the form of another API
			to.on(event{kind: fails})
		}
	}
}

// readContentBlock reads the beginning of a block, or one that is whole.
func readContentBlock(to *response, at int, c *cursor, whole bool) {
	b := readBlock(c)
	e := event{kind: text, part: at, text: b.text, name: b.name}
	switch b.kind {
	case "text":
	case "thinking", "redacted_thinking":
		e.text, e.thought = field(b.whole, "thinking"), true
	case "tool_use":
		e.kind, e.id, e.text = tool, b.id, nil
		if whole { // a beginning has an empty object
			e.text, e.raw = b.input, true
		}
	default:
		e.odd = true
	}
	to.on(e)
}

func readMessagesBody(to *response, body []byte) {
	at := 0
	for c := elementsOf(field(body, "content")); c.element(); at++ {
		readContentBlock(to, at, &c, true)
	}
}

// readMessages reads Anthropic's usage, in which input_tokens are those neither
// read from the cache nor written to it.
func (u *usage) readMessages(v []byte) {
	var input, read, created, output []byte
	pick(v, into{"input_tokens", &input}, into{"cache_read_input_tokens", &read}, into{"cache_creation_input_tokens", &created}, into{"output_tokens", &output})
	fresh, ok := count(input)
	cached, hasCached := count(read)
	more, _ := count(created)
	if ok && (hasCached || !u.hasCached) {
		u.prompt, u.hasPrompt = fresh+cached+more, true
	}
	u.cached, u.hasCached = merge(u.cached, u.hasCached, read)
	u.completion, u.hasCompletion = merge(u.completion, u.hasCompletion, output)
}
