package dialect

import "time"

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

// usage is what an engine has reported so far about a request's tokens, the latest of each figure.
// Figures that are absent, null or not a count are unknown.
type usage struct {
	is   [numFigures]int
	has  [numFigures]bool
	load time.Duration // of the model, into memory; 0: not reported
}

// read reads an object with figures, or one that it is in, but not deeper than so many objects.
func (u *usage) read(v []byte, depth int) {
	for m := membersOf(v); m.member(); {
		v := m.value()
		is, ok := figures[string(m.key)]
		switch n, isCount := count(v); {
		case !ok:
		case is == within:
			if depth > 0 {
				u.read(v, depth-1)
			}
		case is == loadFigure:
			if d, err := time.ParseDuration(viewString(v) + "ns"); err == nil && d > 0 {
				u.load = d
			}
		case isCount:
			u.is[is], u.has[is] = n, true
		}
	}
}

// prompt is the length of the prompt, output that of the response and cached the part of the prompt
// that was in the cache; false if it is not known.
func (u *usage) prompt() (int, bool) {
	switch {
	case u.has[promptFigure]:
		return u.is[promptFigure], true
	case u.has[computedFigure]:
		return u.is[computedFigure] + u.is[readFigure] + u.is[createdFigure], true
	case u.has[totalFigure] && !u.has[outputFigure]:
		return u.is[totalFigure], true
	}
	return 0, false
}

func (u *usage) output() (int, bool) { return u.is[outputFigure], u.has[outputFigure] }
func (u *usage) dropOutput()         { u.is[outputFigure], u.has[outputFigure] = 0, false }

func (u *usage) cached() (int, bool) {
	for _, f := range [...]figure{cachedFigure, readFigure} {
		if u.has[f] {
			return u.is[f], true
		}
	}
	n := u.is[promptFigure] - u.is[computedFigure]
	if !u.has[promptFigure] || !u.has[computedFigure] || n < 0 {
		return 0, false
	}
	return n, true
}

// maxUsage is the most bytes of the member with the usage, of which engines send some hundred;
// depthOfUsage is how deep figures may be in it.
const maxUsage, depthOfUsage = 4 << 10, 2

// usageFinder finds the usage of a JSON response as it passes, in constant memory.
type usageFinder struct {
	whole             bool // the object or array has ended
	depth             int
	inString, escaped bool
	member            []byte // the current member of the response, as an object without its end
	found             usage
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
		f.found.read(append(f.member, '}'), depthOfUsage)
	}
	f.member = append(f.member[:0], '{')
}
