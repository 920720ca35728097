package dialect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A stream that has broken off can go on at an engine that continues a text: that gets the request
// with what was said so far, and its stream is made the rest of the first one. A chat is continued by a
// last message of the assistant, which vLLM and SGLang take for a beginning if the request says so, llama.cpp
// and Ollama in any case; a completion by its prompt.
//
// Token ids (return_token_ids) don't continue a completion, though they would not be tokenized anew: those of a
// chunk may be ahead of its text, of which engines hold back half a character, or what may become a stop sequence.
// Neither would come again.

// beginning is what earlier attempts at a stream have said.
type beginning struct {
	id, created []byte // values in each chunk of the first
	text        string // without the space; empty as soon as more has come
	tokens      int
	// surplus is 1 if those are all that the client wants: the one that is asked for, for an end of the stream,
	// is not passed on.
	surplus int
	// space is white space at the end of the text that was not sent again, because templates drop
	// it: the engine is about to repeat it, for all that is known.
	space   string
	firstAt time.Time
	spent   time.Duration // since then
}

// free are the members of a request whose engine may say any text, so that the rest of one that was
// begun is as good as any. Beside them, only what is null or false may be there. llama.cpp's and Ollama's
// stand at the end.
var free = strings.Fields(`model messages prompt stream stream_options n max_tokens max_completion_tokens
	tools parallel_tool_calls temperature top_p top_k min_p logit_bias presence_penalty frequency_penalty
	repetition_penalty stop stop_token_ids include_stop_str_in_output ignore_eos skip_special_tokens
	spaces_between_special_tokens chat_template_kwargs reasoning_effort cache_salt priority request_id
	user metadata prompt_cache_key safety_identifier service_tier

	cache_prompt return_tokens timings_per_token return_progress samplers typical_p repeat_penalty repeat_last_n
	dynatemp_range dynatemp_exponent xtc_probability xtc_threshold
	dry_multiplier dry_base dry_allowed_length dry_penalty_last_n

	keep_alive truncate shift num_ctx num_keep num_batch num_gpu main_gpu num_thread use_mmap`)

// Resumable reports whether a stream may go on elsewhere if it breaks off, as far as is known before
// it has begun.
func (c *Call) Resumable() bool {
	return len(c.api.resumes) > 0 && c.stream && c.reader.config.Resume && c.responses() == 1
}

// ContinuedBy reports whether an engine can go on with what another one has begun.
func (c *Call) ContinuedBy(engine string) bool { return slices.Contains(c.api.resumes, engine) }

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
	defer func() { s.spent = m.clock().Sub(s.firstAt) }()
	if m.before != nil {
		s.id, s.created, s.firstAt = m.before.id, m.before.created, cmp.Or(m.before.firstAt, m.firstAt)
	} else if m.state == silent {
		return first // the client has nothing of it
	}
	answered := answer{wanted: true}
	if len(a.pieces) == 1 {
		said := string(appendUnquoted(nil, a.pieces[0].text))
		if s.text = strings.TrimRight(said, " \n\r\t"); strings.Contains(s.text, "think>") {
			return nil // reasoning that the engine has not separated, as templates would
		}
		s.space = said[len(s.text):]
		answered.size, answered.pieces = a.size, []piece{{text: pieceOf(s.text)}}
	}
	body, all := first.continued(inQuotes(quote(s.text)), s.tokens)
	if body == nil {
		return nil
	}
	if all {
		s.surplus, answered.lost = 1, true
	}
	parsed, err := parse(first.api, nil, body, first.reader.config.MaxItems)
	if err != nil {
		return nil
	}
	next := *first
	next.request, next.promptBytes = parsed, 0
	next.hasher = first.hasher
	next.first, next.beginning, next.answered = first, s, answered
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

// serversFault reports whether an error in a stream has a code from 500 on, or as in Ollama's API no code at all.
func (a *api) serversFault(data []byte) bool {
	if e := field(data, "error"); isObject(e) {
		data = e
	}
	code, ok := count(bytes.Trim(field(data, "code"), `"`))
	return ok && code >= http.StatusInternalServerError || a.lines
}

// tokens is how many tokens the stream has so far: as the engine counts them, or one for each event.
func (m *Meter) tokens() int {
	n, ok := m.usage.output()
	if !ok {
		n = m.contents
	}
	if m.before != nil {
		n += m.before.tokens
	}
	return n
}

// continued is the body that asks for what follows text, the content of a JSON string; nil if there
// is none. It asks for one token if there are as many as the client wants, which all reports.
func (c *request) continued(text []byte, tokens int) (body []byte, all bool) {
	limited, bad := false, false
	var change func(key string, v []byte) []byte
	change = func(key string, v []byte) []byte {
		switch {
		case !present(v), string(v) == "false", len(text) == 0 && tokens == 0:
		case limits[key] && v[0] == '-': // none, for llama.cpp and Ollama
		case limits[key]:
			limit, _ := count(v)
			limited, all, bad = true, all || limit <= tokens, bad || limit == 0
			return strconv.AppendInt(nil, int64(max(limit-tokens, 1)), 10)
		case key == "options" && isObject(v):
			return rewritten(nil, v, change)
		case key == "messages":
			var last []byte
			for e := elementsOf(v); e.element(); {
				last = e.value()
			}
			end := bytes.LastIndexByte(v, ']')
			if bad = bad || end < 0 || last == nil || plain(field(last, "role")) == "assistant"; bad || len(text) == 0 {
				return v // there is a beginning already, or nothing of which one could be made
			}
			return fmt.Appendf(nil, `%s,{"role":"assistant","content":"%s"}]`, v[:end], text)
		case key == "prompt":
			bad = bad || !isString(v)
			return append(append(append([]byte{}, v[:max(len(v)-1, 0)]...), text...), '"')
		case key == "response_format":
			bad = bad || plain(field(v, "type")) != "text"
		case key == "tool_choice":
			bad = bad || string(v) != `"auto"` && string(v) != `"none"`
		default:
			bad = bad || !slices.Contains(free, key)
		}
		return v
	}
	body = rewritten(nil, c.body[c.top-1:], change)
	switch {
	case bad, c.api == completion && !limited: // an engine's own limit is for the whole
		return nil, false
	case c.api == chat && len(text) > 0:
		body = append([]byte(`{"add_generation_prompt":false,"continue_final_message":true,`), body[1:]...)
	}
	return body, all
}

