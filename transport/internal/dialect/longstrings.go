package dialect

import "sort"

// longStrings remembers where the long strings of a body end: the body is first walked as
// a whole, then its parts level by level, and each walk would search for the same ends.
type longStrings struct {
	body  []byte
	found []span // by start
	next  int    // likely index of the next one
}

// span is a string in the body, with its quotes.
type span struct {
	start, end int
	various    bool // as returned by readString
}

// leastLong is the length from which on remembering a string is cheaper than reading it again.
const leastLong = 256

// has reports whether b is a part of the body whose capacity reaches the body's
// end, from which its start follows.
func (s *longStrings) has(b []byte) bool {
	at := cap(s.body) - cap(b)
	return len(b) > 0 && at >= 0 && at < len(s.body) && &s.body[at] == &b[0]
}

// skip is skipString for a part of the body. It may be called with nil.
func (s *longStrings) skip(b []byte, i int) int {
	if s == nil {
		return skipString(b, i)
	}
	begin := cap(s.body) - cap(b)
	start := begin + i
	n := s.next
	if n < len(s.found) && s.found[n].start < start || n > 0 && s.found[n-1].start >= start {
		n = sort.Search(len(s.found), func(n int) bool { return s.found[n].start >= start })
		s.next = n
	}
	if n < len(s.found) && s.found[n].start == start {
		s.next = n + 1
		if end := s.found[n].end - begin; end <= len(b) {
			return end
		}
		return -1
	}
	end, various := readString(b, i)
	if end-i >= leastLong && n == len(s.found) {
		s.found = append(s.found, span{start, begin + end, various})
		s.next = n + 1
	}
	return end
}

// various returns what readString returns for the string value v, wherever it is.
func (s *longStrings) various(v []byte) bool {
	if s.next > 0 && s.has(v) {
		if last := &s.found[s.next-1]; last.start == cap(s.body)-cap(v) && last.end-last.start == len(v) {
			return last.various
		}
	}
	_, various := readString(v, 0)
	return various
}
