package dialect

import (
	"bytes"
	"sync"
)

// cursor walks through JSON and reads each byte of what it goes into once: a
// value is either entered (open, then element or member until false) or taken
// as it stands (value). It is as tolerant as the rest of the scanner; what can't
// be walked ends the walk.
type cursor struct {
	b   []byte
	i   int
	key []byte // of the member that member has found, unescaped, until another is
	// escaped says that key is not as it stands in the text: it is to be copied to
	// be kept.
	escaped bool
	known   *longStrings // nil: b is no part of the body
	*allowance
}

// maxKey is above the length of any key that is looked for.
const maxKey = 32

// allowance is what the walks of one request may look at together.
type allowance struct {
	items   int // elements of arrays that are left
	members int // members of objects that are left
	failed  fault
	long    longStrings
	texts   *[]byte          // nil: none has had escapes yet
	key     [6 * maxKey]byte // one that was unescaped
}

// fault is why a walk has ended before the text did; the first one stays.
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

// peek is the first byte of what comes next; 0: nothing does.
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
	// An escape has six bytes at most for each that it stands for.
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

// value takes the value as it stands; nil if there is none.
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

// text takes the value as the content of a string; empty if it is none. It lasts as
// that of content does.
func (c *cursor) text() string { return c.content(c.value()) }

// content is the content of a string value, empty if it is none. It shares memory with
// the value, or lasts until forget is called.
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

// written is the content of a string value as JSON writes it: with the fewest and
// shortest escapes, which is how it stands in nearly all bodies. Texts are hashed so;
// to read them for it would cost more than to hash them. It lasts as that of content
// does.
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

// room is memory for n more bytes of texts, behind those that are there.
func (a *allowance) room(n int) []byte {
	if a.texts == nil {
		a.texts = unescaped.Get().(*[]byte)
	}
	b := *a.texts
	if cap(b)-len(b) < n {
		b = make([]byte, 0, max(n, min(2*n, mostTexts), leastTexts)) // what is in the other one stays
	}
	return b
}

// took says that b is what room has returned, and a text from there on.
func (a *allowance) took(b []byte, from int) string {
	*a.texts = b
	return viewString(b[from:])
}

// forget says that nothing that content has returned is used any more.
func (a *allowance) forget() {
	if a.texts != nil {
		*a.texts = (*a.texts)[:0]
	}
}

// done gives back what content has used, and forgets the body.
func (a *allowance) done() {
	if a.texts != nil && cap(*a.texts) <= mostTexts {
		a.forget()
		unescaped.Put(a.texts)
	}
	a.texts = nil
	a.long = longStrings{}
}

// unescaped is memory for texts that have escapes, which most long ones have. It is
// used again from one message to the next, and from one request to another.
var unescaped = sync.Pool{New: func() any { return new([]byte) }}

const leastTexts, mostTexts = 16 << 10, 8 << 20

// field returns the last member of the object v with this key; nil if there is
// none.
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
