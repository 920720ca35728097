package predict

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/learn"
	"github.com/endpick/endpick/internal/portable"
)

// An openRequest is what was known when a request was dispatched.
type openRequest struct {
	generation uint32
	model      *servedModel // nil: nobody is here, or nothing is learned from it
	variant    int
	stream     bool
	firstToken bool
	ref        endpick.Ref
	newTokens  int
	routedAt   time.Time
	row        [learn.FeatureCount]float64
	predicted  [targets]float64 // milliseconds; 0: none
	upper      [targets]float64
}

// Routed notes what was known when the request was dispatched, of a request of known length.
func (l *Latency) Routed(e *endpick.Event) {
	slot := l.open.at(e.Lease.Slot)
	slot.mu.Lock()
	defer slot.mu.Unlock()
	o := &slot.request
	o.generation = e.Lease.Generation
	o.model = nil
	variant := l.variant(e.Candidate.Endpoint.Variant)
	if variant < 0 || e.Request.InputTokens <= 0 {
		return
	}
	o.model = l.model(modelName(e.Request))
	o.variant = variant
	o.stream = e.Request.Stream
	o.firstToken = false
	o.ref = e.Candidate.Ref
	o.newTokens = e.Candidate.NewTokens(e.Request)
	o.routedAt = e.RoutedAt
	f := l.features(e.Request, e.Candidate, variant, e.RoutedAt)
	f.Row(o.row[:])
	p := &e.Candidate.Prediction
	o.predicted = [targets]float64{inMilliseconds(p.TTFT), inMilliseconds(p.TPOT), inMilliseconds(p.E2E)}
	o.upper = [targets]float64{inMilliseconds(p.TTFTUpper), inMilliseconds(p.TPOTUpper), inMilliseconds(p.E2EUpper)}
	for i, set := range targetSets {
		if p.Has&set == 0 {
			o.predicted[i] = 0
		}
	}
}

func inMilliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// FirstToken labels the time to first token.
func (l *Latency) FirstToken(e *endpick.Event) {
	o, ok := l.open.take(e.Lease, func(o *openRequest) { o.firstToken = true })
	if !ok {
		return
	}
	l.rates.add(o.ref, o.newTokens, e.Now)
	if latency, ok := e.TTFT(); ok {
		o.model.label(ttft, &o, latency, e.Now)
	}
}

// Done labels the time per output token, or that of the whole request if it did not stream. What failed says nothing,
// and of a canceled request only the rate of its tokens counts.
func (l *Latency) Done(e *endpick.Event, outcome *endpick.Outcome) {
	o, ok := l.open.take(e.Lease, func(o *openRequest) { o.model = nil })
	if !ok {
		return
	}
	switch {
	case outcome.Status != endpick.Completed && outcome.Status != endpick.Canceled:
	case o.stream:
		if latency, ok := e.TPOT(); ok {
			o.model.label(tpot, &o, latency, e.Now)
		}
	case outcome.Status == endpick.Completed:
		l.rates.add(o.ref, o.newTokens, e.Now)
		o.model.label(e2e, &o, e.Now.Sub(o.routedAt), e.Now)
	}
}

// EndpointRemoved forgets the endpoint's prefill rate.
func (l *Latency) EndpointRemoved(ref endpick.Ref) { l.rates.forget(ref) }

const chunkSize = 256

// A chunked is a slice that grows without moving its elements, so that they can be read while it grows.
type chunked[T any] struct {
	mu     sync.Mutex // guards growth
	chunks atomic.Pointer[[]*[chunkSize]T]
}

// get returns an element, or nil if it has never been made.
func (c *chunked[T]) get(i uint32) *T {
	chunks := c.chunks.Load()
	if chunks == nil || int(i/chunkSize) >= len(*chunks) {
		return nil
	}
	return &(*chunks)[i/chunkSize][i%chunkSize]
}

// at returns an element, made if need be.
func (c *chunked[T]) at(i uint32) *T {
	if v := c.get(i); v != nil {
		return v
	}
	c.mu.Lock()
	var grown []*[chunkSize]T
	if old := c.chunks.Load(); old != nil {
		grown = append(grown, *old...)
	}
	for uint32(len(grown)) <= i/chunkSize {
		grown = append(grown, new([chunkSize]T))
	}
	c.chunks.Store(&grown)
	c.mu.Unlock()
	return c.get(i)
}

// An openTable holds the open requests by the slot of their lease.
type openTable struct {
	chunked[struct {
		mu      sync.Mutex
		request openRequest
	}]
}

// take returns a copy of the request, changed, if it is there and something is to be learned from it.
func (t *openTable) take(key endpick.LeaseRef, change func(*openRequest)) (openRequest, bool) {
	slot := t.get(key.Slot)
	if slot == nil {
		return openRequest{}, false
	}
	slot.mu.Lock()
	defer slot.mu.Unlock()
	o := slot.request
	if o.generation != key.Generation || o.model == nil {
		return openRequest{}, false
	}
	change(&slot.request)
	return o, true
}

// overdue tells of the requests to a model that are older than their prediction of a target. A first token ends the
// wait that ttft is; that of a response that does not stream is not seen, and the tokens of one that does are not known
// before its end, so that tpot has no such requests.
func (t *openTable) overdue(m *servedModel, target learn.Target, now time.Time, add func(row []float64, atLeast float64)) {
	chunks := t.chunks.Load()
	if chunks == nil || target == tpot {
		return
	}
	for _, chunk := range *chunks {
		for i := range chunk {
			slot := &chunk[i]
			slot.mu.Lock()
			o := &slot.request
			age := inMilliseconds(now.Sub(o.routedAt))
			if o.model == m && !o.firstToken && o.stream == (target == ttft) &&
				o.predicted[target] > 0 && age > o.predicted[target] {
				add(o.row[:], age)
			}
			slot.mu.Unlock()
		}
	}
}

// A rateTable holds how fast each endpoint has prefilled of late, by the slot of the endpoint.
type rateTable struct {
	chunked[prefillRate]
}

// A prefillRate is a sum of tokens that fades. The three parts are read without a lock: a reader that comes between two
// writes sees a rate that is a few tokens off.
type prefillRate struct {
	mu         sync.Mutex // guards changes
	generation atomic.Uint32
	at         atomic.Int64  // nanoseconds since the epoch
	tokens     atomic.Uint64 // float bits, as of then
}

// of returns tokens a second.
func (t *rateTable) of(ref endpick.Ref, now time.Time) float64 {
	r := t.get(ref.Slot)
	if r == nil || r.generation.Load() != ref.Generation {
		return 0
	}
	return r.faded(now.UnixNano()) / rateWindow.Seconds()
}

func (r *prefillRate) faded(now int64) float64 {
	age := max(0, now-r.at.Load())
	return math.Float64frombits(r.tokens.Load()) * portable.Exp(-float64(age)/float64(rateWindow))
}

func (t *rateTable) add(ref endpick.Ref, tokens int, now time.Time) {
	r := t.at(ref.Slot)
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := float64(tokens)
	if r.generation.Load() == ref.Generation {
		sum += r.faded(now.UnixNano())
	}
	r.tokens.Store(math.Float64bits(sum))
	r.at.Store(max(now.UnixNano(), r.at.Load()))
	r.generation.Store(ref.Generation)
}

func (t *rateTable) forget(ref endpick.Ref) {
	if r := t.get(ref.Slot); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.generation.Load() == ref.Generation {
			r.generation.Store(0)
		}
	}
}
