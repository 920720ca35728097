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
	// buf[start:] is the incomplete event, whose current line begins at line.
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
		s.forget()
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
	if s.line < len(s.buf) {
		s.endLine(s.line+len(bytes.TrimSuffix(s.buf[s.line:], []byte{'\r'})), len(s.buf))
	}
	if s.start < len(s.buf) {
		s.endEvent(len(s.buf))
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

// forget removes processed events from the buffer.
func (s *eventFilter) forget() {
	if n := s.start; n > 0 {
		s.buf = s.buf[:copy(s.buf, s.buf[n:])]
		s.start, s.line = 0, s.line-n
	}
}

// passUnread passes on the incomplete event because it is too long.
func (s *eventFilter) passUnread() {
	s.release(nil)
	s.pass(0, len(s.buf))
	s.midLine = s.midLine || s.line < len(s.buf)
	s.buf, s.line = s.buf[:0], 0
	s.tooLong, s.skipped = true, true
}

// split processes all complete lines; the bytes of the current line before
// searched contain no line end, except perhaps for the last.
func (s *eventFilter) split(searched int) {
	for {
		from := max(s.line, searched-1)
		end := lineEnd(s.buf[from:])
		next := from + end + 1
		if end < 0 || s.buf[next-1] == '\r' && next == len(s.buf) { // a LF may follow
			return
		}
		if s.buf[next-1] == '\r' && s.buf[next] == '\n' {
			next++
		}
		s.endLine(from+end, next)
	}
}

// endLine processes the line buf[line:end]; the next one begins at next.
func (s *eventFilter) endLine(end, next int) {
	isEmpty := end == s.line && !s.midLine
	s.line, s.midLine = next, false
	if isEmpty != s.lines {
		s.endEvent(next)
	}
}

// endEvent inspects the event buf[start:end], and passes it on.
func (s *eventFilter) endEvent(end int) {
	var e edit
	from, to, lines := 0, 0, 0
	if !s.tooLong {
		from, to, lines = s.findData(end)
	}
	switch lines {
	case 0:
	case 1:
		e = s.inspect(s.buf[from:to])
	default:
		e = s.inspect(s.joined)
	}
	s.release(e.join)
	passed := len(s.dst)
	s.last = passed
	switch {
	case e.drop:
	case e.data != nil && lines > 0:
		s.dst = s.write(s.dst, e.data)
	default:
		s.pass(s.start, end)
	}
	if e.hold && lines == 1 && len(bytes.Trim(s.buf[to:end], "\r\n")) == 0 {
		s.held = append(s.held, s.dst[passed:]...)
		s.dst = s.dst[:passed]
	}
	s.tooLong, s.start = false, end
}

// findData finds the data of the event buf[start:end]: in one line, buf[from:to], or in several,
// which it joins.
func (s *eventFilter) findData(end int) (from, to, lines int) {
	if s.isError = false; s.lines {
		return s.start, s.start + len(bytes.TrimRight(s.buf[s.start:end], "\r\n")), 1
	}
	for rest := s.buf[s.start:end]; len(rest) > 0; {
		var line []byte
		at := end - len(rest)
		line, rest = cutLine(rest)
		name, data, _ := bytes.Cut(line, []byte{':'})
		data = bytes.TrimPrefix(data, []byte{' '})
		if string(name) != "data" {
			s.isError = s.isError || string(name) == "event" && string(data) == "error"
			continue
		}
		if lines++; lines == 1 {
			to = at + len(line)
			from = to - len(data)
			continue
		}
		if lines == 2 {
			s.joined = append(s.joined[:0], s.buf[from:to]...)
		}
		s.joined = append(append(s.joined, '\n'), data...)
	}
	return from, to, lines
}

// cutLine returns the first line of b, and what follows its end.
func cutLine(b []byte) (line, rest []byte) {
	end := lineEnd(b)
	if end < 0 {
		return b, nil
	}
	line, rest = b[:end], b[end+1:]
	if b[end] == '\r' {
		rest = bytes.TrimPrefix(rest, []byte{'\n'})
	}
	return line, rest
}

// lineEnd is where the first line of b ends, or -1. It looks at no more than a few times the line.
func lineEnd(b []byte) int {
	for n := 256; ; n *= 2 {
		head := b[:min(n, len(b))]
		lf := bytes.IndexByte(head, '\n')
		if lf >= 0 {
			head = head[:lf]
		}
		if cr := bytes.IndexByte(head, '\r'); cr >= 0 {
			return cr
		}
		if lf >= 0 || n >= len(b) {
			return lf
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

// write appends an event with nothing but data.
func (s *eventFilter) write(dst, data []byte) []byte {
	if s.lines {
		return append(append(dst, data...), '\n')
	}
	return append(append(append(dst, "data: "...), data...), "\n\n"...)
}

// pass passes on buf[from:to].
func (s *eventFilter) pass(from, to int) { s.dst = append(s.dst, s.buf[from:to]...) }
