package prefix

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

const (
	// maxDepth is how deep arrays and objects may be nested: about as deep as
	// the JSON parsers of engines go.
	maxDepth = 1000
	// maxCanonical limits the bytes of the texts of one conversation, and maxParts
	// their commas, colons and opening brackets, to more than real tools have.
	// They bound the memory, some ten bytes per byte, and the time, which depends
	// on the parts.
	maxCanonical = 256 << 10
	maxParts     = 16 << 10
)

// canonicalizer converts JSON into a canonical form: sorted keys, no white space,
// strings with as few escapes as possible, numbers as written; of equal keys, the
// last one wins. Text is left as it is if it is not a single JSON value, contains
// strings that are not Unicode, is nested deeper than maxDepth, or exceeds what is
// left of maxCanonical or maxParts.
//
// The text is read once, into a compact form in its own order and a list of where
// the members of unsorted objects are in it. Then it is written once, in the order
// of the keys. The keys are radix-sorted, so the work is linear in the text
// however deep the nesting and however long the keys. The zero value is ready, and
// its memory is reused.
type canonicalizer struct {
	jsonReader
	compact []byte      // the text itself if it is compact already
	open    []container // the containers around the reader's position
	members []member    // of open objects
	sorted  []member    // of unsorted objects, sorted by key
	objects []object    // unsorted objects, and those around them
	order   [2][]sortKey
	writing []object // unsorted objects around the writer's position
}

// canonicalizers are shared by all hashers: a request needs one only briefly, for
// each of its tools and arguments.
var canonicalizers = sync.Pool{New: func() any { return new(canonicalizer) }}

// writeCanonical calls yield with the canonical form of s, piece by piece. It
// returns false if there is none.
func writeCanonical(s string, spent *budget, yield func([]byte)) bool {
	c := canonicalizers.Get().(*canonicalizer)
	ok := c.write(s, spent, yield)
	c.compact, c.src = nil, nil // they refer to the request
	canonicalizers.Put(c)
	return ok
}

// budget is how much of maxCanonical and maxParts has been used.
type budget struct{ bytes, parts int }

// take uses the budget for a text, and reports whether it sufficed.
func (b *budget) take(text []byte) bool {
	if len(text) > maxCanonical-b.bytes {
		return false
	}
	parts := partsOf(text)
	if parts > maxParts-b.parts {
		return false
	}
	b.bytes += len(text)
	b.parts += parts
	return true
}

// partsOf counts commas, colons and opening brackets.
func partsOf(text []byte) (n int) {
	if len(text) < 64 {
		for _, c := range text {
			n += int(isPart[c])
		}
		return n
	}
	for i := range len(parts) {
		n += bytes.Count(text, parts[i:i+1])
	}
	return n
}

var (
	parts  = []byte(",:[{")
	isPart = [256]uint8{',': 1, ':': 1, '[': 1, '{': 1}
)

// container is an array or object being read.
type container struct {
	object   int // index; -1: an array
	first    int // its first member
	unsorted bool
}

// member is a key and its value in compact.
type member struct {
	head             uint64 // first bytes of the key, which suffice to order most keys
	from, keyEnd, to uint32
	next             uint32 // the first object that begins here or later
}

// object is an object in compact, from brace to brace. While it is being
// written, first, count and to describe what is left of it.
type object struct {
	from, to     uint32
	first, count uint32 // its members in sorted; 0: they need no sorting
	next         uint32 // the first object after it
}

// canonicalJSON returns the canonical form of s on its own.
func canonicalJSON(s string) string { return new(budget).text(s) }

// text returns the canonical form of s.
func (b *budget) text(s string) string {
	var out strings.Builder
	if !writeCanonical(s, b, func(piece []byte) { out.Write(piece) }) {
		return s
	}
	return out.String()
}

// write calls yield with the canonical form of s, piece by piece. It returns false
// if there is none. A piece is valid until yield returns.
func (c *canonicalizer) write(s string, spent *budget, yield func([]byte)) bool {
	if !c.read(s, spent) {
		return false
	}
	from, to, next := uint32(0), uint32(len(c.compact)), uint32(0)
	for {
		for int(next) < len(c.objects) && c.objects[next].from < to {
			o := c.objects[next]
			next++
			if o.count == 0 {
				continue
			}
			yield(c.compact[from : o.from+1])
			m := c.sorted[o.first]
			// What remains of the object after this member.
			o.from, o.to = o.to-1, to
			c.writing = append(c.writing, o)
			from, to, next = m.from, m.to, m.next
		}
		yield(c.compact[from:to])
		n := len(c.writing)
		if n == 0 {
			return true
		}
		o := &c.writing[n-1]
		if o.count > 1 {
			o.first++
			o.count--
			m := c.sorted[o.first]
			from, to, next = m.from, m.to, m.next
			if c.compact[from-1] == ',' {
				from-- // all but the first are preceded by a comma
			} else {
				yield(commaBytes)
			}
			continue
		}
		from, to, next = o.from, o.to, o.next
		c.writing = c.writing[:n-1]
	}
}

