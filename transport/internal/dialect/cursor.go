package dialect

import (
	"bytes"
	"cmp"
	"strconv"

	"github.com/endpick/endpick"
)

// cursor walks through JSON: a value is either entered (open, then element or member until
// false) or returned as it is (value). It reads every valid text as encoding/json does (a fuzz
// target compares them) and is tolerant of others, because it is for the engine to refuse them;
// invalid JSON ends the walk.
type cursor struct {
	b      []byte
	i      int
	start  int    // of the current member
	key    []byte // of the current member, unescaped
	failed error  // why the walk has ended before the text
}

// ErrMalformed: the body of a request to a known API is neither empty, as it is where a host does
// not see bodies, nor an object of JSON in UTF-8. An engine might read it nevertheless, as UTF-16
// for example, and nobody would have counted it.
var (
	ErrMalformed = refusal("is not a JSON object in UTF-8")
	tooDeep      = refusal("is nested deeper than " + strconv.Itoa(maxDepth) + " levels")
	tooManyItems = refusal("has too many messages, parts, tools, tool calls or prompts for its length")
)

func refusal(reason string) error { return &endpick.RequestError{Field: "body", Reason: reason} }

// membersOf walks over the members of the object in b, elementsOf over the elements of the
// array. There are none if b is something else.
func membersOf(b []byte) cursor  { return enter(b, '{') }
func elementsOf(b []byte) cursor { return enter(b, '[') }

func enter(b []byte, kind byte) cursor {
	c := cursor{b: b}
	if !c.open(kind) {
		c.b = nil
	}
	return c
}

func (c *cursor) fail(err error) bool {
	c.i, c.failed = len(c.b), cmp.Or(c.failed, err)
	return false
}

// peek returns the next byte after space, or 0 at the end.
func (c *cursor) peek() byte {
	for ; c.i < len(c.b); c.i++ {
		if b := c.b[c.i]; b != ' ' && b != '\n' && b != '\r' && b != '\t' {
			return b
		}
	}
	return 0
}

// open enters an object ('{') or an array ('['), if there is one.
func (c *cursor) open(kind byte) bool {
	if c.peek() != kind {
		return false
	}
	c.i++
	return true
}

// more goes to the next element or member, or leaves the array or object.
func (c *cursor) more(closing byte) bool {
	if c.peek() == ',' {
		c.i++
	}
	switch c.peek() {
	case 0:
		return c.fail(ErrMalformed)
	case closing:
		c.i++
		return false
	}
	return true
}

// element goes to the next element of an array, where its value is to be read.
func (c *cursor) element() bool { return c.more(']') }

// member goes to the next member of an object, where its value is to be read.
func (c *cursor) member() bool {
	if !c.more('}') {
		return false
	}
	c.start = c.i
	end := -1
	if c.b[c.i] == '"' {
		end = skipString(c.b, c.i)
	}
	if end < 0 {
		return c.fail(ErrMalformed)
	}
	if c.key, c.i = c.b[c.start+1:end-1], end; bytes.IndexByte(c.key, '\\') >= 0 {
		c.key = appendUnquoted(nil, c.key)
	}
	if c.peek() != ':' {
		return c.fail(ErrMalformed)
	}
	c.i++
	return true
}

// value returns the value as it is in the text; nil if there is none.
func (c *cursor) value() []byte {
	c.peek()
	start := c.i
	end, err := skipValue(c.b, start)
	if err != nil {
		c.fail(err)
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
	if c.peek() != '{' {
		return c.value()
	}
	start := c.i
	for c.i++; c.member(); {
		v := c.value()
		for i := range fields {
			if f := &fields[i]; string(c.key) == f.key {
				*f.value = v
				break
			}
		}
	}
	return c.b[start:c.i]
}

func pick(v []byte, fields ...into) {
	c := cursor{b: v}
	c.pick(fields...)
}

// field returns the member of the object v with this key; nil if there is none.
func field(v []byte, key string) (value []byte) {
	pick(v, into{key, &value})
	return value
}
