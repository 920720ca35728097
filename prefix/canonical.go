package prefix

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// maxDepth is how deep arrays and objects may be nested: about as deep as
	// the JSON parsers of engines go.
	maxDepth = 1000
	// maxCanonical is how many bytes the texts of one conversation may have
	// together, and maxParts how many commas, colons and opening brackets: more
	// than tools have that somebody wants to use. They bound the memory, some ten
	// bytes a byte, and the time, which goes by the parts.
	maxCanonical = 256 << 10
	maxParts     = 16 << 10
	// keptCanonical is how long a text may be for its memory to be kept.
	keptCanonical = 64 << 10
)

// canonicalizer brings JSON into a canonical form: sorted keys, no white space,
// strings with as few escapes as can be, numbers as they were written; of equal
// keys the last counts. Text that is not one JSON value counts as it is, and so
// does text with strings that are not Unicode, nested deeper than maxDepth, or
// too long for what is left of maxCanonical or maxParts.
//
// The text is read once, into a compact form in the order given and a list of
// where the members of unsorted objects are in it. Then it is written once, in
// the order of the keys. The work is therefore that of sorting, however deep the
// nesting. The zero value is ready, and memory is used again.
type canonicalizer struct {
	jsonReader
	spent   budget
	compact []byte
	open    []container // what is around the place where the reader is
	members []member    // of the open objects
	sorted  []member    // of the unsorted objects, in the order of keys
	objects []object    // those that are unsorted, or around such
	order   []sortKey   // of the members that are being sorted
	writing []object    // unsorted objects around the place being written
}

// budget is what was spent of maxCanonical and maxParts.
type budget struct{ bytes, parts int }

// take spends what a text costs, if it is there.
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

// container is an array or an object that is being read.
type container struct {
	object   int // index; -1: an array
	first    int // of its members
	unsorted bool
}

// A member is a key and its value in compact.
type member struct {
	head             uint64 // the first bytes of the key, which order most keys
	from, keyEnd, to uint32
	next             uint32 // the first of objects that begins here or later
}

// sortKey is by what a member is sorted, and which it is.
type sortKey struct {
	head   uint64
	member uint32
}

// An object in compact, from brace to brace. While it is written, first, count
// and to are what is left of it.
type object struct {
	from, to     uint32
	first, count uint32 // of its members in sorted; 0: they are in order
	next         uint32 // the first of objects after it
}

// canonicalJSON returns the canonical form of s on its own.
func canonicalJSON(s string) string { return new(canonicalizer).text(s) }

// text returns the canonical form of s.
func (c *canonicalizer) text(s string) string {
	var b strings.Builder
	if !c.write(s, func(piece []byte) { b.Write(piece) }) {
		return s
	}
	return b.String()
}

// write calls yield with the canonical form of s, piece by piece, if it has one. A
// piece is valid until yield returns.
func (c *canonicalizer) write(s string, yield func([]byte)) bool {
	if len(s) > keptCanonical {
		defer func() { *c = canonicalizer{spent: c.spent} }()
	}
	if !c.read(s) {
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
			// What is left to do after this member, and up to where.
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
			yield(commaBytes)
			m := c.sorted[o.first]
			from, to, next = m.from, m.to, m.next
			continue
		}
		from, to, next = o.from, o.to, o.next
		c.writing = c.writing[:n-1]
	}
}

var commaBytes = []byte{','}

// read reads s and reports whether it has a canonical form.
func (c *canonicalizer) read(s string) bool {
	src := bytesOf(s)
	if !c.spent.take(src) || !utf8.Valid(src) {
		return false
	}
	// The compact form is never longer than the text.
	c.jsonReader = jsonReader{src: src, dst: slices.Grow(c.compact[:0], len(s))}
	c.open, c.members, c.sorted, c.objects, c.writing = c.open[:0], c.members[:0], c.sorted[:0], c.objects[:0], c.writing[:0]
	ok := c.values() && c.space() == 0 && c.at == len(c.src)
	c.compact = c.dst
	return ok
}

// values reads one value and all in it.
func (c *canonicalizer) values() bool {
	for {
		switch b := c.space(); b {
		case '{', '[':
			if len(c.open) == maxDepth {
				return false
			}
			if c.push(b); c.space() == b+2 { // the brace that closes
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
		for more := false; !more; { // a value has ended
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
		c.objects = append(c.objects, object{from: uint32(len(c.dst))})
	}
	c.open = append(c.open, in)
	c.copy(1)
}

// key reads the key of a member, and the colon.
func (c *canonicalizer) key() bool {
	m := member{from: uint32(len(c.dst)), next: uint32(len(c.objects))}
	if c.space() != '"' || !c.string() || c.space() != ':' {
		return false
	}
	m.keyEnd = uint32(len(c.dst))
	for _, b := range c.dst[m.from+1 : min(m.from+9, m.keyEnd)] {
		m.head = m.head<<8 | uint64(b)
	}
	m.head <<= 8 * (8 - min(m.keyEnd-m.from-1, 8))
	c.copy(1)
	c.members = append(c.members, m)
	return true
}

// endMember ends the last member of the object, if it has any.
func (c *canonicalizer) endMember(in *container) {
	last := len(c.members) - 1
	if last < in.first {
		return
	}
	c.members[last].to = uint32(len(c.dst))
	if last > in.first && c.compare(&c.members[last-1], &c.members[last]) >= 0 {
		in.unsorted = true
	}
}

// endObject sorts the members if they are not in order.
func (c *canonicalizer) endObject(in *container) {
	members := c.members[in.first:]
	c.members = c.members[:in.first]
	if !in.unsorted && in.object == len(c.objects)-1 {
		c.objects = c.objects[:in.object] // nothing in it is unsorted either
		return
	}
	o := &c.objects[in.object]
	o.to, o.next = uint32(len(c.dst)), uint32(len(c.objects))
	if !in.unsorted {
		return
	}
	c.order = c.order[:0]
	for i, m := range members {
		c.order = append(c.order, sortKey{m.head, uint32(i)})
	}
	slices.SortFunc(c.order, func(a, b sortKey) int {
		switch {
		case a.head < b.head:
			return -1
		case a.head > b.head:
			return 1
		}
		return c.compare(&members[a.member], &members[b.member])
	})
	o.first = uint32(len(c.sorted))
	c.sorted = slices.Grow(c.sorted, len(members))
	for i, p := range c.order {
		m := &members[p.member]
		last := len(c.sorted) - 1
		switch {
		case i == 0 || c.compare(&c.sorted[last], m) != 0:
			c.sorted = append(c.sorted, *m)
		case c.sorted[last].from < m.from:
			c.sorted[last] = *m // the last of equals counts
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
		return 0 // all of it is in there, with the quote that ends it
	}
	return bytes.Compare(c.dst[a.from:a.keyEnd], c.dst[b.from:b.keyEnd])
}
