package dialect

import (
	"bytes"
	"strconv"
	"sync"

	"github.com/endpick/endpick"
)

// cursor walks through JSON: a value is either entered (open, then element or member until
// false) or returned as it is (value). It reads every valid text as encoding/json does (a fuzz
// target compares them) and is tolerant of others, because it is for the engine to refuse them;
// invalid JSON ends the walk.
type cursor struct {
	b          []byte
	i          int
	start      int    // of the current member
	key        []byte // of the current member, unescaped; valid until the next one
	*allowance        // nil: no limits but the depth
}

// allowance is what all walks of one request share.
type allowance struct {
	items   int                   // elements of arrays that may still be read
	members int                   // members of objects that may still be read
	failed  *endpick.RequestError // nil: it has not
	texts   *[]byte               // nil: no text has had escapes yet
	key     []byte                // memory for an unescaped key
}

// Why a walk has ended before the text; the first one counts.
var (
	malformed      = refusal("is not a JSON object in UTF-8")
	tooDeep        = refusal("is nested deeper than " + strconv.Itoa(maxDepth) + " levels")
	tooManyItems   = refusal("has too many messages, parts, tools, tool calls or prompts for its length")
	tooManyMembers = refusal("has too many members of objects for its length")
)

func refusal(reason string) *endpick.RequestError {
	return &endpick.RequestError{Field: "body", Reason: reason}
}

// membersOf walks over the members of the object in b, elementsOf over the elements of the
// array. There are none if b is something else.
func membersOf(b []byte) cursor                 { return (*allowance)(nil).enter(b, '{') }
func elementsOf(b []byte) cursor                { return (*allowance)(nil).enter(b, '[') }
func (a *allowance) elementsOf(b []byte) cursor { return a.enter(b, '[') }

func (a *allowance) enter(b []byte, kind byte) cursor {
	c := cursor{b: b, allowance: a}
	if !c.open(kind) {
		c.b = nil
	}
	return c
}

// fail ends the walk, and all others of the request.
func (c *cursor) fail(f *endpick.RequestError) bool {
	c.i = len(c.b)
	if c.allowance != nil && c.failed == nil {
		c.failed = f
	}
	return false
}

func (a *allowance) hasFailed() bool { return a != nil && a.failed != nil }

// peek returns the next byte after space, or 0 at the end.
func (c *cursor) peek() byte {
	if c.i = skipSpace(c.b, c.i); c.i < len(c.b) {
		return c.b[c.i]
	}
	return 0
}

// open enters an object ('{') or an array ('['), if there is one.
func (c *cursor) open(kind byte) bool {
	if c.hasFailed() || c.peek() != kind {
		return false
	}
	c.i++
	return true
}

// more goes to the next element or member, or leaves the array or object.
func (c *cursor) more(closing byte) bool {
	if c.hasFailed() || c.b == nil {
		return false
	}
	if c.peek() == ',' {
		c.i++
	}
	switch c.peek() {
	case 0:
		return c.fail(malformed)
	case closing:
		c.i++
		return false
	}
	return true
}

// element goes to the next element of an array, where its value is to be read.
func (c *cursor) element() bool {
	if !c.more(']') {
		return false
	}
	if c.allowance != nil {
		if c.items--; c.items < 0 {
			return c.fail(tooManyItems)
		}
	}
	return true
}

// member goes to the next member of an object, where its value is to be read.
func (c *cursor) member() bool {
	if !c.more('}') {
		return false
	}
	if c.allowance != nil {
		if c.members--; c.members < 0 {
			return c.fail(tooManyMembers)
		}
	}
	c.start = c.i
	if c.b[c.i] != '"' {
		return c.fail(malformed)
	}
	end := skipString(c.b, c.i)
	if end < 0 {
		return c.fail(malformed)
	}
	key := c.b[c.start+1 : end-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		if c.allowance == nil {
			key = appendUnquoted(nil, key)
		} else {
			c.allowance.key = appendUnquoted(c.allowance.key[:0], key)
			key = c.allowance.key
		}
	}
	c.key, c.i = key, end
	if c.peek() != ':' {
		return c.fail(malformed)
	}
	c.i++
	return true
}

// value returns the value as it is in the text; nil if there is none.
func (c *cursor) value() []byte {
	if c.hasFailed() {
		return nil
	}
	start := skipSpace(c.b, c.i)
	end, f := skipValue(c.b, start)
	if f != nil {
		c.fail(f)
		return nil
	}
	c.i = end
	return c.b[start:end]
}

// into is where to put the value of a member.
type into struct {
	key   string
	value *[]byte
}

// pick reads the values of some members of an object: of several with one key the last, as
// parsers do that build a map. It returns the whole object as it is in the text; anything else
// is only skipped.
func (c *cursor) pick(fields ...into) (whole []byte) {
	c.peek()
	start := c.i
	if !c.open('{') {
		return c.value()
	}
	for c.member() {
		v := c.value()
		for i := range fields {
			if f := &fields[i]; string(c.key) == f.key {
				*f.value = v
			}
		}
	}
	return c.b[start:c.i]
}

func (a *allowance) pick(v []byte, fields ...into) {
	if c := (cursor{b: v, allowance: a}); c.peek() == '{' {
		c.pick(fields...)
	}
}

func pick(v []byte, fields ...into) { (*allowance)(nil).pick(v, fields...) }

// content is the content of a string value, or an empty string. It shares memory with
// the value, or is valid until forget is called.
func (a *allowance) content(v []byte) string {
	s := inQuotes(v)
	if bytes.IndexByte(s, '\\') < 0 {
		return viewString(s)
	}
	return a.rewritten(appendUnquoted, s)
}

// shortest is the content of a string value in its shortest JSON encoding, which nearly all
// bodies use. Texts are hashed in this form, because decoding would cost more than hashing. It
// is valid as long as that of content.
func (a *allowance) shortest(v []byte) string {
	s := inQuotes(v)
	if !hasEscape(s, "u/") {
		return viewString(s)
	}
	return a.rewritten(appendShortest, s)
}

// rewritten is a text in memory of the request.
func (a *allowance) rewritten(by func(dst, s []byte) []byte, s []byte) string {
	if a.texts == nil {
		a.texts = unescaped.Get().(*[]byte)
	}
	n := len(*a.texts)
	*a.texts = by(*a.texts, s)
	return viewString((*a.texts)[n:])
}

// forget says that no result of content is in use any more.
func (a *allowance) forget() {
	if a.texts != nil {
		*a.texts = (*a.texts)[:0]
	}
}

// done releases the memory of content.
func (a *allowance) done() {
	if a.texts != nil && cap(*a.texts) <= mostTexts {
		a.forget()
		unescaped.Put(a.texts)
	}
	a.texts, a.key = nil, nil
}

// unescaped is memory for texts with escapes, which most long ones have. It is
// reused from message to message, and from request to request.
var unescaped = sync.Pool{New: func() any { return new([]byte) }}

// mostTexts is the most memory that is reused.
const mostTexts = 8 << 20

// field returns the member of the object v with this key; nil if there is none.
func field(v []byte, key string) (value []byte) {
	pick(v, into{key, &value})
	return value
}

func (a *allowance) field(v []byte, key string) (value []byte) {
	a.pick(v, into{key, &value})
	return value
}
