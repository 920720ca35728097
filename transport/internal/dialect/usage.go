package dialect

import "cmp"

// usage is what an engine reports about a request's tokens.
type usage struct {
	prompt, completion, cached          int
	hasPrompt, hasCompletion, hasCached bool
}

// read returns the figures of one usage object; nil has none.
func (d *dialect) read(v []byte) (u usage) {
	if v != nil {
		d.usage(&u, v)
	}
	return u
}

// read reads a usage object. Figures that are absent, null or not a count are unknown;
// an earlier figure remains.
func (u *usage) read(v []byte) {
	m, _ := membersOf(v)
	for {
		f, ok := m.next()
		if !ok {
			return
		}
		switch string(f.key) {
		case "prompt_tokens":
			u.prompt, u.hasPrompt = merge(u.prompt, u.hasPrompt, f.value)
		case "completion_tokens":
			u.completion, u.hasCompletion = merge(u.completion, u.hasCompletion, f.value)
		case "prompt_tokens_details":
			u.cached, u.hasCached = merge(u.cached, u.hasCached, field(f.value, "cached_tokens"))
		}
	}
}

func merge(old int, had bool, v []byte) (int, bool) {
	if n, ok := count(v); ok {
		return n, true
	}
	return old, had
}

// usageFinder finds the usage of a JSON response as it passes, in constant
// memory.
type usageFinder struct {
	want               string // the key of the usage; empty: "usage"
	whole              bool   // the object or array has ended
	depth              int
	inString, escaped  bool
	wantKey            bool // the next string at depth 1 is a key
	inKey              bool
	key                [16]byte
	keyLen             int
	capturing, tooLong bool
	value              []byte
}

// maxUsage is the most bytes of a usage object. Engines send some hundred.
const maxUsage = 4 << 10

// write reads the next bytes of the response.
func (s *usageFinder) write(b []byte) {
	for i := 0; i < len(b); i++ {
		if s.inString && !s.escaped && !s.inKey && !s.capturing {
			for i < len(b) && b[i] != '"' && b[i] != '\\' {
				i++
			}
			if i == len(b) {
				return
			}
		}
		c := b[i]
		if s.capturing && !(s.depth == 1 && !s.inString && (c == ',' || c == '}')) {
			if len(s.value) < maxUsage {
				s.value = append(s.value, c)
			} else {
				s.tooLong = true
			}
		}
		switch {
		case s.escaped:
			s.escaped = false
			s.addKey('\\') // a key with an escape does not match
		case s.inString && c == '\\':
			s.escaped = true
		case s.inString && c == '"':
			s.inString, s.inKey = false, false
		case s.inString:
			s.addKey(c)
		case c == '"':
			s.inString = true
			if s.depth == 1 && s.wantKey {
				s.inKey, s.wantKey, s.keyLen = true, false, 0
			}
		case c == '{' || c == '[':
			s.depth++
			if s.depth == 1 {
				s.wantKey = c == '{'
			}
		case c == '}' || c == ']':
			s.depth--
			if s.depth == 0 {
				s.capturing, s.whole = false, true
			}
		case c == ':' && s.depth == 1 && s.wanted():
			s.capturing, s.tooLong, s.keyLen = true, false, 0
			s.value = s.value[:0]
		case c == ',' && s.depth == 1:
			s.capturing, s.wantKey, s.keyLen = false, true, 0
		}
	}
}

func (s *usageFinder) addKey(c byte) {
	if s.inKey && s.keyLen < len(s.key) {
		s.key[s.keyLen] = c
		s.keyLen++
	}
}

// wanted reports whether the last key is that of the usage.
func (s *usageFinder) wanted() bool { return string(s.key[:s.keyLen]) == cmp.Or(s.want, "usage") }

// found returns the usage object, or nil.
func (s *usageFinder) found() []byte {
	if s.tooLong || s.capturing {
		return nil
	}
	return s.value
}

// usage returns the usage, in the format of OpenAI's API.
func (s *usageFinder) usage() usage {
	var u usage
	u.read(s.found())
	return u
}
