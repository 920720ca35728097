package dialect

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/diagnose"
)

// call is a request as its path, header and body describe it.
type call struct {
	api   api // other if no prompt was found
	body  []byte
	model string

	stream bool
	// options is the value of stream_options, which ends at optionsEnd; top is
	// where members start.
	options         []byte
	optionsEnd, top int
	// asked says that the client has asked for usage in its stream.
	asked bool

	n         int // responses for each prompt
	maxTokens int // 0: no limit
	salt      string
	prompts   int // of a completion; 1 for a chat

	// The parts of the prompt, as they are in the body.
	tools, system, messages, prompt, others []byte
	params                                  []byte // of sampling, if separate
	// The session.
	session

	// before is the stored response that this continues; nil: none is known.
	before *stored
	// hasher continues the prompt's hashes; nil: these are not exact.
	hasher *prefix.Hasher
	// sketcher describes the prompt; nil: not wanted.
	sketcher *diagnose.Sketcher

	allowance
	maxItems int
	// limit is how many items there may be, mostMembers how many members.
	limit, mostMembers int
}

// parse reads what it can of a request; the rest is passed on as it is. The error
// is an [endpick.RequestError]. The call refers to body, which must not change
// afterwards.
func parse(kind api, header http.Header, body []byte, maxItems int) (call, error) {
	c := call{body: body, n: 1, prompts: 1, maxItems: maxItems, limit: maxItems}
	c.allowance = newAllowance(maxItems)
	if kind != other {
		c.members = min(c.members, fewMembers+len(body)/memberBytes)
	}
	c.mostMembers = c.members
	if boundary := formBoundary(header); boundary != "" {
		c.model = formField(body, boundary, "model")
		if kind == transcription {
			c.api = kind
			c.stream = formField(body, boundary, "stream") == "true"
		}
		return c, nil
	}
	at := 0
	if bytes.HasPrefix(body, byteOrderMark) {
		at = len(byteOrderMark) // engines skip it
	}
	m := cursor{b: body, i: at, allowance: &c.allowance}
	if !m.open('{') {
		return c, nil
	}
	c.top = m.i
	var model []byte
	for m.member() {
		v := m.value()
		switch string(m.key) {
		case "model":
			model = v
		case "stream":
			c.stream = isTrue(v)
		case "stream_options":
			c.options, c.optionsEnd = v, m.i
		case "n", "n_cmpl":
			c.n = 1
			if n, ok := count(v); ok {
				c.n = max(n, 1)
			}
		case "max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict":
			if n, ok := count(v); ok {
				c.maxTokens = n
			}
		case "cache_salt":
			c.salt = text(v)
		case "prompt_cache_key", "metadata", "user", "previous_response_id", "store":
			c.session.member(string(m.key), v)
		default:
			if place := dialects[kind].place; place != nil {
				if part := place(&c, m.key); part != nil {
					*part = v
				}
			}
		}
	}
	incomplete := c.failed == malformed // the engine will refuse it
	if incomplete {
		c.failed = noFault
	}
	if present(model) && !isString(model) {
		return c, &endpick.RequestError{Field: "model", Reason: "is not a string"}
	}
	if n := stringLen(model); n > maxName {
		return c, tooLong("model") // not to be copied
	}
	c.model = strings.Clone(text(model)) // must outlive the body
	if len(c.options) <= maxOptions {
		c.asked = isTrue(c.field(c.options, "include_usage"))
	}
	c.readParams()
	if kind != other && !incomplete && dialects[kind].hasPrompt(&c) {
		c.api = kind
	}
	if c.api == other || dialects[c.api].event == nil {
		c.stream = false // nothing is known about the response
	}
	return c, c.refused()
}

