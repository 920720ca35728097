package dialect

import "github.com/endpick/endpick/prefix"

// OpenAI's completions.
var completionDialect = dialect{
	paths:     []string{"/completions"},
	place:     placeCompletion,
	hasPrompt: func(c *call) bool { return isString(c.prompt) || hasElements(c.prompt) },
	prompt:    readCompletion,
	options:   true,
	event:     readChunk,
	usage:     (*usage).read,
	inUsage:   "usage",
}

func placeCompletion(c *call, key []byte) *[]byte {
	if string(key) == "prompt" {
		return &c.prompt
	}
	return nil
}

// readCompletion reads a string, a list of strings, a list of token ids or a list
// of such lists. Blocks are those of the first.
func readCompletion(p *promptReader) bool {
	if isString(p.prompt) {
		p.readText(p.prompt, true)
		return true
	}
	c := p.elementsOf(p.prompt)
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
		return p.readTokens(p.prompt, true)
	}
	return p.failed == noFault
}

func (p *promptReader) readText(v []byte, first bool) {
	s := p.shortest(v)
	p.size += len(s)
	if !p.known && first {
		p.blocks = prefix.AppendText(nil, p.seed, s)
		if p.sketcher != nil {
			p.sketcher.Message(&prefix.Message{Parts: []prefix.Part{{Content: text(v)}}}, len(s))
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
