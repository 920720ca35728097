package endpick

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Of thousands of endpoints only a few change between two decisions. A decision leaves
// its candidates to the next one, which puts back those that filters have moved, looks at
// the version of each endpoint and fills those anew that have changed.

const versionChunk = 1024

// versions counts, by slot, how often the state of an endpoint has changed: after each
// change. They lie side by side, so that to look at all of them reads little.
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

// changed is to be called after every change of what fill reads.
func (r *Router) changed(s *endpointState) {
	slot := s.ref.Slot
	r.fleet.versions.load()[slot/versionChunk][slot%versionChunk].Add(1)
}

// rows are candidates by their place in a pool, as decisions leave them to the next.
type rows struct {
	all  []Candidate
	refs []Ref    // whose place it is
	seen []uint32 // the version of the endpoint that the row was filled from
	from []member // the pool that refs are of

	// predicted is how many rows, the first, may have a prediction.
	predicted int
	// The reports of all rows that are not filled anew are from between these times.
	oldest, newest time.Duration
}

// grow makes room for so many, and reports whether there was none.
func (s *rows) grow(n int) bool {
	if len(s.all) >= n {
		return false
	}
	n += n/4 + 8
	*s = rows{all: make([]Candidate, n), refs: make([]Ref, n), seen: make([]uint32, n), oldest: math.MaxInt64, newest: math.MinInt64}
	return true
}

// belong makes the places those of a pool. A row that is not of the endpoint which has
// the place, as it is described now, is nobody's.
func (s *rows) belong(pool []member) {
	if len(s.from) == len(pool) && (len(pool) == 0 || &s.from[0] == &pool[0]) {
		return // what has been published never changes
	}
	s.from = pool
	for i, m := range pool {
		if c := &s.all[i]; c.Endpoint != m.endpoint || s.refs[i] != m.state.ref {
			c.Ref, s.refs[i] = Ref{}, m.state.ref
		}
	}
}

// forgetAll makes every row nobody's.
func (s *rows) forgetAll() {
	for i := range s.all {
		s.all[i].Ref = Ref{}
	}
	s.oldest, s.newest = math.MaxInt64, math.MinInt64
}

// unpredict takes away what was predicted.
func (s *rows) unpredict() {
	for i := range s.all[:s.predicted] {
		if c := &s.all[i]; c.Prediction.Has != 0 {
			c.Prediction = Prediction{}
		}
	}
	s.predicted = 0
}

// refresh makes rows of the pool, as its endpoints are now, and returns the signals that
// all of them report.
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
		if c.Ref == ref && seen[i] == version || c.Ref != ref && s.bringHome(i, n) && seen[i] == version {
			c.PrefixTokens = 0
			continue
		}
		m := &d.pool[i]
		report := m.state.fill(c, m.endpoint, reports)
		reported &= c.Reported
		if c.Reported == allSignals {
			s.oldest, s.newest = min(s.oldest, report.at), max(s.newest, report.at)
		} else {
			version-- // fillAbsent is going to change it, depending on others
		}
		seen[i] = version
	}
	return reported
}

// bringHome exchanges the row at a place, which filters have moved there, for that of the
// endpoint that the place belongs to, as long as one leads to the next, and reports
// whether it has come to that. What has been seen of an endpoint stands at its place,
// wherever its row is.
func (s *rows) bringHome(i, n int) bool {
	for c := &s.all[i]; c.Ref != s.refs[i]; {
		home := s.placeOf(c.Ref, n)
		if home < 0 || s.all[home].Ref == c.Ref {
			return false // nobody's, or of an endpoint that is not of this pool
		}
		s.all[i], s.all[home] = s.all[home], s.all[i]
	}
	return true
}

// placeOf returns the place of an endpoint among the first n, which are ordered by slot;
// -1: it has none.
func (s *rows) placeOf(ref Ref, n int) int {
	if i := int(ref.Slot); i < n && s.refs[i] == ref {
		return i // as it is where all serve what is asked for
	}
	i, found := slices.BinarySearchFunc(s.refs[:n], ref.Slot, func(r Ref, slot uint32) int { return cmp.Compare(r.Slot, slot) })
	if !found || s.refs[i] != ref {
		return -1
	}
	return i
}
