package dialect

// maxChoices bounds how many choices are distinguished.
const maxChoices = 1 << 14

// choice is the state of one of several responses in a stream.
type choice struct {
	content int // bytes, for engines whose events repeat the whole text
	counted int // tokens reported to the lease
	ended   bool
}

// choices are the responses in one stream, each with its own beginning and end. The zero
// value has none. A stream is finished once all that have begun are: an engine may return
// fewer than requested.
type choices struct {
	most  int // number requested; events of further ones count for the latest choice
	only  choice
	all   map[int]*choice // nil if there can be only one
	last  *choice         // of the latest event
	ended int
}

// of processes an event and returns its choice, the last one if it has several.
func (s *choices) of(data []byte, c *chunk) *choice {
	switch {
	case s.most <= 1:
		s.only.ended = s.only.ended || c.finished
		return &s.only
	case !c.choices && !c.finished:
		return &s.only
	}
	listed := false
	index := 0
	for m := membersOf(data); m.member(); {
		v := m.value()
		switch string(m.key) {
		case "index":
			index, _ = count(v)
		case "choices":
			for e := elementsOf(v); e.element(); {
				choice := e.value()
				at, _ := count(field(choice, "index"))
				s.at(at, present(field(choice, "finish_reason")))
				listed = true
			}
		}
	}
	if !listed && (c.any || c.finished) {
		s.at(index, c.finished)
	}
	if s.last == nil {
		return &s.only
	}
	return s.last
}

// at processes an event of one choice.
func (s *choices) at(index int, ended bool) {
	x := s.all[index]
	if x == nil {
		if s.all == nil {
			s.all = map[int]*choice{}
		}
		if len(s.all) < s.most {
			x = new(choice)
			s.all[index] = x
		} else if x = s.last; x == nil {
			return
		}
	}
	if s.last = x; ended && !x.ended {
		x.ended = true
		s.ended++
	}
}

// finished reports whether all choices that have begun have ended.
func (s *choices) finished() bool {
	if s.most <= 1 {
		return s.only.ended
	}
	return s.ended > 0 && s.ended >= len(s.all)
}

// complete reports whether all requested choices have ended.
func (s *choices) complete() bool { return s.finished() && (s.most <= 1 || s.ended >= s.most) }
