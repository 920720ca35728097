package endpick_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The following models each place where this package counts without a lock, or with one
// that it releases in between, step by step like the code, and checks all states that any
// interleaving of the steps can reach. Each model can be run with mistakes that the checker
// has to find. TestEndpointChurnUnderLoad and TestInvariantStress run the code itself; code
// that executes each call under one lock runs in all orders of calls, here and in other
// packages.

// model is a system of threads, and what each of them does next.
type model[S comparable] struct {
	threads int
	// step makes a thread's next step; false: it is blocked, or has ended.
	step func(s S, thread int) (next S, can bool)
	// wrong says what is wrong with a state; ended: no thread can continue.
	wrong func(s S, ended bool) string
}

// check explores all interleavings from a state, and returns what is wrong with the
// first bad state, and the number of states.
func (m model[S]) check(start S) (wrong string, states int) {
	seen := map[S]bool{}
	var visit func(s S) string
	visit = func(s S) string {
		if seen[s] {
			return ""
		}
		seen[s] = true
		ended := true
		for i := range m.threads {
			next, can := m.step(s, i)
			if !can {
				continue
			}
			ended = false
			if wrong := visit(next); wrong != "" {
				return fmt.Sprintf("%+v\n%s", s, wrong)
			}
		}
		if wrong := m.wrong(s, ended); wrong != "" {
			return fmt.Sprintf("%+v\n%s", s, wrong)
		}
		return ""
	}
	wrong = visit(start)
	return wrong, len(seen)
}

// departure is an endpoint that is removed while requests are routed there and
// end. Its slot must be freed once, when no request is left.
type departure struct {
	requests  int8
	removed   bool
	departing bool
	lock      int8 // 1 + the thread that holds Router.mu; 0: none
	freed     int8
	at        [4]int8 // next step of each thread; 9: ended
	on        [4]bool // a request that has entered and not ended
}

const ended = 9

// departures is the model: threads 0 to 2 route a request and end it, and thread 3
// removes the endpoint. early is a mistake: checking for the removal before
// counting.
func departures(early bool) model[departure] {
	return model[departure]{
		threads: 4,
		step: func(s departure, i int) (departure, bool) {
			release := func() {
				if s.departing && s.requests == 0 {
					s.departing = false
					s.freed++
				}
			}
			at := &s.at[i]
			if i == 3 { // Router.Remove, under the lock
				switch *at {
				case 0:
					if s.lock != 0 {
						return s, false
					}
					s.lock, s.departing = 4, true
				case 1:
					s.removed = true
				case 2:
					release()
				case 3:
					s.lock, *at = 0, ended
					return s, true
				default:
					return s, false
				}
				*at++
				return s, true
			}
			switch *at {
			case 0: // enter counts first
				if early && s.removed {
					*at = ended
					return s, true
				}
				if !early {
					s.requests++
				}
				*at = 1
			case 1: // and then checks
				if early {
					s.requests++
				} else if s.removed {
					*at = 2
					return s, true
				}
				s.on[i] = true
				*at = 2
			case 2: // leave
				s.on[i] = false
				s.requests--
				if *at = ended; s.requests == 0 {
					*at = 3 // the last one
				}
			case 3:
				if *at = ended; s.removed {
					*at = 4
				}
			case 4:
				if s.lock != 0 {
					return s, false
				}
				release()
				*at = ended
			default:
				return s, false
			}
			return s, true
		},
		wrong: func(s departure, last bool) string {
			open := s.on[0] || s.on[1] || s.on[2]
			switch {
			case s.requests < 0:
				return "fewer than no requests"
			case s.freed > 1:
				return "the slot is given back twice"
			case s.freed > 0 && open:
				return "the slot is given back with a request on it"
			case last && (s.requests != 0 || s.freed != 1 || s.lock != 0):
				return "the slot is never given back"
			}
			return ""
		},
	}
}

func TestDepartureInAllInterleavings(t *testing.T) {
	wrong, states := departures(false).check(departure{})
	assert.Empty(t, wrong)
	t.Logf("%d states", states)
	wrong, _ = departures(true).check(departure{})
	assert.Contains(t, wrong, "the slot is given back with a request on it", "the checker finds nothing")
}

// slot is a slot for leases: its holder closes it twice at once, the reaper closes it
// too, its prefill ends by time, and another request reuses it.
type slot struct {
	open       bool
	prefilling bool
	generation int8
	free       int8 // how often it is in the list of free slots
	prefills   int8 // the endpoint's count
	closed     [3]int8
	at         [5]int8
	took       int8    // generation of the new lease
	by         [3]int8 // 1 + the thread that ended the prefill
}