// readParams reads parameters that are in an object next to the prompt.
func (c *call) readParams() {
	for p := c.membersOf(c.params); p.member(); {
		v := p.value()
		switch string(p.key) {
		case "max_tokens", "max_new_tokens":
			if n, ok := count(v); ok {
				c.maxTokens = n
			}
		case "n":
			if n, ok := count(v); ok {
				c.n = max(n, 1)
			}
		}
	}
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// maxOptions is longer than any stream_options; longer ones are left alone.
const maxOptions = 4 << 10

// membersPerItem is how many members all objects that are read may have together,
// for each item allowed. A message has up to five, a part two or three.
const membersPerItem = 16

// Small things cost more to read than to send. To keep the cost of a body
// proportional to its length, it may contain no more of them than these numbers per
// byte, plus a few: more than real requests have. A message takes thirty bytes
// besides its text, a part of one twenty-five, a member of either eight or more.
const (
	itemBytes, fewItems     = 32, 1024 // of conversations
	textBytes, fewTexts     = 8, 2048  // of lists of texts, such as for embeddings
	memberBytes, fewMembers = 8, 1024
)

func newAllowance(maxItems int) allowance {
	return allowance{items: maxItems, members: membersPerItem * min(maxItems, math.MaxInt/membersPerItem)}
}

// limitItems lowers the number of items allowed, before any has been counted.
func (c *call) limitItems(items int) {
	c.limit = min(c.limit, items)
	c.items = min(c.items, items)
}

func (c *call) limitConversation() { c.limitItems(fewItems + len(c.body)/itemBytes) }

// refused is the error of a call that has too many items.
func (c *call) refused() error {
	bad := func(format string, args ...any) error {
		return &endpick.RequestError{Field: "body", Reason: fmt.Sprintf(format, args...)}
	}
	switch c.failed {
	case tooDeep:
		return bad("is nested deeper than %d levels", maxDepth)
	case tooManyItems:
		return bad("has more than %d messages, parts, tools, tool calls or prompts in %d bytes", c.limit, len(c.body))
	case tooManyMembers:
		return bad("has more than %d members of objects in %d bytes", c.mostMembers, len(c.body))
	}
	return nil
}

func toTokens(bytes int, perByte float64) int {
	return int(math.Round(float64(bytes) * perByte))
}

// responses is how many responses the client asks for.
func (c *call) responses() int {
	n, prompts := max(c.n, 1), max(c.prompts, 1)
	switch {
	case dialects[c.api].single:
		return 1
	case n > math.MaxInt32/prompts:
		return math.MaxInt32
	}
	return n * prompts
}

// expectedOutput is the learned mean, or the client's limit if that is less.
func (c *call) expectedOutput(learned rates) int {
	switch {
	case c.api == other:
		return 0
	case dialects[c.api].event == nil:
		return 1 // reading is all the engine's work
	}
	each := learned.meanOutput()
	if c.maxTokens > 0 && (each == 0 || float64(c.maxTokens) < each) {
		each = float64(c.maxTokens)
	}
	return int(min(math.Round(each*float64(c.responses())), math.MaxInt32))
}

// askForUsage returns the body to send, in pieces that refer to it. It makes
// the engine report usage in a stream whose client did not ask for it, and
// reports whether that usage must be hidden from the client.
func (c *call) askForUsage() (pieces [][]byte, hide bool) {
	whole := [][]byte{c.body}
	if !c.stream || c.asked || !dialects[c.api].options || len(c.options) > maxOptions {
		return whole, false
	}
	const want = `"include_usage":true`
	v := c.options
	if v == nil {
		return [][]byte{c.body[:c.top], []byte(`"stream_options":{` + want + `},`), c.body[c.top:]}, true
	}
	if !isObject(v) && !isNull(v) {
		return whole, false // the engine will refuse it
	}
	pieces = [][]byte{c.body[:c.optionsEnd-len(v)], []byte("{" + want)}
	from, found := 0, false // the members of v from there on are unchanged
	for m := membersOf(v); m.member(); {
		m.value()
		switch {
		case string(m.key) != "include_usage":
			if from == 0 {
				pieces = append(pieces, comma, nil)
				from = m.start
			}
			pieces[len(pieces)-1] = v[from:m.i]
		case found:
			return whole, false // duplicate options
		default:
			from, found = 0, true
		}
	}
	return append(pieces, closingBrace, c.body[c.optionsEnd:]), true
}

var (
	comma        = []byte{','}
	closingBrace = []byte{'}'}
)
