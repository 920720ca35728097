package dialect

// usage is what an engine says of the tokens of a request.
type usage struct {
	prompt, completion, cached          int
	hasPrompt, hasCompletion, hasCached bool
}

// read takes the figures of a usage object. A figure that is absent, null or no count is
// not known; a figure from before stays.
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

// chunk is what one event of a stream says.
type chunk struct {
	// choices says that there is a list of choices; content is the length in
	// bytes of what the model has written in all of them: text, reasoning,
	// refusals and tool calls. A role alone is no content.
	choices  bool
	content  int
	any      bool // the list of choices is not empty
	finished bool // a choice has a finish reason
	failed   bool // the engine reports an error

	usage []byte // the usage object; nil if absent or null
	// [usageAt, usageEnd) is the usage member, an object or null, with the
	// comma that goes with it.
	usageAt, usageEnd int
	// more says that there is something beside usage and what every event has.
	more bool
}

// hide is what becomes of the event where its usage is not for the client. The
// event that an engine adds for usage alone is dropped: clients that did not
// ask for it take choices to be there. From an event with content only a null
// is taken: a figure would be there unasked.
func (c *chunk) hide() verdict {
	switch {
	case c.usage == nil || !c.any && c.more:
		return verdict{cut: c.usageAt, cutEnd: c.usageEnd}
	case !c.any:
		return verdict{drop: true}
	}
	return verdict{}
}

func readChunk(data []byte) chunk {
	var c chunk
	m, _ := membersOf(data)
	for {
		f, ok := m.next()
		if !ok {
			return c
		}
		switch string(f.key) {
		case "choices":
			c.readChoices(f.value)
		case "usage":
			c.usage, c.usageAt, c.usageEnd = nil, 0, 0
			if isNull(f.value) {
				c.usageAt, c.usageEnd = withComma(data, f.at, f.end)
			} else if len(f.value) > 0 && f.value[0] == '{' {
				c.usage = f.value
				c.usageAt, c.usageEnd = withComma(data, f.at, f.end)
			}
		case "error":
			c.failed = present(f.value)
			c.more = c.more || c.failed
		case "id", "object", "created", "model", "system_fingerprint", "service_tier":
		default:
			c.more = c.more || !isNull(f.value)
		}
	}
}

// withComma widens the bounds of a member by one comma beside it.
func withComma(data []byte, at, end int) (int, int) {
	if i := skipSpace(data, end); i < len(data) && data[i] == ',' {
		return at, i + 1
	}
	i := at - 1
	for i > 0 && skipSpace(data[i:i+1], 0) == 1 {
		i--
	}
	if i > 0 && data[i] == ',' {
		return i, end
	}
	return at, end
}

func (c *chunk) readChoices(v []byte) {
	e, ok := elementsOf(v)
	c.choices, c.any, c.content, c.finished = ok, false, 0, false
	for {
		choice, ok := e.next()
		if !ok {
			return
		}
		c.any = true
		m, _ := membersOf(choice)
		for {
			f, ok := m.next()
			if !ok {
				break
			}
			switch string(f.key) {
			case "text":
				c.content += stringLen(f.value)
			case "delta":
				c.content += deltaLen(f.value)
			case "finish_reason":
				c.finished = c.finished || present(f.value)
			}
		}
	}
}

// deltaLen is the length of what the model has written in a delta.
func deltaLen(v []byte) int {
	n := 0
	m, _ := membersOf(v)
	for {
		f, ok := m.next()
		if !ok {
			return n
		}
		switch string(f.key) {
		case "content", "reasoning_content", "reasoning", "refusal":
			n += stringLen(f.value)
		case "function_call":
			n += functionLen(f.value)
		case "tool_calls":
			e, _ := elementsOf(f.value)
			for {
				call, ok := e.next()
				if !ok {
					break
				}
				n += functionLen(field(call, "function"))
			}
		}
	}
}

func functionLen(v []byte) int {
	return stringLen(field(v, "name")) + stringLen(field(v, "arguments"))
}

// usageFinder finds the usage of a JSON response as it passes, in memory of
// constant size.
type usageFinder struct {
	whole              bool // the object or array has ended
	depth              int
	inString, escaped  bool
	wantKey            bool // the next string at depth 1 is a key
	inKey              bool
	key                [8]byte
	keyLen             int
	capturing, tooLong bool
	value              []byte
}

// maxUsage bounds the bytes of a usage object. Those of engines have some
// hundred.
const maxUsage = 4 << 10

// write takes the next bytes of the response.
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
			s.addKey('\\') // a key with an escape is not ours
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
		case c == ':' && s.depth == 1 && s.keyLen == len("usage") && string(s.key[:s.keyLen]) == "usage":
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

// usage returns what was found.
func (s *usageFinder) usage() usage {
	var u usage
	if !s.tooLong && !s.capturing {
		u.read(s.value)
	}
	return u
}
