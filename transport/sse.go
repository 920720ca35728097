package transport

import (
	"bytes"
	"io"
)

const (
	firstBuffer = 4 << 10
	// maxEvent bounds what is held back of an event that does not end. A
	// longer one is passed on as it comes, and not metered.
	maxEvent = 1 << 20
)

// verdict is what becomes of an event: it is passed on whole, without the bytes
// [cut, cutEnd) of its data, or not at all.
type verdict struct {
	drop        bool
	cut, cutEnd int
}

// eventReader passes on a stream of server-sent events, whole events at a time,
// and shows the data of each to a judge before. What the judge leaves alone is
// passed on byte for byte, comments and unknown fields included. Nothing is
// held back but the event that is still coming in.
//
// Lines end in LF, CR LF or CR, as the HTML standard has it (section 9.2.6).
type eventReader struct {
	src   io.Reader
	judge func(data []byte) verdict
	// end is asked once, when the source has ended cleanly.
	end func() error

	// buf[r:e] is ready for the reader. buf[start:w] is the event that is
	// coming in, whose current line begins at line. e ≤ start.
	buf                  []byte
	r, e, start, line, w int
	err                  error

	dataLines int // in this event
	data      [2]int
	joined    []byte // the data of an event with several data lines
	unjudged  bool   // the event is too long
	midLine   bool   // the current line began before buf[line]

	afterCR bool // a LF would belong to the line before,
	dropLF  bool // which was dropped
}

func (s *eventReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for s.r == s.e {
		if s.err != nil {
			return 0, s.err
		}
		s.fill()
	}
	n := copy(p, s.buf[s.r:s.e])
	s.r += n
	return n, nil
}

// fill reads once; nothing is ready.
func (s *eventReader) fill() {
	if s.buf == nil {
		s.buf = make([]byte, firstBuffer)
	}
	if s.start > 0 {
		n := s.start
		copy(s.buf, s.buf[n:s.w])
		s.start, s.line, s.w = 0, s.line-n, s.w-n
		s.data[0], s.data[1] = s.data[0]-n, s.data[1]-n
	}
	s.r, s.e = 0, 0
	if s.w == len(s.buf) {
		if len(s.buf) >= maxEvent {
			s.giveUp()
			return
		}
		s.buf = append(s.buf, make([]byte, len(s.buf))...)
	}
	searched := s.w
	n, err := s.src.Read(s.buf[s.w:])
	s.w += n
	s.split(searched)
	if err == nil {
		return
	}
	s.err = err
	if err == io.EOF {
		if s.line < s.w {
			s.endLine(s.w, s.w)
		}
		if s.start < s.w {
			s.endEvent(s.w)
		}
		if cut := s.end(); cut != nil {
			s.err = cut
		}
	}
	s.pass(s.start, s.w)
	s.start, s.line = s.w, s.w
}

// giveUp passes on what has come in of an event that is too long.
func (s *eventReader) giveUp() {
	s.pass(s.start, s.w)
	s.midLine = s.midLine || s.line < s.w
	s.start, s.line = s.w, s.w
	s.unjudged, s.dropLF, s.dataLines = true, false, 0
}

// split takes all complete lines; the bytes of the current line before
// searched hold no line end.
func (s *eventReader) split(searched int) {
	for {
		if s.afterCR && s.line < s.w {
			s.afterCR = false
			if s.buf[s.line] == '\n' {
				s.line++
				if s.start == s.line-1 { // the event before has ended with CR
					if !s.dropLF {
						s.pass(s.start, s.line)
					}
					s.start = s.line
				}
			}
		}
		from := max(s.line, searched)
		end := bytes.IndexByte(s.buf[from:s.w], '\n')
		if end < 0 {
			end = s.w - from
		}
		next := from + end + 1
		if cr := bytes.IndexByte(s.buf[from:from+end], '\r'); cr >= 0 {
			end = cr
			next = from + cr + 1
			s.afterCR = true
		} else if from+end == s.w {
			return
		}
		s.endLine(from+end, next)
	}
}

// endLine takes the line buf[line:end]; the next one begins at next.
func (s *eventReader) endLine(end, next int) {
	line := s.buf[s.line:end]
	at := s.line
	s.line = next
	if len(line) == 0 && !s.midLine {
		s.endEvent(next)
		return
	}
	s.midLine = false
	if s.unjudged || !bytes.HasPrefix(line, dataField) {
		return
	}
	switch rest := line[len(dataField):]; {
	case len(rest) == 0:
	case rest[0] != ':':
		return // another field, such as "database"
	case len(rest) > 1 && rest[1] == ' ':
		at += 2
	default:
		at++
	}
	at += len(dataField)
	if s.dataLines++; s.dataLines == 1 {
		s.data = [2]int{at, end}
		return
	}
	if s.dataLines == 2 {
		s.joined = append(s.joined[:0], s.buf[s.data[0]:s.data[1]]...)
	}
	s.joined = append(append(s.joined, '\n'), s.buf[at:end]...)
}

var dataField = []byte("data")

// endEvent has the event buf[start:end] judged.
func (s *eventReader) endEvent(end int) {
	var v verdict
	switch s.dataLines {
	case 0:
	case 1:
		v = s.judge(s.buf[s.data[0]:s.data[1]])
	default:
		v = s.judge(s.joined)
		v.cut, v.cutEnd = 0, 0 // stands in several places
	}
	switch {
	case v.drop:
	case v.cutEnd > v.cut:
		s.pass(s.start, s.data[0]+v.cut)
		s.pass(s.data[0]+v.cutEnd, end)
	default:
		s.pass(s.start, end)
	}
	s.dropLF = v.drop
	s.start = end
	s.dataLines, s.unjudged = 0, false
}

// pass makes buf[from:to] ready.
func (s *eventReader) pass(from, to int) {
	if s.e == from {
		s.e = to
		return
	}
	s.e += copy(s.buf[s.e:], s.buf[from:to])
}
