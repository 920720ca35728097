package dialect

import (
	"bytes"

	"github.com/endpick/endpick/prefix"
)

// OpenAI's completions.
var completion = &api{
	paths:     []string{"/completions"},
	parts:     map[string]part{"prompt": promptPart},
	prompt:    readPrompts,
	asksUsage: true,
	resumes:   true,
	event:     readChunk,
}

// readPrompts reads one prompt or several, as any engine accepts them: a text, a list
// of token ids or of ids and texts, an object with a text and media, or a list of
// these. Blocks are those of the first.
func readPrompts(p *promptReader) bool {
	all := p.parts[promptPart]
	c := p.elementsOf(all)
	if !hasElements(all) || isNumber(c.peek()) {
		return p.onePrompt(all, true)
	}
	for p.prompts = 0; c.element() && !p.canceled(); p.prompts++ {
		v := c.value()
		if len(v) > 0 && isNumber(v[0]) { // a single prompt, not several
			p.prompts, p.size, p.media, p.blocks = 1, 0, 0, nil
			return p.mixedPrompt(all)
		}
		if !p.onePrompt(v, p.prompts == 0) {
			return false
		}
	}
	if p.size > 0 && p.tokens > 0 {
		p.size, p.tokens, p.rough = p.size+tokenBytes*p.tokens, 0, true
	}
	return p.failed == noFault
}

func isNumber(c byte) bool { return c-'0' < 10 || c == '-' }

// onePrompt adds one of several prompts.
func (p *promptReader) onePrompt(v []byte, first bool) bool {
	switch {
	case isString(v):
		p.readText(v, first)
		return true
	case isObject(v):
		words, media := p.field(v, "prompt_string"), p.field(v, "multimodal_data")
		if !isString(words) {
			return false
		}
		for c := p.elementsOf(media); c.element(); c.value() {
			p.media++
		}
		p.readText(words, first)
		return true
	}
	return p.readTokens(v, first) || p.mixedPrompt(v)
}

// tokenBytes is how much text a token id next to text counts as.
const tokenBytes = prefix.BlockBytes / prefix.BlockTokens

// mixedPrompt reads a list of token ids and texts, of which only the length counts.
func (p *promptReader) mixedPrompt(v []byte) bool {
	p.rough = true
	for c := p.elementsOf(v); c.element() && !p.canceled(); {
		x := c.value()
		if _, isID := count(x); isID {
			p.size += tokenBytes
		} else if p.size += stringLen(x); !isString(x) {
			return false
		}
	}
	return hasElements(v)
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
		ids = make([]uint32, 0, min(bytes.Count(v, []byte{','})+1, len(v)/2, maxHashedTokens))
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
