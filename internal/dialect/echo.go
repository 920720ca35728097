package dialect

import "bytes"

// echo is the event before, as far as the next one may be like it: nearly all events
// of a stream differ from the one before in their text alone, and then all else that
// they say has been read already.
type echo struct {
	head, tail []byte // of the data, around the text
	chunk      chunk
	known      bool
}

// maxEcho bounds what is kept of an event.
const maxEcho = 4 << 10

// of reads the data of an event that is like the one that is kept.
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

// keep takes an event that was read, if others may say as much with another text. An
// empty one may mean something else.
func (e *echo) keep(data []byte, c *chunk) {
	e.known = c.texts == 1 && c.content > 0 && c.tokens == 0 && len(data) <= maxEcho && c.usage == nil && c.timings == nil &&
		!c.finished && !c.failed && !c.whole && !c.cumulative && !c.opening
	if !e.known {
		return
	}
	at := cap(data) - cap(c.text) // as a part of it
	end := at + len(c.text)
	if e.known = at >= 0 && end <= len(data) && &data[at] == &c.text[0]; !e.known {
		return
	}
	e.head, e.tail = append(e.head[:0], data[:at]...), append(e.tail[:0], data[end:]...)
	e.chunk = *c
	e.chunk.text, e.chunk.delta = nil, nil
	if c.usageAt > at { // behind the text, whose length changes
		e.chunk.usageAt -= len(c.text)
		e.chunk.usageEnd -= len(c.text)
	}
}
