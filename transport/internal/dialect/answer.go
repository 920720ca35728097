package dialect

import (
	"context"

	"github.com/endpick/endpick/prefix"
)

// maxAnswer is the most bytes of a response that are remembered until it ends. Longer
// ones are not indexed.
const maxAnswer = 256 << 10

// answer is what a response appends to its conversation, which the client sends
// back with the next turn.
type answer struct {
	// whole is a response that did not stream, or the repetition in the last event
	// of a stream. id is its id, if it can be referred to.
	whole []byte
	id    string
	// pieces are the parts of a streamed response, in order.
	pieces []piece
	size   int
	// lost says that what the client will send back can't be predicted: the
	// response is too long, there are several, or it has unknown parts.
	lost bool
	// thought says that the model has reasoned before.
	thought bool
}

// piece is a text, or a tool call.
type piece struct {
	index    int // its index in the events of the stream
	call     bool
	id, name string
	text     []byte // or the arguments
}

// hasRoom counts n more bytes, and reports whether they may be remembered.
func (a *answer) hasRoom(n int) bool {
	if a.size += n; a.size > maxAnswer {
		a.lost, a.pieces = true, nil
	}
	return !a.lost
}

const (
	// pieceOverhead is roughly the memory of a piece besides its text, so that
	// endless empty ones count.
	pieceOverhead = 64
	// maxPieces limits the pieces, since they are searched linearly.
	maxPieces = 256
)

// piece returns the piece with this index, creating it if necessary; nil if the
// answer is lost.
func (a *answer) piece(index int, call bool) *piece {
	for i := len(a.pieces) - 1; i >= 0; i-- {
		if p := &a.pieces[i]; p.index == index && p.call == call {
			return p
		}
	}
	if len(a.pieces) >= maxPieces {
		a.lost, a.pieces = true, nil
	}
	if a.lost || !a.hasRoom(pieceOverhead) {
		return nil
	}
	a.pieces = append(a.pieces, piece{index: index, call: call})
	return &a.pieces[len(a.pieces)-1]
}

// add appends the string value v to a piece.
func (a *answer) add(p *piece, v []byte) {
	if p == nil || !isString(v) || !a.hasRoom(len(v)-2) {
		return
	}
	if p.call {
		p.text = appendUnquoted(p.text, inQuotes(v))
	} else {
		p.text = appendShortest(p.text, inQuotes(v)) // like the texts of prompts
	}
}

// named sets the id and name of a call.
func (a *answer) named(p *piece, id, name []byte) {
	if p == nil || !a.hasRoom(len(id)+len(name)) {
		return
	}
	if isString(id) {
		p.id = string(stringBytes(id))
	}
	if isString(name) {
		p.name += string(stringBytes(name))
	}
}

// capture appends the next bytes of a response that does not stream. Its head is
// remembered even if it is too long, because it contains the id.
func (a *answer) capture(b []byte) {
	n := min(len(b), maxAnswer-len(a.whole))
	a.whole = append(a.whole, b[:n]...)
	a.lost = a.lost || n < len(b)
}

// message is the message that consists of the pieces.
func (a *answer) message() prefix.Message {
	m := prefix.Message{Role: "assistant"}
	for _, p := range a.pieces {
		if p.call {
			m.ToolCalls = append(m.ToolCalls, prefix.ToolCall{ID: p.id, Name: p.name, Arguments: viewString(p.text)})
		} else if len(p.text) > 0 {
			m.Parts = append(m.Parts, prefix.Part{Content: viewString(p.text)})
		}
	}
	return m
}

// writeTo continues the conversation, and reports whether the result is what
// the client will send back, and what the engine has computed.
func (a *answer) writeTo(h *prefix.Hasher, api api, maxItems int) bool {
	if a.lost {
		return false
	}
	d := &dialects[api]
	if a.whole == nil {
		m := a.message()
		if len(m.Parts)+len(m.ToolCalls) == 0 || a.thought && !(d.keepsThought && len(m.ToolCalls) > 0) {
			return false
		}
		h.WriteMessage(&m)
		return true
	}
	p := promptReader{ctx: context.Background(), call: &call{maxItems: maxItems, allowance: newAllowance(maxItems)}, h: *h}
	known := d.answered(&p, a.whole) && p.failed == noFault
	p.done()
	if !known {
		return false
	}
	*h = p.h
	return true
}

