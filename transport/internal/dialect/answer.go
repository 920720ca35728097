package dialect

import (
	"context"

	"github.com/endpick/endpick/prefix"
)

const (
	// maxAnswer is the most bytes of a response that are remembered until it ends. Longer
	// ones are not indexed.
	maxAnswer = 256 << 10
	// maxPieces limits the pieces, since they are searched linearly.
	maxPieces = 256
)

// answer is what a response appends to its conversation, which the client sends
// back with the next request.
type answer struct {
	wanted  bool // otherwise, nothing is remembered
	repeats bool // the last event repeats the response, so that pieces need not be remembered
	// id is the response's, if it can be referred to.
	id string
	// body is a response that did not stream, or the repetition in the last event of a
	// stream.
	body []byte
	// pieces are the texts and calls, in order.
	pieces []piece
	size   int
	// lost says that what the client will send back can't be predicted: the
	// response is too long, or it has unknown parts.
	lost bool
	// thought says that the model has reasoned before.
	thought bool
}

// piece is a text, or a call of a tool.
type piece struct {
	part int // as in the events
	call bool
	id   string
	name []byte
	text []byte // or the arguments
}

func (a *answer) on(e *event) {
	if !a.wanted {
		return
	}
	a.thought = a.thought || e.thought
	switch {
	case e.kind == begins || e.kind == ends:
		if isString(e.id) && a.id == "" && len(e.id)-2 <= maxName {
			a.id = string(stringBytes(e.id))
		}
		a.capture(e.value)
	case e.odd:
		a.lose()
	case a.repeats, e.thought || e.kind == text && len(e.text) <= len(`""`):
	default:
		a.add(e)
	}
}

// add adds a text or a part of a call.
func (a *answer) add(e *event) {
	p := a.piece(e)
	if a.size += len(e.text) + len(e.id) + len(e.name); a.size > maxAnswer {
		a.lose()
	}
	if p == nil || a.lost {
		return
	}
	if p.name = append(p.name, stringBytes(e.name)...); isString(e.id) {
		p.id = string(stringBytes(e.id))
	}
	switch {
	case !p.call:
		p.text = appendShortest(p.text, inQuotes(e.text)) // like the texts of prompts
	case e.raw:
		p.text = append(p.text, e.text...)
	default:
		p.text = appendUnquoted(p.text, inQuotes(e.text))
	}
}

func (a *answer) lose() { a.lost, a.pieces = true, nil }

// piece returns the piece that an event is about, creating it if necessary; nil if the answer is lost.
func (a *answer) piece(e *event) *piece {
	for i := len(a.pieces) - 1; i >= 0; i-- {
		if p := &a.pieces[i]; p.part == e.part && p.call == (e.kind == tool) {
			if isString(e.id) && p.id != "" && p.id != plain(e.id) || e.raw && len(p.text) > 0 {
				break // Ollama gives all calls one index
			}
			return p
		}
	}
	if len(a.pieces) >= maxPieces {
		a.lose()
	}
	if a.lost {
		return nil
	}
	a.pieces = append(a.pieces, piece{part: e.part, call: e.kind == tool})
	return &a.pieces[len(a.pieces)-1]
}

// capture appends the next bytes of the body. Its head is remembered even if it is too
// long, because it contains the id.
func (a *answer) capture(b []byte) {
	n := min(len(b), maxAnswer-len(a.body))
	a.body = append(a.body, b[:n]...)
	a.lost = a.lost || n < len(b)
}

// writeTo continues the conversation, and reports whether the result is what
// the client will send back, and what the engine has computed.
func (a *answer) writeTo(h *prefix.Hasher, api *api) bool {
	if a.lost {
		return false
	}
	if api.output != nil {
		p := promptReader{ctx: context.Background(), request: &request{items: maxAnswer}, h: *h}
		known := api.output(&p, a.body) && p.failed == nil
		if known {
			*h = p.h
		}
		return known
	}
	m := prefix.Message{Role: "assistant"}
	for i := range a.pieces {
		p := &a.pieces[i]
		switch {
		case !p.call:
			m.Parts = append(m.Parts, prefix.Part{Content: viewString(p.text)})
			continue
		case api.hasBlocks && len(p.text) == 0:
			p.text = []byte("{}") // clients send an object
		}
		m.ToolCalls = append(m.ToolCalls, prefix.ToolCall{ID: p.id, Name: viewString(p.name), Arguments: viewString(p.text)})
	}
	if len(m.Parts)+len(m.ToolCalls) == 0 || a.thought && !(api.hasBlocks && len(m.ToolCalls) > 0) {
		return false
	}
	h.WriteMessage(&m)
	return true
}
