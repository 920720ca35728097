package dialect

import (
	"bytes"
	"math"
	"net/http"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/diagnose/sketch"
)

// request is a request as its path, header and body describe it.
type request struct {
	api   *api
	body  []byte
	model string

	stream bool
	// top is where members start, optionsEnd where stream_options ends, modelEnd the model.
	optionsEnd, modelEnd, top int

	n         int // responses for each prompt
	maxTokens int // 0: no limit
	context   int // 0: any
	salt      string
	prompts   int // of a completion; 1 for a chat
	// parts of the prompt, as they are in the body.
	parts  [numParts][]byte
	isForm bool
	// unread says that the prompt has no form that is known.
	unread bool
	// acts says that the engine may do more than compute a response, by any member of a name,
	// since engines differ in which of several they take.
	acts bool

	// before is the stored response that this continues; nil: none is known.
	before *stored
	// hasher continues the prompt's hashes; nil: these are not exact.
	hasher *prefix.Hasher
	// sketcher describes the prompt; nil: not wanted.
	sketcher *sketch.Sketcher

	items  int   // that may still be read
	failed error // why it is not read to its end
}

// parse reads what it can of a request; the rest is passed on as it is. The error
// is an [endpick.RequestError]. The request refers to body, which must not change
// afterwards.
func parse(kind *api, header http.Header, body []byte, maxItems int) (request, error) {
	c := request{api: other, body: body, n: 1, prompts: 1, items: min(maxItems, fewItems+len(body)/itemBytes)}
	if boundary := formBoundary(header); boundary != "" && (kind == transcription || kind == other) {
		c.isForm = true
		c.model = formField(body, boundary, "model")
		if kind == transcription {
			c.api = kind
			c.stream = formField(body, boundary, "stream") == "true"
		}
		return c, nil
	}
	m := cursor{b: body, i: len(body) - len(bytes.TrimPrefix(body, byteOrderMark))} // engines skip it
	if !m.open('{') {
		m.fail(ErrMalformed)
	}
	c.top = m.i
	c.readMembers(&m, kind)
	if m.failed != nil && (m.failed != ErrMalformed || kind != other && len(body) > 0) {
		return c, m.failed // else nobody knows what it may be
	}
	model := c.parts[modelPart]
	if present(model) && !isString(model) {
		return c, &endpick.RequestError{Field: "model", Reason: "is not a string"}
	}
	c.model = strings.Clone(plain(model)) // must outlive the body
	c.salt = plain(c.parts[saltPart])
	c.api = kind
	c.stream = c.stream && kind.event != nil // else nothing is known about the response
	return c, nil
}

// readMembers reads the members of the request's object, and the parameters in one of them.
func (c *request) readMembers(m *cursor, kind *api) {
	for m.member() {
		v := m.value()
		p, ok := commonParts[string(m.key)]
		if !ok {
			p, ok = kind.parts[string(m.key)]
		}
		if !ok {
			continue
		}
		if _, isCount := count(v); p == limitPart && !isCount || p == saltPart && !isString(v) || string(m.key) == "name" && string(v) == `""` {
			continue // of several names of the limit, the salt or the model, the last one with a value counts
		}
		c.parts[p] = v
		switch p {
		case optionsPart:
			c.optionsEnd = m.i
		case modelPart:
			c.modelEnd = m.i
		case toolsPart:
			c.acts = c.acts || actsOnce(v, false)
		case storePart, actsPart:
			c.acts = c.acts || present(v) && string(v) != "false"
		}
	}
	var context []byte
	number, limit := c.parts[numberPart], c.parts[limitPart]
	pick(c.parts[paramsPart], into{"n", &number}, into{"num_ctx", &context},
		into{"max_tokens", &limit}, into{"max_new_tokens", &limit}, into{"num_predict", &limit})
	c.stream = isTrue(c.parts[streamPart]) || kind.lines && !present(c.parts[streamPart])
	c.n, _ = count(number)
	c.maxTokens, _ = count(limit)
	c.context, _ = count(context)
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// Small things cost more to read than to send. To keep the cost of a body proportional to its
// length, it may contain no more of them than one for so many bytes, plus a few.
const itemBytes, fewItems = 8, 2048

// responses is how many responses the client asks for.
func (c *request) responses() int {
	n, prompts := max(c.n, 1), max(c.prompts, 1)
	switch {
	case c.api.single:
		return 1
	case n > math.MaxInt32/prompts:
		return math.MaxInt32
	}
	return n * prompts
}

// expectedOutput is the learned mean, or the client's limit if that is less.
func (c *request) expectedOutput(learned rates) int {
	switch {
	case c.api == other:
		return 0
	case c.api.event == nil:
		return 1 // reading is all the engine's work
	}
	each := learned.meanOutput()
	if c.maxTokens > 0 && (each == 0 || float64(c.maxTokens) < each) {
		each = float64(c.maxTokens)
	}
	return int(min(math.Round(each*float64(c.responses())), math.MaxInt32))
}