// limits are the names of the most tokens that there may be.
var limits = map[string]bool{"max_tokens": true, "max_completion_tokens": true, "n_predict": true, "num_predict": true}

// Rendering is the body of a request to Ollama's /api/chat that shows the prompt of a chat whose last message is the
// assistant's; nil if the engine is not asked to continue such a one. Many templates, among them those that Ollama
// brings, end it and begin another answer.
func (c *Call) Rendering(engine string) []byte {
	if engine != "ollama" || c.beginning == nil || len(c.beginning.text) == 0 {
		return nil
	}
	return fmt.Appendf(nil, `{"model":%s,"options":%s,"messages":[{"role":"user","content":"?"},{"role":"assistant","content":"It was"}],"_debug_render_only":true}`,
		c.parts[modelPart], cmp.Or(string(c.parts[paramsPart]), "null"))
}

// LeavesOpen reports whether the answer to that says that the message is continued. Older versions don't say it.
func LeavesOpen(answer []byte) bool {
	return strings.HasSuffix(plain(field(field(answer, "_debug_info"), "rendered_template")), "It was")
}

// quote is a text in JSON, pieceOf as the piece of an answer.
func quote(text string) []byte {
	quoted, _ := json.Marshal(text)
	return quoted
}

func pieceOf(text string) []byte { return appendShortest(nil, inQuotes(quote(text))) }

// rest returns a chunk of a resumed stream as one of the first; nil if it only announces.
func (m *Meter) rest(data []byte) []byte {
	d := &m.data
	if d.known && !d.adds() && !present(d.usage.value) && !m.failed {
		return nil
	}
	return rewritten(nil, data, m.asFirst)
}

// partsOfChunk are objects whose members are changed, too.
var partsOfChunk = map[string]bool{"delta": true, "message": true, "usage": true, "prompt_tokens_details": true}

// asFirst changes a member of a chunk, or of its parts, to what the first engine would have said: what was said
// before is output, and no prompt.
func (m *Meter) asFirst(key string, v []byte) []byte {
	n, counts := count(v)
	switch before := m.before; {
	case key == "id" && before.id != nil:
		return before.id
	case key == "created" && before.created != nil:
		return before.created
	case key == "role" && !m.api.lines, // Ollama's have one in each
		key == "prompt" && m.api == native: // has what was said
		return nil
	case before.surplus > 0 && key == "tool_calls":
		return nil
	case before.surplus > 0 && (key == "content" || key == "text") && isString(v):
		return []byte(`""`)
	case (key == "content" || key == "text") && isString(v):
		return m.unrepeated(v)
	case partsOfChunk[key] && isObject(v):
		return rewritten(nil, v, m.asFirst)
	case key == "choices" && hasElements(v):
		choices := []byte("[")
		for c := elementsOf(v); c.element(); {
			if len(choices) > 1 {
				choices = append(choices, ',')
			}
			choices = rewritten(choices, c.value(), m.asFirst)
		}
		return append(choices, ']')
	case key == "total_duration" || key == "eval_duration":
		if d, err := strconv.ParseInt(viewString(v), 10, 64); err == nil && d >= 0 {
			return strconv.AppendInt(nil, d+int64(before.spent), 10)
		}
		return v
	case !counts:
		return v
	case key == "prompt_tokens" || key == "tokens_evaluated" || key == "prompt_eval_count":
		n = max(n-before.tokens, 0)
	case key == "cached_tokens":
		prompt, _ := m.usage.prompt()
		n = min(n, max(prompt-before.tokens, 0))
	case key == "completion_tokens" || key == "tokens_predicted" || key == "eval_count":
		n += before.tokens - before.surplus
	case key == "total_tokens":
		n = max(n-before.surplus, 0)
	default:
		return v
	}
	return strconv.AppendInt(nil, int64(n), 10)
}

// unrepeated drops from the string v what the client has got already: white space, and in the first chunk all of the
// text, which some versions of llama.cpp begin with.
func (m *Meter) unrepeated(v []byte) []byte {
	said, s := plain(v), m.before
	text := said
	if text != "" && s.text != "" {
		more, found := strings.CutPrefix(text, s.text)
		if e := m.lease.Endpoint(); found && e != nil && e.Engine == "llama.cpp" {
			text = more
			m.answer.pieces[0].text = pieceOf(said)
		}
		s.text = ""
	}
	for text != "" && s.space != "" && text[0] == s.space[0] {
		text, s.space = text[1:], s.space[1:]
	}
	if text != "" {
		s.space = ""
	}
	if len(text) == len(said) {
		return v
	}
	return quote(text)
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
