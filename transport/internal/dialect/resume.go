package dialect

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// A stream that has broken off can go on at an engine that continues a text: that gets the request
// with what was said so far, and its stream is made the rest of the first one. OpenAI's chats and
// completions have what is needed, in the dialect of vLLM and SGLang.

// beginning is what earlier attempts at a stream have said.
type beginning struct {
	id, created []byte // values in each chunk of the first
	tokens      int
	// space is white space at the end of the text that was not sent again, because templates drop
	// it: the engine is about to repeat it, for all that is known.
	space   []byte
	firstAt time.Time
}

// free are the members of a request whose engine may say any text, so that the rest of one that was
// begun is as good as any. Beside them, only what is null or false may be there.
var free = map[string]bool{
	"model": true, "messages": true, "prompt": true, "stream": true, "stream_options": true, "n": true,
	"max_tokens": true, "max_completion_tokens": true, "tools": true, "parallel_tool_calls": true,
	"temperature": true, "top_p": true, "top_k": true, "min_p": true, "logit_bias": true,
	"presence_penalty": true, "frequency_penalty": true, "repetition_penalty": true,
	"stop": true, "stop_token_ids": true, "include_stop_str_in_output": true, "ignore_eos": true,
	"skip_special_tokens": true, "spaces_between_special_tokens": true, "chat_template_kwargs": true,
	"reasoning_effort": true, "cache_salt": true, "priority": true, "request_id": true, "user": true, "metadata": true,
	"prompt_cache_key": true, "safety_identifier": true, "service_tier": true,
}

// Resumable reports whether a stream may go on elsewhere if it breaks off, as far as is known before
// it has begun.
func (c *Call) Resumable() bool {
	return c.api.resumes && c.stream && c.reader.config.Resume && c.responses() == 1
}

// Resume returns the request for the rest of a stream that m has metered; nil if it can't be had. It is
// a call as if it had been read and its prompt too.
func (c *Call) Resume(m *Meter) *Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	first, a := c, &m.answer
	if c.first != nil {
		first = c.first
	}
	calls := len(a.pieces) > 1 || len(a.pieces) == 1 && a.pieces[0].call
	if !first.Resumable() || m.events == nil || m.events.skipped || m.state > open || m.failed || a.lost || a.thought || calls {
		return nil
	}
	s := &beginning{id: m.id, created: m.created, tokens: m.tokens(), firstAt: m.firstAt}
	if m.before != nil {
		s.id, s.created, s.firstAt = m.before.id, m.before.created, cmp.Or(m.before.firstAt, m.firstAt)
	} else if m.state == silent {
		return first // the client has nothing of it
	}
	var text []byte
	answered := answer{wanted: true}
	if len(a.pieces) == 1 {
		text, s.space = trimSpace(a.pieces[0].text)
		answered.size, answered.pieces = a.size, []piece{{text: bytes.Clone(text)}}
	}
	body := first.continued(text, s.tokens)
	if body == nil {
		return nil
	}
	parsed, err := parse(first.api, nil, body, first.maxItems)
	if err != nil {
		return nil
	}
	next := *first
	next.request, next.hasher, next.first, next.beginning, next.promptBytes = parsed, first.hasher, first, s, 0
	next.answered = answered
	return &next
}

// HoldFaults makes the meter hold back an event with which an engine breaks off a stream by its own fault,
// and all after it: the stream may go on elsewhere. If it does not, Break passes the event on.
func (m *Meter) HoldFaults() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds = true
}

// Faulty reports whether the engine has broken off the stream like that.
func (m *Meter) Faulty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fault != nil
}

// serversFault reports whether an error in a stream has a code from 500 on.
func serversFault(data []byte) bool {
	if e := field(data, "error"); isObject(e) {
		data = e
	}
	code, ok := count(bytes.Trim(field(data, "code"), `"`))
	return ok && code >= http.StatusInternalServerError
}

// tokens is how many tokens the stream has so far: as the engine counts them, or one for each event.
func (m *Meter) tokens() (n int) {
	if n = m.contents; m.usage.hasCompletion {
		n = m.usage.completion
	}
	if m.before != nil {
		n += m.before.tokens
	}
	return n
}

