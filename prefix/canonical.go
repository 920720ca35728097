package prefix

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// canonicalJSON returns the value with sorted keys and without white space,
// strings with as few escapes as can be, numbers as they were written; of
// equal keys the last counts. Text that is not one JSON value is returned as
// it is.
func canonicalJSON(s string) string {
	src := []byte(s)
	if !json.Valid(src) {
		return s
	}
	c := canonicalizer{src: src, dst: make([]byte, 0, len(src))}
	c.value()
	return string(c.dst)
}

// canonicalizer reads JSON that is known to be valid.
type canonicalizer struct {
	src     []byte
	at      int
	dst     []byte
	members []member
	spare   []byte
}

// member is a key and its value in dst.
type member struct{ from, keyEnd, to int }

func (c *canonicalizer) value() {
	switch c.space() {
	case '{':
		c.object()
	case '[':
		c.dst = append(c.dst, '[')
		c.at++
		for c.space() != ']' {
			if c.src[c.at] == ',' {
				c.at++
				c.dst = append(c.dst, ',')
			}
			c.value()
		}
		c.at++
		c.dst = append(c.dst, ']')
	case '"':
		c.string()
	default:
		from := c.at
		for c.at < len(c.src) && strings.IndexByte(" \t\r\n,]}", c.src[c.at]) < 0 {
			c.at++
		}
		c.dst = append(c.dst, c.src[from:c.at]...)
	}
}

// space skips white space and returns the byte after it.
func (c *canonicalizer) space() byte {
	for {
		switch b := c.src[c.at]; b {
		case ' ', '\t', '\r', '\n':
			c.at++
		default:
			return b
		}
	}
}

func (c *canonicalizer) object() {
	open, first := len(c.dst), len(c.members)
	c.dst = append(c.dst, '{')
	c.at++
	sorted := true
	for c.space() != '}' {
		if c.src[c.at] == ',' {
			c.at++
			c.space()
			c.dst = append(c.dst, ',')
		}
		m := member{from: len(c.dst)}
		c.string()
		m.keyEnd = len(c.dst)
		c.space() // at the colon
		c.at++
		c.dst = append(c.dst, ':')
		c.value()
		m.to = len(c.dst)
		if n := len(c.members); n > first && c.compareKeys(c.members[n-1], m) >= 0 {
			sorted = false
		}
		c.members = append(c.members, m)
	}
	c.at++
	if !sorted {
		c.sort(open+1, c.members[first:])
	}
	c.members = c.members[:first]
	c.dst = append(c.dst, '}')
}

// sort writes the members, which are dst from there on, in the order of their
// keys.
func (c *canonicalizer) sort(from int, members []member) {
	slices.SortStableFunc(members, c.compareKeys)
	c.spare = c.spare[:0]
	for i, m := range members {
		if i+1 < len(members) && c.compareKeys(m, members[i+1]) == 0 {
			continue
		}
		c.spare = append(append(c.spare, c.dst[m.from:m.to]...), ',')
	}
	c.dst = append(c.dst[:from], c.spare[:len(c.spare)-1]...)
}

func (c *canonicalizer) compareKeys(a, b member) int {
	return bytes.Compare(c.dst[a.from:a.keyEnd], c.dst[b.from:b.keyEnd])
}

// string copies a string. One with escapes is decoded and gets only those that
// it must have.
func (c *canonicalizer) string() {
	from := c.at
	escaped := false
	for c.at++; c.src[c.at] != '"'; c.at++ {
		if c.src[c.at] == '\\' {
			escaped = true
			c.at++
		}
	}
	c.at++
	token := c.src[from:c.at]
	var s string
	if !escaped || json.Unmarshal(token, &s) != nil {
		c.dst = append(c.dst, token...)
		return
	}
	c.dst = append(c.dst, '"')
	for i := range len(s) {
		switch b := s[i]; {
		case b == '"' || b == '\\':
			c.dst = append(c.dst, '\\', b)
		case b < ' ':
			c.dst = append(c.dst, `\u00`...)
			c.dst = append(c.dst, hexDigits[b>>4], hexDigits[b&15])
		default:
			c.dst = append(c.dst, b)
		}
	}
	c.dst = append(c.dst, '"')
}

const hexDigits = "0123456789abcdef"
