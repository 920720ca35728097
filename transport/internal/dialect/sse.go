package dialect

import "bytes"

// maxEvent is the longest event that is held back. Longer ones are passed on
// as they arrive, and not metered.
const maxEvent = 1 << 20

// edit says what to do with an event: pass it on whole, with other data, or not at all.
//
// An event may be held back until the next one arrives, which may be dropped
// and leave members to be added to the object in the held one.
type edit struct {
	drop bool
	data []byte // instead of what was there; nil: that
	hold bool
	join []byte // an object whose members are added to that of the held event, if it lacks them
}

// eventFilter passes on a stream of server-sent events, whole events at a time. Before, it
// calls inspect with the data of each, and edits the event as that returns; everything else is
// passed on byte for byte, including comments and unknown fields. Only the incomplete event at
// the end is held back.
//
// Lines end in LF, CR LF or CR, as the HTML standard has it (section 9.2.6).
type eventFilter struct {
	inspect func(data []byte) edit
	lines   bool // each line is an event, with nothing but data

	dst  []byte // output of the current feed
	last int    // where in it the latest event begins
	held []byte // the previous event, which waits for the next
	// buf[start:] is the incomplete event, whose current line begins at line; one that is inspected ends there.
	buf         []byte
	start, line int
	joined      []byte // the data of an event with several data lines

	tooLong bool // this event, which is not inspected
	skipped bool // an event was too long
	midLine bool // the current line began before buf[line]

	isError bool // the event has this name
}

// feed reads the next piece and appends to dst what is to be passed on.
func (s *eventFilter) feed(dst, piece []byte) []byte {
	s.dst = dst
	for len(piece) > 0 {
		n := min(len(piece), maxEvent-len(s.buf))
		searched := len(s.buf)
		s.buf = append(s.buf, piece[:n]...)
		piece = piece[n:]
		s.split(searched)
		s.buf = s.buf[:copy(s.buf, s.buf[s.start:])]
		s.start, s.line = 0, s.line-s.start
		if len(s.buf) >= maxEvent {
			s.passUnread()
		}
	}
	dst, s.dst = s.dst, nil
	return dst
}

// end says that the source has ended cleanly: an event without an empty line
// after it counts. What it adds to the output is out[last:].
func (s *eventFilter) end(dst []byte) (out []byte, last int) {
	s.dst, s.last = dst, -1
	if s.line = len(s.buf); s.start < s.line {
		s.endEvent()
	}
	last = s.last
	if out = s.rest(s.dst); last < 0 {
		last = len(out)
	}
	return out, last
}

// cut drops the incomplete event of a source that has broken off. It reports false if the client
// has got some of it.
func (s *eventFilter) cut() bool {
	if !s.tooLong {
		s.buf = s.buf[:s.start]
	}
	return !s.tooLong
}

// rest passes on what is left of a source that has broken off.
func (s *eventFilter) rest(dst []byte) []byte {
	dst = append(dst, s.held...)
	s.held = nil
	dst = append(dst, s.buf[s.start:]...)
	s.buf, s.start, s.line, s.dst = s.buf[:0], 0, 0, nil
	return dst
}

// passUnread passes on the incomplete event because it is too long.
func (s *eventFilter) passUnread() {
	s.release(nil)
	s.pass(0, len(s.buf))
	s.midLine = s.line < len(s.buf)
	s.buf, s.line = s.buf[:0], 0
	s.tooLong, s.skipped = true, true
}

// split processes all complete lines; the bytes of the current line before
// searched contain no line end, except perhaps for the last.
func (s *eventFilter) split(searched int) {
	for {
		from := max(s.line, searched-1)
		end, next := lineEnd(s.buf[from:])
		end, next = from+end, from+next
		if end == next || s.buf[next-1] == '\r' && next == len(s.buf) { // a LF may follow
			return
		}
		isEmpty := end == s.line && !s.midLine
		s.line, s.midLine = next, false
		if isEmpty != s.lines {
			s.endEvent()
		}
	}
}

// endEvent inspects the event, and passes it on.
func (s *eventFilter) endEvent() {
	var e edit
	data, lines, isLast := []byte(nil), 0, false
	if !s.tooLong {
		data, lines, isLast = s.findData(s.buf[s.start:s.line])
	}
	if lines > 0 {
		e = s.inspect(data)
	}
	s.release(e.join)
	passed := len(s.dst)
	s.last = passed
	switch {
	case e.drop:
	case e.data != nil && s.lines:
		s.dst = append(append(s.dst, e.data...), '\n')
	case e.data != nil:
		s.dst = append(append(append(s.dst, "data: "...), e.data...), "\n\n"...)
	default:
		s.pass(s.start, s.line)
	}
	if e.hold && isLast {
		s.held = append(s.held, s.dst[passed:]...)
		s.dst = s.dst[:passed]
	}
	s.tooLong, s.start = false, s.line
}

// findData finds the data of an event, and joins what is in several lines. isLast: it is in one line,
// and no other one follows.
func (s *eventFilter) findData(event []byte) (data []byte, lines int, isLast bool) {
	if s.isError = false; s.lines || bytes.HasPrefix(event, []byte{'{'}) { // some proxies send an error like this in a stream, too
		return bytes.TrimRight(event, "\r\n"), 1, true
	}
	for len(event) > 0 {
		end, next := lineEnd(event)
		name, value, _ := bytes.Cut(event[:end], []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		event = event[next:]
		inField := string(name) == "error" // of llama.cpp in 2025, with the data of an error
		s.isError = s.isError || inField || string(name) == "event" && string(value) == "error"
		if string(name) != "data" && !inField {
			isLast = isLast && end == 0
			continue
		}
		switch lines++; lines {
		case 1:
			data = value
		case 2:
			s.joined = append(s.joined[:0], data...)
			fallthrough
		default:
			s.joined = append(append(s.joined, '\n'), value...)
			data = s.joined
		}
		isLast = lines == 1
	}
	return data, lines, isLast
}

// lineEnd is where the first line of b ends and the next one begins: both at the end of b if there is none.
// It looks at no more than a few times the line.
func lineEnd(b []byte) (end, next int) {
	for n := 256; ; n *= 2 {
		head := b[:min(n, len(b))]
		lf := bytes.IndexByte(head, '\n')
		if lf >= 0 {
			head = head[:lf]
		}
		switch cr := bytes.IndexByte(head, '\r'); {
		case cr >= 0 && bytes.HasPrefix(b[cr+1:], []byte{'\n'}):
			return cr, cr + 2
		case cr >= 0:
			return cr, cr + 1
		case lf >= 0:
			return lf, lf + 1
		case n >= len(b):
			return len(b), len(b)
		}
	}
}

// release passes on the held event, with the members of another object.
func (s *eventFilter) release(join []byte) {
	if len(s.held) > 0 {
		s.dst = withMembers(s.dst, s.held, join)
		s.held = s.held[:0]
	}
}

func (s *eventFilter) pass(from, to int) { s.dst = append(s.dst, s.buf[from:to]...) }
