package delay

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/endpick/endpick"
)

// What a server that loads models has in memory: what it says, and what was sent there since. What
// loads cost is in loads.go.

// held is what the router knows of a model at a server, beside what the server has said last.
type held struct {
	model string
	open  int // requests for it that are there,
	begun int // and how many of them it answers
	// context is what the last one that was sent has asked for; 0: any.
	context int
	used    int64 // when the last one was sent
	since   int64 // when a load began for a request that still waits; 0: none
	// by is the request for which the load has been decided upon, until it is routed; 0: it is.
	by uint64
	// moved says that it has come into memory (here) or had to go since the server has spoken.
	moved, here bool
	movedAt     int64
}

// residents is what is known of a server's models.
type residents struct {
	listed []endpick.Resident // what the server has said last
	held   []held
	// The most that were in memory at a time, as the server has said; full: one had to go for another.
	models, bytes float64
	full          bool
	loadedAt      int64 // when a load was seen to end
}

// of returns what the router knows of a model; nil if it has sent nobody there for it.
func (s *residents) of(model string) *held {
	if s != nil {
		for i := range s.held {
			if s.held[i].model == model {
				return &s.held[i]
			}
		}
	}
	return nil
}

// state is where a model is now, to a request; since is when its load has begun, 0 if that is not known.
func (s *residents) state(e *endpick.Endpoint, r *endpick.Resident, now int64, request uint64) (state endpick.Residency, since int64) {
	h := s.of(r.Model)
	moved := h != nil && h.moved && (s.knows(e) || !e.ResidentsAt.IsZero() && h.movedAt > nanoseconds(e.ResidentsAt))
	switch {
	case h != nil && h.since > 0 && (h.by == 0 || h.by != request):
		return endpick.Loading, h.since
	case moved && h.here:
		return endpick.InMemory, 0
	case moved:
		return endpick.OnDisk, 0
	case r.State == endpick.InMemory && !r.Until.IsZero() && nanoseconds(r.Until) < now && (h == nil || h.open == 0):
		return endpick.OnDisk, 0
	}
	return r.State, 0
}

// reloads reports whether a model that is in memory is loaded anew for a request.
func (s *residents) reloads(r *endpick.Resident, req *endpick.Request) bool {
	known := r.Context
	if h := s.of(r.Model); h != nil && h.context > 0 {
		known = h.context
	}
	return req.Context > 0 && known > 0 && req.Context != known
}

// knows reports whether the endpoint has said nothing new.
func (s *residents) knows(e *endpick.Endpoint) bool {
	return len(s.listed) > 0 && &s.listed[0] == &e.Residents[0]
}

// hear takes notice of what a server says.
func (s *residents) hear(e *endpick.Endpoint) {
	if s.knows(e) {
		return
	}
	models, bytes, came, gone := 0.0, 0.0, false, false
	was := func(model string) bool {
		return slices.ContainsFunc(s.listed, func(r endpick.Resident) bool { return r.Model == model && r.State != endpick.OnDisk })
	}
	for i := range e.Residents {
		r := &e.Residents[i]
		if r.State == endpick.OnDisk {
			gone = gone || was(r.Model)
			continue
		}
		models++
		bytes += float64(r.Bytes)
		came = came || !was(r.Model)
	}
	s.full = s.full || came && gone
	s.models, s.bytes, s.listed = max(s.models, models), max(s.bytes, bytes), e.Residents
	s.held = slices.DeleteFunc(s.held, func(h held) bool {
		return h.open == 0 && !slices.ContainsFunc(e.Residents, func(r endpick.Resident) bool { return r.Model == h.model })
	})
	for i := range s.held {
		if h := &s.held[i]; e.ResidentsAt.IsZero() || h.movedAt <= nanoseconds(e.ResidentsAt) {
			h.moved = false
		}
	}
}