// Chat.

func collectChat(a *answer, _, delta []byte) {
	for m := membersOf(delta); m.member(); {
		v := m.value()
		switch string(m.key) {
		case "content":
			if stringLen(v) > 0 {
				a.add(a.piece(0, false), v)
			}
		case "reasoning_content", "reasoning":
			a.thought = a.thought || stringLen(v) > 0
		case "refusal", "function_call", "audio":
			a.lost = a.lost || present(v)
		case "tool_calls":
			for calls := elementsOf(v); calls.element(); {
				call := calls.value()
				at, _ := count(field(call, "index"))
				p, function := a.piece(at, true), field(call, "function")
				a.named(p, field(call, "id"), field(function, "name"))
				a.add(p, field(function, "arguments"))
			}
		}
	}
}

func chatAnswered(p *promptReader, body []byte) bool {
	choices := elementsOf(p.field(body, "choices"))
	if !choices.element() {
		return false
	}
	v := p.field(choices.value(), "message")
	for _, key := range [...]string{"reasoning_content", "reasoning", "refusal", "function_call", "audio"} {
		if x := p.field(v, key); present(x) && string(x) != `""` {
			return false
		}
	}
	c := cursor{b: v, allowance: &p.allowance}
	var m prefix.Message
	readMessage(&c, &m)
	m.Role = "assistant"
	p.write(&m)
	return len(m.Parts)+len(m.ToolCalls) > 0
}

// Messages. Clients send thinking back while tools are called, and templates keep
// it until then.

func collectMessages(a *answer, data, _ []byte) {
	at, _ := count(field(data, "index"))
	switch string(stringBytes(field(data, "type"))) {
	case "content_block_start":
		b := field(data, "content_block")
		switch string(stringBytes(field(b, "type"))) {
		case "text":
			a.add(a.piece(at, false), field(b, "text"))
		case "thinking", "redacted_thinking":
			a.thought = true
		case "tool_use":
			a.named(a.piece(at, true), field(b, "id"), field(b, "name"))
		default:
			a.lost = true
		}
	case "content_block_delta":
		for m := membersOf(field(data, "delta")); m.member(); {
			v := m.value()
			switch string(m.key) {
			case "text":
				a.add(a.piece(at, false), v)
			case "partial_json":
				a.add(a.piece(at, true), v)
			case "thinking":
				a.thought = true
			}
		}
	case "message_delta": // the last event of the content
		for i := range a.pieces {
			if p := &a.pieces[i]; p.call && len(p.text) == 0 {
				p.text = []byte("{}") // clients send an object
			}
		}
	}
}

func messagesAnswered(p *promptReader, body []byte) bool {
	content := p.field(body, "content")
	thought, calls, n := false, false, 0
	for c := p.elementsOf(content); c.element(); n++ {
		switch b := readBlock(&c); b.kind {
		case "thinking", "redacted_thinking":
			thought = true
		case "tool_use":
			calls = true
		case "text":
		default:
			return false
		}
	}
	if n == 0 || thought && !calls {
		return false
	}
	w := blockWriter{promptReader: p}
	w.message("assistant", content)
	return true
}

// Responses: the last event repeats everything.

func collectResponses(a *answer, data, _ []byte) {
	response := field(data, "response")
	if response == nil {
		return
	}
	if id := field(response, "id"); a.id == "" && isString(id) && len(id) <= maxName {
		a.id = string(stringBytes(id))
	}
	switch string(stringBytes(field(data, "type"))) {
	case "response.completed", "response.incomplete":
		a.capture(response)
	}
}

func responsesAnswered(p *promptReader, body []byte) bool {
	output := p.field(body, "output")
	thought, calls, n := false, false, 0
	for c := p.elementsOf(output); c.element(); n++ {
		switch string(stringBytes(p.field(c.value(), "type"))) {
		case "reasoning":
			thought = true
		case "function_call", "custom_tool_call":
			calls = true
		}
	}
	if n == 0 || thought && !calls {
		return false
	}
	p.items(output)
	return true
}