// leaseSlots is the model: threads 0 and 1 call Done on the first lease, thread 2 reaps
// whatever it finds, thread 3 opens a second lease in the slot as soon as it is free, and
// closes it, and thread 4 ends the first one's prefill by time. careless and hasty are
// mistakes of Done and of thread 4: not comparing the generation.
func leaseSlots(careless, hasty bool) model[slot] {
	return model[slot]{
		threads: 5,
		step: func(s slot, i int) (slot, bool) {
			at := &s.at[i]
			endPrefill := func() {
				if s.prefilling {
					s.prefilling = false
					s.prefills--
					s.by[s.generation] = 1 + int8(i)
				}
			}
			close := func(generation int8) { // under the slot's lock
				if s.open && (careless || generation == s.generation || generation == 0) {
					s.open = false
					endPrefill()
					s.closed[s.generation]++
					*at = 1
					return
				}
				*at = ended
			}
			switch {
			case *at == ended:
				return s, false
			case i == 4: // leaseTable.expire, under the slot's lock
				if s.open && (hasty || s.generation == 1) {
					endPrefill()
				}
				*at = ended
			case *at == 1 && i < 3, *at == 3: // after unlocking: into the list of free slots
				s.free++
				*at = ended
			case i < 2:
				close(1)
			case i == 2:
				close(0) // any generation
			case *at == 0: // Route takes it from the list
				if s.free == 0 {
					return s, false
				}
				s.free--
				*at = 1
			case *at == 1:
				s.generation++
				s.took = s.generation
				s.open, s.prefilling = true, true
				s.prefills++
				*at = 2
			case *at == 2:
				if s.open && s.generation == s.took {
					s.open = false
					endPrefill()
					s.closed[s.took]++
					*at = 3
				} else {
					*at = ended
				}
			}
			return s, true
		},
		wrong: func(s slot, last bool) string {
			switch {
			case s.free > 1:
				return "the slot is free twice"
			case s.free > 0 && s.open:
				return "the slot is free and open"
			case s.closed[1] > 1 || s.closed[2] > 1:
				return "a lease is closed twice"
			case s.prefills < 0 || s.prefills > 1 || s.prefilling && !s.open:
				return "a prefill is counted that is none"
			case s.by[2] == 1+4:
				return "somebody else's prefill is ended"
			case last && (s.open || s.closed[1] != 1 || s.closed[2] != 1 || s.free != 1 || s.prefills != 0):
				return "a lease is never closed, or its slot lost"
			}
			return ""
		},
	}
}

func TestLeaseSlotInAllInterleavings(t *testing.T) {
	start := slot{open: true, prefilling: true, prefills: 1, generation: 1}
	wrong, states := leaseSlots(false, false).check(start)
	assert.Empty(t, wrong)
	t.Logf("%d states", states)
	wrong, _ = leaseSlots(false, true).check(start)
	assert.Contains(t, wrong, "somebody else's prefill is ended", "the checker finds nothing")
	// If Done does not compare the generation, a late holder closes the next lease.
	// That is still closed once, so check who did it.
	late := leaseSlots(true, false)
	late.wrong = func(s slot, _ bool) string {
		if s.closed[2] > 0 && s.at[3] <= 2 && s.at[2] != 1 && s.at[2] != ended {
			return "somebody else's lease is closed"
		}
		return ""
	}
	wrong, _ = late.check(start)
	assert.Contains(t, wrong, "somebody else's lease is closed", "the checker finds nothing")
}

// row is a row that decisions reuse: of an endpoint with two counters, and a
// version that is incremented after each change.
type row struct {
	counted, version int8 // the endpoint's
	tokens           int8
	holds            [2]int8 // the row's
	seen             int8
	read             int8 // the version about to be recorded
	at               [3]int8
	refreshed        int8
}

// rowReuse is the model: threads 0 and 1 change the endpoint, each first both counters
// and then the version; thread 2 refreshes the row three times. early is a mistake of
// the former, to increment the version first; late one of the latter, to read it last.
func rowReuse(early, late bool) model[row] {
	const times = 3
	return model[row]{
		threads: 3,
		step: func(s row, i int) (row, bool) {
			at := &s.at[i]
			if i < 2 {
				change := []func(){func() { s.counted++ }, func() { s.tokens++ }, func() { s.version++ }}
				if early {
					change = append(change[2:], change[:2]...)
				}
				if *at == ended {
					return s, false
				}
				change[*at]()
				if *at++; *at == 3 {
					*at = ended
				}
				return s, true
			}
			begin := func() { // Router.refresh
				s.read = s.version
			}
			switch *at {
			case 0:
				if begin(); s.read == s.seen {
					*at = 4 // reuse it
				} else {
					*at = 1
				}
			case 1: // endpointState.fill
				s.holds[0] = s.counted
				*at = 2
			case 2:
				s.holds[1] = s.tokens
				*at = 3
			case 3:
				if late {
					begin()
				}
				s.seen = s.read
				*at = 4
			case 4: // the decision
				if *at, s.refreshed = 0, s.refreshed+1; s.refreshed == times {
					*at = ended
				}
			default:
				return s, false
			}
			return s, true
		},
		// A row that would be reused holds the endpoint's current values, unless a
		// change is in progress, which will increment the version.
		wrong: func(s row, _ bool) string {
			under := false
			for _, at := range s.at[:2] {
				under = under || at > 0 && at != ended
			}
			if whole := s.at[2] == 0 || s.at[2] == 4 || s.at[2] == ended; !under && whole && s.seen == s.version && s.holds != [2]int8{s.counted, s.tokens} {
				return "a row that has changed is taken for one that has not"
			}
			return ""
		},
	}
}

func TestRowsInAllInterleavings(t *testing.T) {
	start := row{version: 1, seen: 0}
	wrong, states := rowReuse(false, false).check(start)
	assert.Empty(t, wrong)
	t.Logf("%d states", states)
	for _, mistake := range []model[row]{rowReuse(true, false), rowReuse(false, true)} {
		wrong, _ = mistake.check(start)
		assert.Contains(t, wrong, "a row that has changed is taken", "the checker finds nothing")
	}
}
