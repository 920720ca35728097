package dialect

import "bytes"

// echo is the previous event, if the next one may be like it. Nearly all events of a
// stream differ from the one before only in their text, so everything else has been
// read already.
type echo struct {
	head, tail []byte // of the data, around the text
	chunk      chunk
	known      bool
}

// maxEcho is the longest event that is kept.
const maxEcho = 4 << 10

// of reads the data of an event like the kept one.
func (e *echo) of(data []byte) (c chunk, ok bool) {
	end := len(data) - len(e.tail)
	if !e.known || end < len(e.head) || !bytes.HasPrefix(data, e.head) || !bytes.HasSuffix(data, e.tail) {
		return c, false
	}
	text := data[len(e.head):end]
	if len(text) < len(`"x"`) || text[0] != '"' || skipString(text, 0) != len(text) {
		return c, false
	}
	c = e.chunk
	c.text, c.content = text, stringLen(text)
	if c.usageAt > len(e.head) {
		c.usageAt += len(text)
		c.usageEnd += len(text)
	}
	return c, true
}

// keep keeps an event that was read, if others may differ in the text only. An empty
// text may mean something else.
func (e *echo) keep(data []byte, c *chunk) {
	e.known = c.texts == 1 && c.content > 0 && c.tokens == 0 && len(data) <= maxEcho && c.usage == nil && c.timings == nil &&
		!c.finished && !c.failed && !c.whole && !c.cumulative && !c.opening
	if !e.known {
		return
	}
	at := cap(data) - cap(c.text) // its offset in data
	end := at + len(c.text)
	if e.known = at >= 0 && end <= len(data) && &data[at] == &c.text[0]; !e.known {
		return
	}
	e.head, e.tail = append(e.head[:0], data[:at]...), append(e.tail[:0], data[end:]...)
	e.chunk = *c
	e.chunk.text, e.chunk.delta = nil, nil
	if c.usageAt > at { // after the text, whose length changes
		e.chunk.usageAt -= len(c.text)
		e.chunk.usageEnd -= len(c.text)
	}
}
