package dialect

import (
	"cmp"
	"slices"
	"time"
)

// usage is what an engine reports about a request's tokens.
type usage struct {
	prompt, completion, cached          int
	hasPrompt, hasCompletion, hasCached bool
	load                                time.Duration // of the model, into memory; 0: not reported
}

// readUsage reads a usage object of the API.
func (a *api) readUsage(u *usage, v []byte) {
	if a.usage == nil {
		u.read(v)
	} else {
		a.usage(u, v)
	}
}

// read reads a usage object of OpenAI's older or newer APIs. Figures that are absent, null or
// not a count are unknown; an earlier figure remains.
func (u *usage) read(v []byte) {
	var prompt, completion, details []byte
	pick(v, into{"prompt_tokens", &prompt}, into{"input_tokens", &prompt}, into{"completion_tokens", &completion}, into{"output_tokens", &completion},
		into{"prompt_tokens_details", &details}, into{"input_tokens_details", &details})
	u.prompt, u.hasPrompt = merge(u.prompt, u.hasPrompt, prompt)
	u.completion, u.hasCompletion = merge(u.completion, u.hasCompletion, completion)
	u.cached, u.hasCached = merge(u.cached, u.hasCached, field(details, "cached_tokens"))
}

func merge(old int, had bool, v []byte) (int, bool) {
	if n, ok := count(v); ok {
		return n, true
	}
	return old, had
}

// maxUsage is the most bytes of the member with the usage. Engines send some hundred.
const maxUsage = 4 << 10

// usageFinder finds the usage of a JSON response as it passes, in constant memory.
type usageFinder struct {
	key               string   // of the usage; empty: "usage"
	members           []string // that make it up; nil: it is an object
	whole             bool     // the object or array has ended
	depth             int
	inString, escaped bool
	member            []byte // the current member of the response, as an object without its end
	value             []byte // the usage
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
	switch {
	case len(f.member) >= maxUsage:
	case f.members != nil:
		m := membersOf(append(f.member, '}'))
		if !m.member() || !slices.Contains(f.members, string(m.key)) {
			break
		}
		if m.value(); len(f.value) > 0 {
			f.value = append(f.value[:len(f.value)-1], ',')
		} else {
			f.value = append(f.value, '{')
		}
		f.value = append(append(f.value, m.b[m.start:m.i]...), '}')
	default:
		if v := field(append(f.member, '}'), cmp.Or(f.key, "usage")); v != nil {
			f.value = append(f.value[:0], v...)
		}
	}
	f.member = append(f.member[:0], '{')
}
