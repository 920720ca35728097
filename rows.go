package endpick

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Of thousands of endpoints, only a few change between two decisions. So a decision
// leaves its candidates to the next one, which moves back those that filters have moved,
// compares the version of each endpoint, and refills only those that have changed.

const versionChunk = 1024

// versions counts, by slot, how often the state of an endpoint has changed. The
// counters are adjacent, so that scanning all of them touches little memory.
type versions struct {
	chunks atomic.Pointer[[]*[versionChunk]atomic.Uint32]
}

func (v *versions) load() []*[versionChunk]atomic.Uint32 {
	if chunks := v.chunks.Load(); chunks != nil {
		return *chunks
	}
	return nil
}

// grow makes room for a slot; Router.mu is held.
func (v *versions) grow(slot uint32) {
	chunks := v.load()
	for int64(slot) >= int64(len(chunks))*versionChunk {
		chunks = append(chunks[:len(chunks):len(chunks)], new([versionChunk]atomic.Uint32))
	}
	v.chunks.Store(&chunks)
}

// changed must be called after every change to what fill reads.
func (r *Router) changed(s *endpointState) {
	slot := s.ref.Slot
	r.fleet.versions.load()[slot/versionChunk][slot%versionChunk].Add(1)
}

// rows are candidates by their index in a pool, kept from one decision to the next.
type rows struct {
	all  []Candidate
	refs []Ref    // the endpoint at each index
	seen []uint32 // the version of the endpoint when its row was filled
	from []member // the pool that the indices refer to

	// predicted is the length of the head of rows that may have predictions.
	predicted int
	// The reports in rows that are not refilled were requested between these times.
	oldest, newest time.Duration
}

// grow makes room for n rows, and reports whether it had to allocate.
func (s *rows) grow(n int) bool {
	if len(s.all) >= n {
		return false
	}
	n += n/4 + 8
	*s = rows{all: make([]Candidate, n), refs: make([]Ref, n), seen: make([]uint32, n), oldest: math.MaxInt64, newest: math.MinInt64}
	return true
}

// belong binds the rows to a pool. A row is invalidated if its index now belongs to
// another endpoint, or to a changed description.
func (s *rows) belong(pool []member) {
	if len(s.from) == len(pool) && (len(pool) == 0 || &s.from[0] == &pool[0]) {
		return // published slices never change
	}
	s.from = pool
	for i, m := range pool {
		if c := &s.all[i]; c.Endpoint != m.endpoint || s.refs[i] != m.state.ref {
			c.Ref, s.refs[i] = Ref{}, m.state.ref
		}
	}
}

// forgetAll invalidates every row.
func (s *rows) forgetAll() {
	for i := range s.all {
		s.all[i].Ref = Ref{}
	}
	s.oldest, s.newest = math.MaxInt64, math.MinInt64
}

// unpredict clears all predictions.
func (s *rows) unpredict() {
	for i := range s.all[:s.predicted] {
		if c := &s.all[i]; c.Prediction.Has != 0 {
			c.Prediction = Prediction{}
		}
	}
	s.predicted = 0
}

// refresh brings the rows of the pool up to date, and returns the signals that all
// endpoints report.
func (r *Router) refresh(d *decision) Signals {
	s, n := &d.rows, len(d.pool)
	s.unpredict()
	d.grow(n)
	s.belong(d.pool)
	reports := r.reports(d.req.now)
	if s.oldest < reports.oldest || s.newest > reports.newest {
		s.forgetAll()
	}
	reported := allSignals
	chunks := r.fleet.versions.load()
	rows, seen := s.all[:n], s.seen[:n]
	for i, ref := range s.refs[:n] {
		c := &rows[i]
		version := chunks[ref.Slot/versionChunk][ref.Slot%versionChunk].Load()
		if c.Ref == ref && seen[i] == version {
			c.PrefixTokens, c.EvictedTokens = 0, 0
			continue
		}
		reported &= s.restore(i, d.pool, version, reports)
	}
	return reported
}

// restore brings row i up to date, whose endpoint is at this version, and returns the signals that
// the endpoint reports. It is not part of the loop in refresh so that the common case, an unchanged
// row, finds all it needs in registers.
func (s *rows) restore(i int, pool []member, version uint32, reports window) Signals {
	c := &s.all[i]
	if c.Ref != s.refs[i] && s.bringHome(i, len(pool)) && s.seen[i] == version {
		c.PrefixTokens, c.EvictedTokens = 0, 0
		return allSignals
	}
	report := pool[i].state.fill(c, pool[i].endpoint, reports)
	if c.Reported == allSignals {
		s.oldest, s.newest = min(s.oldest, report.at), max(s.newest, report.at)
	} else {
		version-- // fillAbsent will change it, depending on the others
	}
	s.seen[i] = version
	return c.Reported
}

// bringHome restores row i, which filters have moved, by following the cycle of swaps,
// and reports whether the row of the endpoint at i was found. What seen says of an
// endpoint stays at the endpoint's index, wherever its row is.
func (s *rows) bringHome(i, n int) bool {
	for c := &s.all[i]; c.Ref != s.refs[i]; {
		home := s.placeOf(c.Ref, n)
		if home < 0 || s.all[home].Ref == c.Ref {
			return false // invalid, or of an endpoint outside this pool
		}
		s.all[i], s.all[home] = s.all[home], s.all[i]
	}
	return true
}

// placeOf returns the index of an endpoint among the first n, which are ordered by slot,
// or -1.
func (s *rows) placeOf(ref Ref, n int) int {
	if i := int(ref.Slot); i < n && s.refs[i] == ref {
		return i // the common case: every endpoint serves the model, so index and slot agree
	}
	i, found := slices.BinarySearchFunc(s.refs[:n], ref.Slot, func(r Ref, slot uint32) int { return cmp.Compare(r.Slot, slot) })
	if !found || s.refs[i] != ref {
		return -1
	}
	return i
}
