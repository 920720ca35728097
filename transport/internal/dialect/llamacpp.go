package dialect

import "github.com/endpick/endpick/prefix"

// llama.cpp's own API: /completion, and /infill for code with a gap.
var (
	native = &api{
		paths:    []string{"/completion"},
		parts:    map[string]part{"prompt": promptPart},
		prompt:   readPrompts,
		resumes:  []string{"llama.cpp"},
		event:    readOwn,
		endsEach: true,
	}
	infill = &api{
		paths: []string{"/infill"},
		parts: map[string]part{
			"input_extra": messagesPart, "input_prefix": systemPart, "prompt": promptPart, "input_suffix": suffixPart,
		},
		prompt:   readInfill,
		event:    readOwn,
		endsEach: true,
	}
)

// readInfill reads the files first, as the engine does, then the text before the
// gap and the text after it. The engine may leave out parts of each.
func readInfill(p *promptReader) bool {
	before, after := p.parts[systemPart], p.parts[suffixPart]
	isPrompt := isString(before) && isString(after)
	if isPrompt && !p.known {
		p.begin()
		p.readMessages(p.parts[messagesPart])
		p.code("prefix", before, p.parts[promptPart])
		p.code("suffix", after)
		p.end()
	}
	return isPrompt
}

func (p *promptReader) code(role string, pieces ...[]byte) {
	m := p.message(role)
	for _, piece := range pieces {
		if isString(piece) {
			m.Parts = append(m.Parts, prefix.Part{Content: p.shortest(piece)})
		}
	}
	p.write(m)
}
