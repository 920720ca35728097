package dialect

import (
	"bytes"
	"sync"
)

// cursor walks through JSON and reads each byte only once: a value is either
// entered (open, then element or member until false) or returned as it is
// (value). It is as tolerant as the rest of the scanner; invalid JSON ends the
// walk.
type cursor struct {
	b   []byte
	i   int
	key []byte // of the current member, unescaped
	// escaped says that key was unescaped, so that it must be copied to be kept.
	escaped bool
	known   *longStrings // nil: b is not part of the body
	*allowance
}

// maxKey is longer than any key that is looked for.
const maxKey = 32

// allowance is what all walks of one request share.
type allowance struct {
	items   int // elements of arrays that may still be read
	members int // members of objects that may still be read
	failed  fault
	long    longStrings
	texts   *[]byte          // nil: no text has had escapes yet
	key     [6 * maxKey]byte // an unescaped key
}

// fault is why a walk has ended before the text; the first one is kept.
type fault uint8

const (
	noFault fault = iota
	malformed
	tooDeep
	tooManyItems
	tooManyMembers
)

func (a *allowance) fail(f fault) bool {
	if a.failed == noFault {
		a.failed = f
	}
	return false
}

func (a *allowance) cursor(b []byte) cursor {
	c := cursor{b: b, allowance: a}
	if a.long.has(b) {
		c.known = &a.long
	}
	return c
}

// open enters an object ('{') or an array ('['), if there is one.
func (c *cursor) open(kind byte) bool {
	c.i = skipSpace(c.b, c.i)
	if c.failed != noFault || c.i >= len(c.b) || c.b[c.i] != kind {
		return false
	}
	c.i++
	return true
}

// peek returns the next byte after space, or 0 at the end.
func (c *cursor) peek() byte {
	if c.i = skipSpace(c.b, c.i); c.i < len(c.b) {
		return c.b[c.i]
	}
	return 0
}

// more goes to the next element or member, or leaves the array or object.
func (c *cursor) more(closing byte) bool {
	if c.failed != noFault {
		return false
	}
	i := skipSpace(c.b, c.i)
	if i < len(c.b) && c.b[i] == ',' {
		i = skipSpace(c.b, i+1)
	}
	if c.i = i; i >= len(c.b) {
		return c.fail(malformed)
	}
	if c.b[i] == closing {
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
	if c.items--; c.items < 0 {
		return c.fail(tooManyItems)
	}
	return true
}

// member goes to the next member of an object, where its value is to be read.
func (c *cursor) member() bool {
	if !c.more('}') {
		return false
	}
	if c.members--; c.members < 0 {
		return c.fail(tooManyMembers)
	}
	i := c.i
	if c.b[i] != '"' {
		return c.fail(malformed)
	}
	end := skipString(c.b, i)
	if end < 0 {
		return c.fail(malformed)
	}
	c.key = c.b[i+1 : end-1]
	// An escape has at most six bytes for each byte that it stands for.
	if c.escaped = len(c.key) <= len(c.allowance.key) && isEscaped(c.key); c.escaped {
		c.key = appendUnquoted(c.allowance.key[:0], c.key)
	}
	if end < len(c.b) && c.b[end] != ':' {
		end = skipSpace(c.b, end)
	}
	if end >= len(c.b) || c.b[end] != ':' {
		return c.fail(malformed)
	}
	c.i = skipSpace(c.b, end+1)
	return true
}

// isEscaped reports whether a key has an escape.
func isEscaped(key []byte) bool {
	for _, c := range key {
		if c == '\\' {
			return true
		}
	}
	return false
}

// value returns the value as it is in the text; nil if there is none.
func (c *cursor) value() []byte {
	if c.failed != noFault {
		return nil
	}
	i := skipSpace(c.b, c.i)
	end := skipValueBy(c.known, c.b, i)
	switch {
	case end == -2:
		c.fail(tooDeep)
		return nil
	case end < 0:
		c.fail(malformed)
		return nil
	}
	c.i = end
	return c.b[i:end]
}

// text returns the content of a string value, or an empty string; see content for
// how long it is valid.
func (c *cursor) text() string { return c.content(c.value()) }

// content is the content of a string value, or an empty string. It shares memory with
// the value, or is valid until forget is called.
func (a *allowance) content(v []byte) string {
	if !isString(v) {
		return ""
	}
	v = v[1 : len(v)-1]
	if bytes.IndexByte(v, '\\') < 0 {
		return viewString(v)
	}
	b := a.room(len(v))
	return a.took(appendUnquoted(b, v), len(b))
}

// written is the content of a string value in its shortest JSON encoding, which
// nearly all bodies use. Texts are hashed in this form, because decoding would cost
// more than hashing. It is valid as long as that of content.
func (a *allowance) written(v []byte) string {
	if !isString(v) {
		return ""
	}
	whole := v
	v = v[1 : len(v)-1]
	if len(v) < leastLong && bytes.IndexByte(v, '\\') < 0 || !a.long.various(whole) {
		return viewString(v)
	}
	b := a.room(len(v))
	return a.took(appendShortest(b, v), len(b))
}

// room returns memory for n more bytes of texts, after the existing ones.
func (a *allowance) room(n int) []byte {
	if a.texts == nil {
		a.texts = unescaped.Get().(*[]byte)
	}
	b := *a.texts
	if cap(b)-len(b) < n {
		b = make([]byte, 0, max(n, min(2*n, mostTexts), leastTexts)) // the old memory remains in use
	}
	return b
}

// took says that b, which room has returned, contains a text from the index from on.
func (a *allowance) took(b []byte, from int) string {
	*a.texts = b
	return viewString(b[from:])
}

// forget says that no result of content is in use any more.
func (a *allowance) forget() {
	if a.texts != nil {
		*a.texts = (*a.texts)[:0]
	}
}

// done releases the memory of content, and forgets the body.
func (a *allowance) done() {
	if a.texts != nil && cap(*a.texts) <= mostTexts {
		a.forget()
		unescaped.Put(a.texts)
	}
	a.texts = nil
	a.long = longStrings{}
}

// unescaped is memory for texts with escapes, which most long ones have. It is
// reused from message to message, and from request to request.
var unescaped = sync.Pool{New: func() any { return new([]byte) }}

const leastTexts, mostTexts = 16 << 10, 8 << 20

// field returns the last member of the object v with this key, or nil.
func (a *allowance) field(v []byte, key string) (value []byte) {
	c := a.cursor(v)
	if !c.open('{') {
		return nil
	}
	for c.member() {
		if x := c.value(); string(c.key) == key {
			value = x
		}
	}
	return value
}
