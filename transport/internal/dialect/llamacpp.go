package dialect

import (
	"encoding/binary"

	"github.com/endpick/endpick/prefix"
)

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
	if isPrompt := present(before) && present(after); p.known || !isPrompt {
		return isPrompt
	}
	p.begin()
	for c := p.elementsOf(p.parts[messagesPart]); c.element() && !p.canceled(); {
		p.file(&c)
	}
	m := &p.m
	for _, v := range [...]struct {
		role   string
		pieces [2][]byte
	}{{"prefix", [2][]byte{before, p.parts[promptPart]}}, {"suffix", [2][]byte{after}}} {
		*m = prefix.Message{Role: v.role, Parts: m.Parts[:0], ToolCalls: m.ToolCalls[:0]}
		for _, piece := range v.pieces {
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
	p.end()
	return true
}

func (p *promptReader) file(c *cursor) {
	p.forget()
	m := &p.m
	*m = prefix.Message{Role: "file", Parts: m.Parts[:0], ToolCalls: m.ToolCalls[:0]}
	if !c.openOrSkip('{') {
		return
	}
	var words []byte
	for c.member() {
		switch string(c.key) {
		case "filename":
			m.Name = c.text()
		case "text":
			words = c.value()
		default:
			c.value()
		}
	}
	m.Parts = append(m.Parts, prefix.Part{Content: p.shortest(words)})
	p.write(m)
}

// readPrompts reads what llama.cpp accepts as one prompt or several: a text, a list
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
			return p.mixedPrompt(all, true)
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
	return p.readTokens(v, first) || p.mixedPrompt(v, first)
}

// tokenBytes is how much text a token id next to text counts as.
const tokenBytes = prefix.BlockBytes / prefix.BlockTokens

// mixedPrompt reads a list of token ids and texts.
func (p *promptReader) mixedPrompt(v []byte, first bool) bool {
	if !hasElements(v) {
		return false
	}
	p.rough = true
	if first && !p.known {
		p.h.Reset(p.seed, nil)
	}
	n := 0
	for c := p.elementsOf(v); c.element() && !p.canceled(); n++ {
		x := c.value()
		if id, ok := count(x); ok {
			p.size += tokenBytes
			if first && !p.known {
				// Preceded by a byte that no text contains, so that no text is equal.
				var b [1 + tokenBytes]byte
				b[0] = 0xff
				binary.LittleEndian.PutUint32(b[1:], uint32(id))
				p.h.WriteString(viewString(b[:]))
			}
			continue
		}
		if !isString(x) {
			return false
		}
		p.size += stringLen(x)
		if first && !p.known {
			p.h.WriteString(p.shortest(x))
			p.forget()
		}
	}
	if first && !p.known {
		p.blocks = p.h.Blocks()
	}
	return n > 0
}

// readNativeEvent reads an event of llama.cpp's own streams: a piece of text and
// its tokens. The last one of each response repeats the prompt and has the
// totals; if the prompt is long, it is too long to be read.
func readNativeEvent(to *response, data []byte) {
	var words, ids []byte
	index, predicted, stop := 0, 0, false
	for m := membersOf(data); m.member(); {
		v := m.value()
		switch string(m.key) {
		case "index":
			index, _ = count(v)
		case "content":
			words = v
		case "tokens":
			ids = v
		case "stop":
			stop = isTrue(v)
		case "tokens_predicted":
			predicted, _ = count(v)
		case "error":
			if present(v) {
				to.on(event{kind: fails})
			}
		}
	}
	if stop || predicted == 0 { // there are totals, or the progress of the prompt
		ids = nil
	}
	if words != nil {
		to.on(event{kind: text, choice: index, text: words, tokens: length(ids)})
	}
	if stop {
		to.on(event{kind: ends, choice: index, all: true})
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
	if t := field(v, "timings"); t != nil {
		timings = t
	}
	computed, hasComputed := count(field(timings, "prompt_n"))
	cached, hasCached := count(field(timings, "cache_n"))
	all, hasAll := count(field(v, "tokens_evaluated"))
	switch {
	case hasCached && hasComputed:
		u.prompt, u.hasPrompt = computed+cached, true
		u.cached, u.hasCached = cached, true
	case hasAll:
		u.prompt, u.hasPrompt = all, true
		if hasComputed && computed <= all {
			u.cached, u.hasCached = all-computed, true
		}
	}
	u.completion, u.hasCompletion = merge(u.completion, u.hasCompletion, field(timings, "predicted_n"))
	u.completion, u.hasCompletion = merge(u.completion, u.hasCompletion, field(v, "tokens_predicted"))
}