// displaced calls yield with the models that have to go when another one is loaded, and how likely that is:
// those that were asked for least recently, as long as there is more in memory than fits. Those with requests
// under way go last. A server that was never full has room if others of its kind, which had ever this many,
// have more in memory now; if not, of servers with n models one in n + 1 has no room for one more.
func (s *residents) displaced(
	e *endpick.Endpoint, r *endpick.Resident, now int64, request uint64, ever int,
	yield func(u *endpick.Resident, busy bool, likely float64),
) {
	models, bytes := 1.0, float64(r.Bytes)
	type victim struct {
		*endpick.Resident
		busy int // 1: it has requests
		used int64
	}
	var room [16]victim
	there := room[:0]
	for i := range e.Residents {
		u := &e.Residents[i]
		if state, _ := s.state(e, u, now, request); state == endpick.OnDisk || u == r {
			continue
		}
		v := victim{Resident: u}
		if h := s.of(u.Model); h != nil {
			v.busy, v.used = min(h.open, 1), h.used
		}
		models++
		bytes += float64(u.Bytes)
		there = append(there, v)
	}
	most, mostBytes, likely := 0.0, math.Inf(1), 1.0
	switch {
	case e.MaxResidents > 0:
		most = float64(e.MaxResidents)
	case s != nil && s.full:
		most, mostBytes = s.models, s.bytes
	case len(there) < ever:
		return
	default:
		most, likely = models-1, 1/models
	}
	slices.SortFunc(there, func(a, b victim) int {
		return cmp.Or(a.busy-b.busy, cmp.Compare(a.used, b.used), a.Until.Compare(b.Until), strings.Compare(a.Model, b.Model))
	})
	for _, v := range there {
		if models <= most && bytes <= mostBytes {
			return
		}
		models--
		bytes -= float64(v.Bytes)
		yield(v.Resident, v.busy > 0, likely)
	}
}

// sent records that a request goes to a server that has its model, and reports where that is, to it.
func (s *residents) sent(e *endpick.Endpoint, r *endpick.Resident, now int64, req *endpick.Request) endpick.Residency {
	state, _ := s.state(e, r, now, 0)
	if state == endpick.InMemory && s.reloads(r, req) {
		state = endpick.OnDisk
	}
	if state == endpick.OnDisk {
		s.displaced(e, r, now, 0, math.MaxInt, func(u *endpick.Resident, _ bool, _ float64) {
			v := s.know(u)
			v.moved, v.here, v.movedAt = true, false, now
		})
	}
	h := s.know(r)
	h.open++
	h.used, h.context = now, req.Context
	if state == endpick.OnDisk {
		h.since, h.by, h.moved = now, 0, false
	}
	return state
}

// know is of, for a model that is to be remembered.
func (s *residents) know(r *endpick.Resident) *held {
	if h := s.of(r.Model); h != nil {
		return h
	}
	s.held = append(s.held, held{model: r.Model})
	return &s.held[len(s.held)-1]
}

// answered records that a model has answered a request, and returns how many it answers now. One that
// has to go answers those that it has.
func (s *residents) answered(model string, now int64) (begun int) {
	h := s.of(model)
	if h == nil {
		return 0
	}
	if h.since > 0 {
		s.loadedAt = now
	}
	if h.begun++; h.since > 0 || !h.moved {
		h.since, h.moved, h.here, h.movedAt = 0, true, true, now
	}
	return h.begun
}

// missed records that a model had to be loaded although it was thought to be in memory: there is less
// room than that.
func (s *residents) missed(e *endpick.Endpoint, now int64) {
	models := 0.0
	for i := range e.Residents {
		if state, _ := s.state(e, &e.Residents[i], now, 0); state != endpick.OnDisk {
			models++
		}
	}
	s.full, s.models, s.loadedAt = true, max(models-1, 1), now
}

// left records that a request has left. A load for which nobody waits any more may go on: the server
// will say so.
func (s *residents) left(model string, begun bool) {
	h := s.of(model)
	if h == nil {
		return
	}
	if begun {
		h.begun = max(h.begun-1, 0)
	}
	if h.open = max(h.open-1, 0); h.open == 0 {
		h.since = 0
	}
}
