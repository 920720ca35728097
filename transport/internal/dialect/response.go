package dialect

import "time"

// event is something that a response says, in any API.
type event struct {
	kind   kind
	choice int // which of several responses to one request; none: all, or unknown
	part   int // index of the text or the call among the parts of the response

	// Of text, its JSON string; of a tool's call, a piece of its arguments, with the id and
	// the name in the first event. Raw arguments are an object instead of a string.
	text, id, name []byte
	raw            bool
	// repeated says that the text is all text so far.
	repeated bool
	// tokens is the number of tokens in the event, if it says so.
	tokens int
	// thought says that it is reasoning, odd that clients do not send it back as it is.
	thought, odd bool

	// Of usage, its object: own says that it is that of the choice alone, opening that it is
	// from before the first token, so that its output figures mean nothing.
	// Of the end, the response as a whole, if the event repeats it.
	value        []byte
	own, opening bool
	// all says that the stream ends, not only a choice.
	all bool
	// stopped says that the engine has stopped the choice.
	stopped bool
}

// kind is what an event is about.
type kind uint8

const (
	unknown kind = iota // not understood, or of no importance
	begins              // the response, or one of its choices
	text                // of the model's output
	tool                // a call of a tool
	reports             // usage
	fails               // the engine reports an error
	ends                // a choice, or the whole response
)

// none is the choice of an event that is about no particular one.
const none = -1

// state is how far a response has come.
type state uint8

const (
	silent state = iota // nothing was understood so far
	open                // it has begun
	ended               // so has each choice that has begun; an engine may return fewer than requested
	whole               // nothing more will come
)

// response is a response as its events tell it. An event changes the state, and more, by its
// kind:
//
//	         | silent, open, ended           | whole | what else changes
//	unknown  | -                             | -     | -
//	begins   | open; ended if no choice runs | -     | the choice, the id
//	text     | as begins                     | -     | bytes and tokens, the answer
//	tool     | as begins                     | -     | bytes and tokens, the answer
//	reports  | -                             | -     | usage
//	fails    | -                             | -     | failed, for good
//	ends     | open; ended if no choice runs | -     | the choice, the answer
//	ends all | whole                         | -     | the choice, the answer
//
// If each choice ends the stream (endsEach), the end of the last one requested does.
//
// A stream that stops while it is open, and has not failed, was cut off.
type response struct {
	api    *api
	state  state
	failed bool
	// sequence is the number of the next event, where they have one.
	sequence int

	// Choices each have a beginning and an end. most is how many were requested; events of
	// further ones count for the latest.
	most    int
	choices map[int]*choice
	last    *choice // of the latest event that is about one
	ended   int

	usage    usage
	rates    rates
	bytes    int     // of content
	estimate float64 // tokens of content that are not counted yet
	counted  int     // tokens reported to the lease
	firstAt  time.Time

	data   step
	answer answer
}

// choice is one of several responses to a request.
type choice struct {
	bytes   int // of content, for engines whose events repeat the whole text
	counted int // tokens reported to the lease
	usage   usage
	ended   bool
}

// step is what the events in the data of one server-sent event add up to.
type step struct {
	known         bool // it was understood
	odd           bool // there is something that no text or call is made of, such as sound
	said          bool // there is something of a choice
	ended         bool
	stopped       bool  // by the engine
	bytes, tokens int   // of content
	usage         event // its value is nil if there is none
}

// maxChoices bounds how many choices are distinguished.
const maxChoices = 1 << 14

// hasContent reports whether there is output of the model, adds whether a client would miss it.
func (s *step) hasContent() bool { return s.bytes > 0 || s.tokens > 0 }
func (s *step) adds() bool       { return s.hasContent() || s.odd || s.ended }

// read reads the data of a server-sent event, which may have the name of an error.
func (r *response) read(data []byte, isError bool) {
	r.data = step{}
	r.api.event(r, data)
	if isError {
		r.on(event{kind: fails})
	}
}

func (r *response) on(e event) {
	r.data.known, r.data.odd = true, r.data.odd || e.odd
	switch e.kind {
	case unknown:
		return
	case reports:
		if present(e.value) {
			r.data.usage = e
		}
		return
	case fails:
		r.failed, r.data.stopped = true, r.data.stopped || e.stopped
		return
	}
	if e.choice != none {
		r.data.said = r.data.said || e.kind != ends
		r.choose(e.choice)
	}
	c := r.last
	switch e.kind {
	case text, tool:
		n := len(inQuotes(e.text)) + len(inQuotes(e.name))
		if e.repeated {
			n = max(n-c.bytes, 0)
		}
		c.bytes += n
		r.data.bytes += n
		r.data.tokens += e.tokens
	case ends:
		r.data.ended = true
		if e.choice != none && !c.ended {
			c.ended = true
			r.ended++
		}
	}
	r.answer.on(&e)
	switch all := e.all && (!r.api.endsEach || r.ended >= r.most); {
	case r.state == whole || all:
		r.state = whole
	case r.ended > 0 && r.ended >= len(r.choices):
		r.state = ended
	default:
		r.state = open
	}
}

func (r *response) choose(index int) {
	if r.last != nil && r.most <= 1 {
		return
	}
	c := r.choices[index]
	if c == nil && len(r.choices) < max(r.most, 1) {
		if r.choices == nil {
			r.choices = map[int]*choice{}
		}
		c = new(choice)
		r.choices[index] = c
	}
	if c != nil {
		r.last = c
	}
}

// count counts the tokens of what was read: by the engine's own count if it has one, else by
// the length. The first data with content has at least one, however short it is.
func (r *response) count(now func() time.Time, believed int) (n int) {
	c, d, u := r.last, &r.data, &r.data.usage
	// Usage replaces that of the whole response, unless it is that of one among several.
	all, counted := &r.usage, r.counted
	if u.own && r.most > 1 {
		all, counted = &c.usage, c.counted
	}
	if u.value != nil {
		all.read(u.value, depthOfUsage)
	}
	if u.opening {
		all.dropOutput()
	}
	if !d.hasContent() {
		return 0
	}
	r.bytes += d.bytes
	r.estimate += float64(d.bytes) * r.rates.contents.perByte()
	switch reported, ok := all.output(); {
	case ok && u.value != nil && reported <= believed: // the engine reports the count as it goes
		n = max(reported-counted, 0)
		r.estimate = 0
	case d.tokens > 0:
		n = d.tokens
	default:
		n = int(r.estimate)
	}
	if r.firstAt.IsZero() {
		n = max(n, 1)
		r.firstAt = now()
	}
	r.estimate -= min(float64(n), r.estimate)
	r.counted += n
	c.counted += n
	return n
}

// wasCut reports whether a stream that has ended here was not complete.
func (r *response) wasCut() bool { return r.state == open && !r.failed }
