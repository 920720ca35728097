package dialect

import "bytes"

// FirstFails reports whether a stream begins with an error: some engines send
// one as an event, with a status of 200.
func (c *Call) FirstFails(first []byte) bool {
	event := dialects[c.api].event
	if event == nil { // a stream of unknown format
		return false
	}
	data, _ := firstData(first)
	if data == nil {
		return false
	}
	e := event(data)
	return e.failed && !e.any
}

// FirstIsCut reports whether a stream begins with an incomplete event, about which
// FirstFails can't decide yet.
func (c *Call) FirstIsCut(first []byte) bool {
	if dialects[c.api].event == nil {
		return false
	}
	_, cut := firstData(first)
	return cut
}

// firstData returns the first line of data in a stream's beginning, or nil, and whether an
// event has begun that may still have one.
func firstData(b []byte) (data []byte, cut bool) {
	for len(b) > 0 {
		end := bytes.IndexAny(b, "\r\n")
		if end < 0 {
			return nil, cut || b[0] != ':'
		}
		line := b[:end]
		if data, ok := bytes.CutPrefix(line, dataColon); ok {
			return data, false
		}
		cut = len(line) > 0 && (cut || line[0] != ':')
		next := end + 1
		if b[end] == '\r' && next < len(b) && b[next] == '\n' {
			next++
		}
		b = b[next:]
	}
	return nil, cut
}

var dataColon = []byte("data:")
