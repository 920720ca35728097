package dialect

import (
	"cmp"
	"time"
)

// usage is what an engine reports about a request's tokens.
type usage struct {
	prompt, completion, cached          int
	hasPrompt, hasCompletion, hasCached bool
	load                                time.Duration // of the model, into memory; 0: not reported
}

// figure is what a number that an engine reports is about.
type figure uint8

const (
	promptFigure   figure = iota // tokens of the whole prompt
	totalFigure                  // of prompt and output
	outputFigure                 // of the output
	cachedFigure                 // of the prompt's tokens, those in the cache
	computedFigure               // those computed, and perhaps those in the cache
	readFigure                   // those in the cache, which the computed ones are besides
	createdFigure                // those written to the cache, likewise
	numFigures
	loadFigure // the time that loading the model has taken, in nanoseconds
	within     // there are figures in this object
)

// figures are their names in all APIs. (llama.cpp's tokens_cached is something else: the content of
// the slot at the end, including the response.)
var figures = map[string]figure{
	"prompt_tokens": promptFigure, "prompt_eval_count": promptFigure, "tokens_evaluated": promptFigure, "total_tokens": totalFigure,
	"completion_tokens": outputFigure, "output_tokens": outputFigure,
	"eval_count": outputFigure, "predicted_n": outputFigure, "tokens_predicted": outputFigure,
	"cached_tokens": cachedFigure, "input_tokens": computedFigure, "prompt_n": computedFigure,
	"cache_read_input_tokens": readFigure, "cache_n": readFigure, "cache_creation_input_tokens": createdFigure, "load_duration": loadFigure,
	"usage": within, "prompt_tokens_details": within, "input_tokens_details": within, "meta_info": within, "timings": within,
}

// found are figures that were found in a response. Figures that are absent, null or not a count are unknown.
type found struct {
	is   [numFigures]int
	has  [numFigures]bool
	load time.Duration
}

// read finds the figures of an object, and those that are so many objects deeper.
func (f *found) read(v []byte, depth int) {
	for m := membersOf(v); m.member(); {
		v := m.value()
		is, ok := figures[string(m.key)]
		switch n, isCount := count(v); {
		case !ok:
		case is == within:
			if depth > 0 {
				f.read(v, depth-1)
			}
		case is == loadFigure:
			if d, err := time.ParseDuration(viewString(v) + "ns"); err == nil && d > 0 {
				f.load = d
			}
		case isCount:
			f.is[is], f.has[is] = n, true
		}
	}
}

// read reads an object with figures, or one that it is in.
func (u *usage) read(v []byte) {
	var f found
	f.read(v, 2)
	u.take(&f)
}

// take adds what was found. An earlier figure remains if there is no other.
func (u *usage) take(f *found) {
	set := func(to *int, known *bool, n int, ok bool) {
		if ok {
			*to, *known = n, true
		}
	}
	is, has := &f.is, &f.has
	all := is[computedFigure] + is[readFigure] + is[createdFigure]
	set(&u.prompt, &u.hasPrompt, all, has[computedFigure] && (has[readFigure] || !u.hasCached))
	set(&u.prompt, &u.hasPrompt, is[totalFigure], has[totalFigure] && !u.hasPrompt && !has[outputFigure])
	set(&u.prompt, &u.hasPrompt, is[promptFigure], has[promptFigure])
	set(&u.completion, &u.hasCompletion, is[outputFigure], has[outputFigure])
	set(&u.cached, &u.hasCached, is[promptFigure]-is[computedFigure], has[promptFigure] && has[computedFigure] && is[computedFigure] <= is[promptFigure])
	set(&u.cached, &u.hasCached, is[readFigure], has[readFigure])
	set(&u.cached, &u.hasCached, is[cachedFigure], has[cachedFigure])
	u.load = cmp.Or(f.load, u.load)
}

// maxUsage is the most bytes of the member with the usage. Engines send some hundred.
const maxUsage = 4 << 10

// usageFinder finds the usage of a JSON response as it passes, in constant memory.
type usageFinder struct {
	whole             bool // the object or array has ended
	depth             int
	inString, escaped bool
	member            []byte // the current member of the response, as an object without its end
	found             found
}

// write reads the next bytes of the response.
func (f *usageFinder) write(b []byte) {
	for _, c := range b {
		switch {
		case f.escaped:
			f.escaped = false
		case f.inString:
			f.escaped, f.inString = c == '\\', c != '"'
		case c == '"':
			f.inString = true
		case c == '{' || c == '[':
			if f.depth++; f.depth == 1 {
				f.member = append(f.member[:0], '{')
				continue
			}
		case c == '}' || c == ']':
			if f.depth--; f.depth == 0 {
				f.endMember()
				f.whole = true
			}
		case c == ',' && f.depth == 1:
			f.endMember()
			continue
		}
		if len(f.member) < maxUsage {
			f.member = append(f.member, c)
		}
	}
}

func (f *usageFinder) endMember() {
	if len(f.member) < maxUsage {
		f.found.read(append(f.member, '}'), 2)
	}
	f.member = append(f.member[:0], '{')
}
