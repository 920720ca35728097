package dialect

import "github.com/endpick/endpick/prefix"

// llama.cpp's own API: /completion, and /infill for code with a gap.
var (
	native = &api{
		paths:    []string{"/completion"},
		parts:    map[string]part{"prompt": promptPart},
		prompt:   readPrompts,
		event:    readNativeEvent,
		usage:    (*usage).readNative,
		usageIn:  "timings",
		endsEach: true,
	}
	infill = &api{
		paths: []string{"/infill"},
		parts: map[string]part{
			"input_extra": messagesPart, "input_prefix": systemPart, "prompt": promptPart, "input_suffix": othersPart,
		},
		prompt:   readInfill,
		event:    readNativeEvent,
		usage:    (*usage).readNative,
		usageIn:  "timings",
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

// readNative reads a last event, or the timings of a response that did not stream.
// The prompt's tokens are the computed and the cached ones, cache_n.
// (tokens_cached is the content of the slot at the end, including the response.)
// Engines without cache_n report the prompt's tokens next to the timings, or not
// at all.
func (u *usage) readNative(v []byte) {
	timings := v
	var evaluated, predicted, inTimings, computed, cached []byte
	pick(v, into{"timings", &timings}, into{"tokens_evaluated", &evaluated}, into{"tokens_predicted", &predicted})
	pick(timings, into{"prompt_n", &computed}, into{"cache_n", &cached}, into{"predicted_n", &inTimings})
	fresh, hasFresh := count(computed)
	old, hasOld := count(cached)
	all, hasAll := count(evaluated)
	switch {
	case hasOld && hasFresh:
		u.prompt, u.hasPrompt = fresh+old, true
		u.cached, u.hasCached = old, true
	case hasAll:
		u.prompt, u.hasPrompt = all, true
		if hasFresh && fresh <= all {
			u.cached, u.hasCached = all-fresh, true
		}
	}
	u.completion, u.hasCompletion = merge(u.completion, u.hasCompletion, inTimings)
	u.completion, u.hasCompletion = merge(u.completion, u.hasCompletion, predicted)
}
