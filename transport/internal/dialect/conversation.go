package dialect

import "github.com/endpick/endpick/prefix"

// Conversations are alike in all APIs, and the members that differ have names of their own. So one
// reader makes the same messages of all.

// readConversation reads instructions and a conversation: messages, or a text of a user.
func readConversation(p *promptReader) bool {
	list, system, before := p.parts[messagesPart], p.parts[systemPart], p.before
	if isPrompt := isString(list) || hasElements(list); p.known || !isPrompt {
		return isPrompt
	}
	continues := before != nil && before.h != nil && before.head == headOfResponse(p.request)
	if continues {
		p.h = before.h.Fork()
	} else {
		p.begin()
		if ids := p.parts[previousPart]; hasElements(ids) { // with which the next turn's begin
			m := p.message("context")
			m.Parts = append(m.Parts, prefix.Part{Content: viewString(ids[:len(ids)-1])})
			p.write(m)
		}
		if present(system) {
			p.writeContent(p.message("system"), system, nil)
		}
		if before != nil {
			p.size = before.size
		}
		// What is between is not known.
		p.rough = isString(p.parts[previousPart])
	}
	if p.sketcher != nil {
		p.sketcher.Prompt.Partial = continues || p.rough
	}
	if isString(list) {
		p.writeContent(p.message("user"), list, p.parts[suffixPart])
	}
	p.readMessages(list)
	p.end()
	if p.rough {
		p.blocks = nil
	}
	return true
}

// item is a message, a part of one, an item of an input or output, or a file of code, as it is in the text.
type item struct {
	kind string
	// call is the id of the call of a tool that this belongs to.
	role, name, id, call, content, text, images, calls, input, output, whole []byte
}

// nextItem reads an item of any API, such as {"role":"user","content":"…"}, {"type":"text","text":"…"},
// {"type":"image_url","image_url":{"url":"…"}} or {"type":"image","source":{"data":"…"}}. It may be
// just a text without members.
func nextItem(c *cursor) (i item) {
	var kind []byte
	i.whole = c.pick(into{"type", &kind}, into{"role", &i.role}, into{"content", &i.content}, into{"text", &i.text}, into{"refusal", &i.text},
		into{"id", &i.id}, into{"call_id", &i.call}, into{"tool_call_id", &i.call}, into{"tool_use_id", &i.call},
		into{"name", &i.name}, into{"tool_name", &i.name}, into{"filename", &i.name}, into{"input", &i.input}, into{"arguments", &i.input},
		into{"output", &i.output}, into{"tool_calls", &i.calls}, into{"images", &i.images})
	if i.kind = plain(kind); !isObject(i.whole) {
		i.text = i.whole
	}
	return i
}

// readMessages adds messages, or the items of an input or of an output that will become one.
func (p *promptReader) readMessages(list []byte) {
	for c := elementsOf(list); p.next(&c); {
		p.texts = p.texts[:0]
		if i := nextItem(&c); isObject(i.whole) {
			p.readItem(&i)
		}
	}
}

// readItem adds an item. Reasoning is skipped, because templates drop it from earlier turns.
func (p *promptReader) readItem(i *item) {
	switch i.kind {
	case "", "message":
		m := p.message(plain(i.role))
		m.Name, m.ToolCallID = plain(i.name), plain(i.call)
		for c := elementsOf(i.calls); p.next(&c); {
			var id, function, name, arguments []byte
			c.pick(into{"id", &id}, into{"function", &function})
			pick(function, into{"name", &name}, into{"arguments", &arguments})
			m.ToolCalls = append(m.ToolCalls, p.toolCall(id, name, arguments))
		}
		if i.content == nil {
			i.content = i.text
		}
		p.writeContent(m, i.content, i.images)
	case "function_call", "custom_tool_call":
		m := p.message("assistant")
		m.ToolCalls = append(m.ToolCalls, p.toolCall(i.call, i.name, i.input))
		p.write(m)
	case "function_call_output", "custom_tool_call_output":
		p.writeResult(i.call, i.output)
	case "reasoning":
	default:
		m := p.message(i.kind)
		m.Parts = append(m.Parts, prefix.Part{Content: viewString(i.whole)})
		p.write(m)
	}
}

// toolCall has arguments as a text with JSON, or as they are.
func (p *promptReader) toolCall(id, name, arguments []byte) prefix.ToolCall {
	c := prefix.ToolCall{ID: plain(id), Name: plain(name), Arguments: viewString(arguments)}
	if isString(arguments) {
		n := len(p.texts)
		p.texts = appendUnquoted(p.texts, inQuotes(arguments))
		c.Arguments = viewString(p.texts[n:])
	}
	return c
}

// writeContent adds a message with this content: a text, or a list of parts, with pictures besides.
// Results of tools become messages of their own, as in templates.
func (p *promptReader) writeContent(m *prefix.Message, content, images []byte) {
	if isString(content) {
		m.Parts = append(m.Parts, prefix.Part{Content: p.shortest(content)})
	}
	written := false
	for c := elementsOf(content); p.next(&c); {
		switch b := nextItem(&c); b.kind {
		case "thinking", "redacted_thinking":
		case "tool_use":
			m.ToolCalls = append(m.ToolCalls, p.toolCall(b.id, b.name, b.input))
		case "tool_result":
			if len(m.Parts)+len(m.ToolCalls) > 0 {
				p.write(m)
				m.Parts, m.ToolCalls = m.Parts[:0], m.ToolCalls[:0]
			}
			p.writeResult(b.call, b.content)
			written = true
		default:
			m.Parts = append(m.Parts, p.part(&b))
		}
	}
	for c := elementsOf(images); p.next(&c); {
		m.Parts = append(m.Parts, prefix.Part{Type: "image", Content: identity(c.value())})
	}
	if !written || len(m.Parts)+len(m.ToolCalls) > 0 {
		p.write(m)
	}
}

func (p *promptReader) writeResult(id, content []byte) {
	p.writeContent(&prefix.Message{Role: "tool", ToolCallID: plain(id)}, content, nil)
}

// part returns a block that is not a tool's: a text, or something that counts by its content or by
// its address, which may also be in a member with the name of the type. What is of no known form
// counts as the text that it is.
func (p *promptReader) part(b *item) prefix.Part {
	if b.kind == "" || b.kind == "text" || b.text != nil {
		return prefix.Part{Content: p.shortest(b.text)}
	}
	var named, source, image, data, id, url []byte
	pick(b.whole, into{b.kind, &named}, into{"source", &source}, into{"image_url", &image},
		into{"file_data", &data}, into{"file_id", &id}, into{"file_url", &url})
	for _, v := range [...][]byte{named, source, image, data, id, url} {
		if present(v) {
			return prefix.Part{Type: b.kind, Content: identity(v)}
		}
	}
	return prefix.Part{Content: viewString(b.whole)}
}

// identity is the content of a part that is not text: its data or its address.
func identity(v []byte) string {
	var data, url, file []byte
	pick(v, into{"data", &data}, into{"url", &url}, into{"file_id", &file})
	for _, of := range [...][]byte{data, url, file, v} {
		if isString(of) {
			return plain(of)
		}
	}
	return viewString(v)
}
