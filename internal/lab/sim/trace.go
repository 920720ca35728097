package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/endpick/endpick"
)

// Record is one recorded request: lengths, times and opaque block hashes, never
// text. All trace formats are read into it; package transport/recording has the
// one that is also written.
type Record struct {
	ArrivalMillis float64 // since the start of the recording
	InputTokens   int
	OutputTokens  int
	// Blocks are chained ids of the prompt's blocks of BlockTokens tokens, the last of
	// which may be partial: equal ids mean equal tokens from the head on.
	Blocks []uint64
	// BlockTokens is a multiple of the package's block size, which 0 stands for.
	BlockTokens int

	Model    string
	Tenant   string
	Session  string
	Priority int
	// Targets in milliseconds; 0: none.
	TTFTTargetMillis float64
	TPOTTargetMillis float64

	// What was observed, in milliseconds since the start of the recording; 0: not
	// known.
	FirstTokenMillis float64
	LastTokenMillis  float64
	CachedTokens     *int // nil: not reported
	Endpoint         string
}

// check returns what is wrong, if anything is.
func (r *Record) check() error {
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"ArrivalMillis", r.ArrivalMillis}, {"TTFTTargetMillis", r.TTFTTargetMillis}, {"TPOTTargetMillis", r.TPOTTargetMillis},
		{"FirstTokenMillis", r.FirstTokenMillis}, {"LastTokenMillis", r.LastTokenMillis},
	} {
		if !(f.value >= 0 && f.value <= maxTraceMillis) {
			return fmt.Errorf("%s %v is not within [0, %v]", f.name, f.value, float64(maxTraceMillis))
		}
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"InputTokens", r.InputTokens}, {"OutputTokens", r.OutputTokens}} {
		if f.value < 1 || f.value > maxTraceTokens {
			return fmt.Errorf("%s %d is not within [1, %d]", f.name, f.value, maxTraceTokens)
		}
	}
	size := r.blockTokens()
	switch {
	case size < BlockTokens || size%BlockTokens != 0 || size > maxTraceTokens:
		return fmt.Errorf("BlockTokens %d is no multiple of %d", size, BlockTokens)
	case len(r.Blocks) > (r.InputTokens+size-1)/size:
		return fmt.Errorf("%s has %d blocks of %d tokens for a prompt of %d", "Blocks", len(r.Blocks), size, r.InputTokens)
	case r.CachedTokens != nil && (*r.CachedTokens < 0 || *r.CachedTokens > r.InputTokens):
		return fmt.Errorf("CachedTokens %d is not within [0, %d]", *r.CachedTokens, r.InputTokens)
	case r.LastTokenMillis > 0 && r.LastTokenMillis < r.FirstTokenMillis:
		return errors.New("LastTokenMillis is before the first token")
	}
	return nil
}

const (
	maxTraceMillis = 30 * 24 * 3600 * 1000
	maxTraceTokens = 1 << 24
)

func (r *Record) blockTokens() int { return cmp.Or(r.BlockTokens, BlockTokens) }

// request returns the record's request, with blocks cut to the package's size. A
// partial block gives its full pieces.
func (r *Record) request() Request {
	q := Request{
		InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, Whole: r.FirstTokenMillis == 0 && r.LastTokenMillis > 0,
		Model: r.Model, Tenant: r.Tenant, Session: r.Session, Priority: r.Priority,
		SLO: endpick.SLO{TTFT: fromMillis(r.TTFTTargetMillis), TPOT: fromMillis(r.TPOTTargetMillis)},
	}
	pieces := r.blockTokens() / BlockTokens
	n := min(len(r.Blocks)*pieces, r.InputTokens/BlockTokens)
	q.Blocks = make([]uint64, 0, n)
	hash := uint64(0)
	for i := range n {
		hash = chain(hash, r.Blocks[i/pieces]+uint64(i%pieces)*0x9e3779b97f4a7c15)
		q.Blocks = append(q.Blocks, hash)
	}
	return q
}

func fromMillis(ms float64) time.Duration {
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}

// Trace is a recorded workload, replayed in an open loop.
type Trace struct {
	Name    string // for errors
	Records []Record
	// Spread is the length of the ticks of a coarse recording: each request arrives
	// at a random time within its tick. 0: as recorded.
	Spread time.Duration
	// RateScale divides the times of a recording. 0 is 1.
	RateScale float64
}

// Start implements [Workload].
func (t *Trace) Start(seed uint64) (Source, error) {
	scale := cmp.Or(t.RateScale, 1)
	random := rand.New(rand.NewPCG(seed, 4))
	s := &traceSource{records: t.Records, order: make([]arrivalOf, len(t.Records))}
	for i := range t.Records {
		if err := t.Records[i].check(); err != nil {
			return nil, &TraceError{t.Name, i + 1, err}
		}
		at := t.Records[i].ArrivalMillis
		if t.Spread > 0 {
			at += random.Float64() * millis(t.Spread)
		}
		s.order[i] = arrivalOf{fromMillis(at / scale), i}
	}
	slices.SortFunc(s.order, func(a, b arrivalOf) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.record, b.record))
	})
	return s, nil
}

type arrivalOf struct {
	at     time.Duration
	record int
}

type traceSource struct {
	records []Record
	order   []arrivalOf // still to come
}

// Next implements [Source].
func (s *traceSource) Next() (time.Duration, bool) {
	if len(s.order) == 0 {
		return 0, false
	}
	return s.order[0].at, true
}

// Take implements [Source].
func (s *traceSource) Take() Request {
	i := s.order[0].record
	s.order = s.order[1:]
	r := s.records[i].request()
	r.Handle = i
	return r
}

// Done implements [Source]: an open loop waits for nobody.
func (s *traceSource) Done(*Request, time.Duration) {}