// continued is the body that asks for what follows text, the content of a JSON string; nil if there
// is none.
func (c *request) continued(text []byte, tokens int) []byte {
	limited, bad := false, false
	text = appendControls(nil, text)
	body := rewritten(nil, c.body[c.top-1:], func(key string, v []byte) []byte {
		switch {
		case !present(v), string(v) == "false", len(text) == 0 && tokens == 0:
		case key == "max_tokens" || key == "max_completion_tokens":
			limit, _ := count(v)
			limited, bad = true, bad || limit <= tokens
			return strconv.AppendInt(nil, int64(limit-tokens), 10)
		case key == "messages":
			end := bytes.LastIndexByte(v, ']')
			bad = bad || end < 0 || !hasElements(v)
			v = append(append(append([]byte{}, v[:max(end, 0)]...), `,{"role":"assistant","content":"`...), text...)
			return append(v, `"}]`...)
		case key == "prompt":
			bad = bad || !isString(v)
			return append(append(append([]byte{}, v[:max(len(v)-1, 0)]...), text...), '"')
		case key == "response_format":
			bad = bad || plain(field(v, "type")) != "text"
		case key == "tool_choice":
			bad = bad || string(v) != `"auto"` && string(v) != `"none"`
		default:
			bad = bad || !free[key]
		}
		return v
	})
	switch {
	case bad, c.api == completion && !limited: // an engine's own limit is for the whole
		return nil
	case c.api == chat && len(text) > 0:
		return append([]byte(`{"add_generation_prompt":false,"continue_final_message":true,`), body[1:]...)
	}
	return body
}

// appendControls appends a text with escapes for the control characters that [appendShortest] leaves bare.
func appendControls(dst, text []byte) []byte {
	for _, c := range text {
		if c < ' ' {
			dst = fmt.Appendf(dst, `\u%04x`, c)
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

// trimSpace returns the content of a JSON string without the white space at its end, and that.
func trimSpace(text []byte) (before, space []byte) {
	for {
		n := len(text)
		switch {
		case n > 0 && text[n-1] == ' ':
			text, space = text[:n-1], append(space, ' ')
		case n > 1 && bytes.IndexByte([]byte("nrt"), text[n-1]) >= 0 && isEscaped(text, n-1):
			r, _ := unescape(text[n-2:])
			text, space = text[:n-2], append(space, byte(r))
		default:
			for i, j := 0, len(space)-1; i < j; i, j = i+1, j-1 {
				space[i], space[j] = space[j], space[i]
			}
			return text, space
		}
	}
}

// rest returns a chunk of a resumed stream as one of the first; nil if it only announces.
func (m *Meter) rest(data []byte) []byte {
	d := &m.data
	if d.known && !d.hasContent() && !d.odd && !d.ended && !present(d.usage.value) && !m.failed {
		return nil
	}
	return rewritten(nil, data, func(key string, v []byte) []byte {
		switch {
		case key == "id" && m.before.id != nil:
			return m.before.id
		case key == "created" && m.before.created != nil:
			return m.before.created
		case key == "usage" && isObject(v):
			return rewritten(nil, v, m.sum)
		case key == "choices" && hasElements(v):
			choices := []byte("[")
			for c := elementsOf(v); c.element(); {
				if len(choices) > 1 {
					choices = append(choices, ',')
				}
				choices = rewritten(choices, c.value(), m.choice)
			}
			return append(choices, ']')
		}
		return v
	})
}

// choice changes a member of a choice, or of what it adds to its message.
func (m *Meter) choice(key string, v []byte) []byte {
	switch {
	case key == "delta" && isObject(v):
		return rewritten(nil, v, m.choice)
	case key == "role":
		return nil
	case (key == "content" || key == "text") && isString(v):
		return m.unrepeated(v)
	}
	return v
}

// sum changes a member of usage: what was said before is output, and no prompt.
func (m *Meter) sum(key string, v []byte) []byte {
	n, ok := count(v)
	switch {
	case key == "prompt_tokens_details" && isObject(v):
		return rewritten(nil, v, m.sum)
	case !ok:
		return v
	case key == "prompt_tokens":
		n = max(n-m.before.tokens, 0)
	case key == "cached_tokens":
		n = min(n, max(m.usage.prompt-m.before.tokens, 0))
	case key == "completion_tokens":
		n += m.before.tokens
	default:
		return v
	}
	return strconv.AppendInt(nil, int64(n), 10)
}

// unrepeated drops from the string v the white space that the client has got already.
func (m *Meter) unrepeated(v []byte) []byte {
	text, s := inQuotes(v), m.before
	for len(text) > 0 && len(s.space) > 0 {
		r, size := rune(text[0]), 1
		if text[0] == '\\' {
			r, size = unescape(text)
		}
		if r != rune(s.space[0]) {
			s.space = nil
			break
		}
		text, s.space = text[size:], s.space[1:]
	}
	return append(append([]byte{'"'}, text...), '"')
}

// rewritten appends an object to dst, with what change returns in place of each value; nil: the
// member is left out.
func rewritten(dst, object []byte, change func(key string, v []byte) []byte) []byte {
	dst = append(dst, '{')
	begun := false
	for m := membersOf(object); m.member(); {
		start := m.start
		v := m.value()
		to := change(string(m.key), v)
		if to == nil {
			continue
		}
		if begun {
			dst = append(dst, ',')
		}
		begun = true
		dst = append(append(dst, object[start:m.i-len(v)]...), to...)
	}
	return append(dst, '}')
}
