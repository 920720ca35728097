package sim

import (
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// Merge is several workloads at once. Simultaneous requests come in the order
// of the workloads.
type Merge []Workload

// Start implements [Workload].
func (m Merge) Start(seed uint64) (Source, error) {
	s := &mergeSource{}
	for i, w := range m {
		source, err := w.Start(engine.Mix(seed + uint64(i)))
		if err != nil {
			return nil, err
		}
		s.sources = append(s.sources, source)
	}
	return s, nil
}

type mergeSource struct{ sources []Source }

func (s *mergeSource) first() (which int, at time.Duration, ok bool) {
	for i, source := range s.sources {
		if t, more := source.Next(); more && (!ok || t < at) {
			which, at, ok = i, t, true
		}
	}
	return which, at, ok
}

// Next implements [Source].
func (s *mergeSource) Next() (time.Duration, bool) {
	_, at, ok := s.first()
	return at, ok
}

// Take implements [Source].
func (s *mergeSource) Take() Request {
	which, _, _ := s.first()
	r := s.sources[which].Take()
	r.Handle = r.Handle*len(s.sources) + which
	return r
}

// Done implements [Source].
func (s *mergeSource) Done(r *Request, now time.Duration) {
	which := r.Handle % len(s.sources)
	own := *r
	own.Handle /= len(s.sources)
	s.sources[which].Done(&own, now)
}