var commaBytes = []byte{','}

// read reads s and reports whether it has a canonical form.
func (c *canonicalizer) read(s string, spent *budget) bool {
	src := bytesOf(s)
	if !spent.take(src) || !utf8.Valid(src) {
		return false
	}
	c.jsonReader = jsonReader{src: src, dst: c.dst[:0]}
	c.open, c.members, c.sorted, c.objects, c.writing = c.open[:0], c.members[:0], c.sorted[:0], c.objects[:0], c.writing[:0]
	if !c.values() || c.space() != 0 || c.at != len(c.src) {
		return false
	}
	if c.done == 0 {
		c.compact = src
	} else {
		c.flush()
		c.compact = c.dst
	}
	return true
}

// values reads one value and everything in it.
func (c *canonicalizer) values() bool {
	for {
		switch b := c.space(); b {
		case '{', '[':
			if len(c.open) == maxDepth {
				return false
			}
			if c.push(b); c.space() == b+2 { // the closing brace
				break
			}
			if b == '{' && !c.key() {
				return false
			}
			continue
		case '"':
			if !c.string() {
				return false
			}
		default:
			if !c.word() {
				return false
			}
		}
		for more := false; !more; { // after a value
			if len(c.open) == 0 {
				return true
			}
			in := &c.open[len(c.open)-1]
			isObject := in.object >= 0
			if isObject {
				c.endMember(in)
			}
			switch b := c.space(); {
			case b == ',':
				c.copy(1)
				if isObject && !c.key() {
					return false
				}
				more = true
			case b == '}' && isObject:
				c.copy(1)
				c.endObject(in)
				c.open = c.open[:len(c.open)-1]
			case b == ']' && !isObject:
				c.copy(1)
				c.open = c.open[:len(c.open)-1]
			default:
				return false
			}
		}
	}
}

func (c *canonicalizer) push(brace byte) {
	in := container{object: -1, first: len(c.members)}
	if brace == '{' {
		in.object = len(c.objects)
		c.objects = append(c.objects, object{from: c.place()})
	}
	c.open = append(c.open, in)
	c.copy(1)
}

// key reads a member's key and the colon.
func (c *canonicalizer) key() bool {
	if c.space() != '"' {
		return false
	}
	m := member{from: c.place(), next: uint32(len(c.objects))}
	from, done := c.at, c.done
	if !c.string() {
		return false
	}
	key := c.src[from:c.at]
	if c.done != done {
		c.flush()
		key = c.dst[m.from:]
	}
	m.head, m.keyEnd = headOf(key[1:]), c.place()
	if c.space() != ':' {
		return false
	}
	c.copy(1)
	c.members = append(c.members, m)
	return true
}

// headOf returns the first eight bytes of a key, including the closing quote,
// padded with zeros.
func headOf(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	head := uint64(0)
	for i, b := range key {
		head |= uint64(b) << (56 - 8*i)
	}
	return head
}

// endMember ends the last member of the object, if it has one.
func (c *canonicalizer) endMember(in *container) {
	last := len(c.members) - 1
	if last < in.first {
		return
	}
	c.members[last].to = c.place()
	if last > in.first && c.compare(&c.members[last-1], &c.members[last]) >= 0 {
		in.unsorted = true
	}
}

// endObject sorts the members if necessary.
func (c *canonicalizer) endObject(in *container) {
	members := c.members[in.first:]
	c.members = c.members[:in.first]
	if !in.unsorted && in.object == len(c.objects)-1 {
		c.objects = c.objects[:in.object] // and it contains no unsorted object
		return
	}
	o := &c.objects[in.object]
	o.to, o.next = c.place(), uint32(len(c.objects))
	if !in.unsorted {
		return
	}
	c.flush()
	order := c.sort(members)
	o.first = uint32(len(c.sorted))
	c.sorted = slices.Grow(c.sorted, len(members))
	for i, p := range order {
		m := &members[p.member]
		last := len(c.sorted) - 1
		switch {
		case i == 0 || c.compare(&c.sorted[last], m) != 0:
			c.sorted = append(c.sorted, *m)
		case c.sorted[last].from < m.from:
			c.sorted[last] = *m // of equal keys, the last wins
		}
	}
	o.count = uint32(len(c.sorted)) - o.first
}

// compare compares keys.
func (c *canonicalizer) compare(a, b *member) int {
	if a.head != b.head {
		return cmp.Compare(a.head, b.head)
	}
	if a.keyEnd-a.from <= 9 {
		return 0 // the whole key, with its closing quote, is in the head
	}
	c.flush()
	return bytes.Compare(c.dst[a.from:a.keyEnd], c.dst[b.from:b.keyEnd])
}
