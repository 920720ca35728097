package endpick_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// What follows is a model of the two places in which this package counts without a
// lock, each step as the code does it, and a checker that goes through all states
// that any interleaving of the steps can reach. TestEndpointChurnUnderLoad and
// TestInvariantStress run the code itself.

// model is a state of some threads, and what each of them does next.
type model[S comparable] struct {
	threads int
	// step lets a thread take its next step; false: it can't now, or has ended.
	step func(s S, thread int) (next S, can bool)
	// wrong says what is wrong with a state, and with one in which nobody can go on.
	wrong func(s S, ended bool) string
}

// check goes through all interleavings from a state, and returns what is wrong with
// the first bad one and how many states there are.
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

// An endpoint that is removed while requests are routed there and end. The slot of
// the endpoint is given back once, when nobody is on it any more.
type departure struct {
	requests  int8
	removed   bool
	departing bool
	lock      int8 // 1 + the thread that holds Router.mu; 0: nobody
	freed     int8
	at        [4]int8 // of each thread, its next step; ended: 9
	on        [4]bool // a request that was let in and has not ended
}

const ended = 9

// departures is the model: threads 0 to 2 route a request and end it, thread 3
// removes the endpoint. early is a mistake: to look for the removal before counting.
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
			case 1: // and then looks
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
					*at = 3 // this one was the last
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

// A slot for leases: its holder closes it, twice at once, the reaper closes it too,
// and another request comes into it.
type slot struct {
	open       bool
	generation int8
	free       int8 // how often it is in the list
	closed     [3]int8
	at         [4]int8
	took       int8 // the generation that the newcomer has
}

// leaseSlots is the model: threads 0 and 1 call Done of the first lease, thread 2 reaps
// whatever it finds, thread 3 opens a second lease in the slot as soon as it is free,
// and closes it. careless is a mistake: not to look at the generation.
func leaseSlots(careless bool) model[slot] {
	return model[slot]{
		threads: 4,
		step: func(s slot, i int) (slot, bool) {
			at := &s.at[i]
			close := func(generation int8) { // under the slot's lock
				if s.open && (careless || generation == s.generation || generation == 0) {
					s.open = false
					s.closed[s.generation]++
					*at = 1
					return
				}
				*at = ended
			}
			switch {
			case *at == ended:
				return s, false
			case *at == 1 && i < 3, *at == 3: // behind the lock: into the list of the free
				s.free++
				*at = ended
			case i < 2:
				close(1)
			case i == 2:
				close(0) // whoever has it
			case *at == 0: // Route takes it from the list
				if s.free == 0 {
					return s, false
				}
				s.free--
				*at = 1
			case *at == 1:
				s.generation++
				s.took = s.generation
				s.open = true
				*at = 2
			case *at == 2:
				if s.open && s.generation == s.took {
					s.open = false
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
			case last && (s.open || s.closed[1] != 1 || s.closed[2] != 1 || s.free != 1):
				return "a lease is never closed, or its slot lost"
			}
			return ""
		},
	}
}

func TestLeaseSlotInAllInterleavings(t *testing.T) {
	start := slot{open: true, generation: 1}
	wrong, states := leaseSlots(false).check(start)
	assert.Empty(t, wrong)
	t.Logf("%d states", states)
	// With a Done that does not look at the generation a holder that is late closes
	// the lease of the next one. It is closed once all the same: so look at who did it.
	late := leaseSlots(true)
	late.wrong = func(s slot, _ bool) string {
		if s.closed[2] > 0 && s.at[3] <= 2 && s.at[2] != 1 && s.at[2] != ended {
			return "somebody else's lease is closed"
		}
		return ""
	}
	wrong, _ = late.check(start)
	assert.Contains(t, wrong, "somebody else's lease is closed", "the checker finds nothing")
}
