package dialect

import (
	"bytes"

	"github.com/endpick/endpick/prefix"
)

// OpenAI's completions.
var completion = &api{
	paths:     []string{"/completions"},
	parts:     map[string]part{"prompt": promptPart},
	prompt:    readCompletion,
	asksUsage: true,
	event:     readChunk,
	usage:     (*usage).read,
	usageIn:   "usage",
}

// readCompletion reads a string, a list of strings, a list of token ids or a list
// of such lists. Blocks are those of the first.
func readCompletion(p *promptReader) bool {
	v := p.parts[promptPart]
	if isString(v) {
		p.readText(v, true)
		return true
	}
	c := p.elementsOf(v)
	switch c.peek() {
	case '"':
		for p.prompts = 0; c.element() && !p.canceled(); p.prompts++ {
			p.readText(c.value(), p.prompts == 0)
		}
	case '[':
		for p.prompts = 0; c.element() && !p.canceled(); p.prompts++ {
			if !p.readTokens(c.value(), p.prompts == 0) {
				return false
			}
		}
	default:
		return p.readTokens(v, true)
	}
	return p.failed == noFault
}

func (p *promptReader) readText(v []byte, first bool) {
	s := p.shortest(v)
	p.size += len(s)
	if !p.known && first {
		p.blocks = prefix.AppendText(nil, p.seed, s)
		if p.sketcher != nil {
			p.sketcher.Message(&prefix.Message{Parts: []prefix.Part{{Content: plain(v)}}}, len(s))
		}
	}
	p.forget()
}

func (p *promptReader) readTokens(v []byte, first bool) bool {
	ids, n, ok := tokenIDs(v, first && !p.known)
	p.blocks = prefix.AppendTokens(p.blocks, p.seed, ids)
	p.tokens += n
	return ok
}

// maxHashedTokens is the length of the longest head of a prompt that is hashed,
// longer than any context.
const maxHashedTokens = 1 << 22

// tokenIDs reads an array of token ids, up to maxHashedTokens of them, or only
// counts them. There must be at least one.
func tokenIDs(v []byte, keep bool) (ids []uint32, n int, ok bool) {
	if keep {
		ids = make([]uint32, 0, min(bytes.Count(v, comma)+1, len(v)/2, maxHashedTokens))
	}
	for c := elementsOf(v); c.element(); n++ {
		id, ok := count(c.value())
		if !ok {
			return nil, 0, false
		}
		if keep && n < maxHashedTokens {
			ids = append(ids, uint32(id))
		}
	}
	return ids, n, n > 0
}
