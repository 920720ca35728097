package dialect

import "github.com/endpick/endpick/prefix"

// llama.cpp's own API: /completion, and /infill for code with a gap.
var (
	native = &api{
		paths:    []string{"/completion"},
		parts:    map[string]part{"prompt": promptPart},
		prompt:   readPrompts,
		event:    readNativeEvent,
		endsEach: true,
	}
	infill = &api{
		paths: []string{"/infill"},
		parts: map[string]part{
			"input_extra": messagesPart, "input_prefix": systemPart, "prompt": promptPart, "input_suffix": othersPart,
		},
		prompt:   readInfill,
		event:    readNativeEvent,
		endsEach: true,
	}
)

// readInfill reads the files first, as the engine does, then the text before the
// gap and the text after it. The engine may leave out parts of each.
func readInfill(p *promptReader) bool {
	before, after := p.parts[systemPart], p.parts[othersPart]
	isPrompt := present(before) && present(after)
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
		switch {
		case isString(piece):
			m.Parts = append(m.Parts, prefix.Part{Content: p.shortest(piece)})
		case present(piece): // tokens
			m.Parts = append(m.Parts, prefix.Part{Content: viewString(piece)})
			p.rough = true
		}
	}
	p.write(m)
}

// readNativeEvent reads an event of llama.cpp's own streams: a piece of text and
// its tokens. The last one of each response repeats the prompt and has the
// totals; if the prompt is long, it is too long to be read.
func readNativeEvent(to *response, data []byte) {
	var index, words, ids, end, total, failure []byte
	pick(data, into{"index", &index}, into{"content", &words}, into{"tokens", &ids}, into{"stop", &end}, into{"tokens_predicted", &total}, into{"error", &failure})
	choice, _ := count(index)
	predicted, _ := count(total)
	stop := isTrue(end)
	if present(failure) {
		to.on(event{kind: fails})
	}
	if stop || predicted == 0 { // there are totals, or the progress of the prompt
		ids = nil
	}
	if words != nil {
		to.on(event{kind: text, choice: choice, text: words, tokens: length(ids)})
	}
	if stop {
		to.on(event{kind: ends, choice: choice, all: true})
		to.on(event{kind: reports, value: data, own: true})
	}
}
