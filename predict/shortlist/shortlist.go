package shortlist

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/estimate"
	"github.com/endpick/endpick/predict"
)

// Config configures a [Filter]. Latency is required; the zero value of
// everything else is its default.
type Config struct {
	// Latency is the policy's predictor, whose models are used.
	Latency *predict.Latency
	// Size is how many candidates with the lowest estimate are predicted, at least 8. At most
	// 1⅛ times as many come from the other groups, which mostly overlap, and some eight at
	// random. Up to twice this many candidates are all predicted. Zero: 40.
	Size int
	// Threshold is that of the affinity gate: the share of the prompt, in (0, 1],
	// from which on a candidate counts as holding it. Zero: 0.80.
	Threshold float64
	// PrefillRate, in prompt tokens per second, is that of slo.BestFitConfig: it
	// weighs the delay for other requests on an endpoint. Zero: that does not count.
	PrefillRate float64
	// OutputTokens is used if Request.ExpectedOutputTokens is unknown. Zero: 300, as
	// in slo.HeadroomConfig.
	OutputTokens int
}

const (
	defaultSize         = 40
	leastSize           = 8
	defaultThreshold    = 0.80
	defaultOutputTokens = 300
	// byChance is the mean number of candidates that are kept at random.
	byChance = 8
)

func (c *Config) validate() error {
	bad := func(field, reason string) error {
		return &endpick.ConfigError{Field: "shortlist.Config." + field, Reason: reason}
	}
	switch {
	case c.Latency == nil:
		return bad("Latency", "is nil")
	case c.Size != 0 && c.Size < leastSize:
		return bad("Size", "is less than 8")
	case !(c.Threshold >= 0 && c.Threshold <= 1):
		return bad("Threshold", "is not in [0, 1]")
	case !(c.PrefillRate >= 0 && c.PrefillRate <= 1e12):
		return bad("PrefillRate", "is not a finite rate")
	case c.OutputTokens < 0:
		return bad("OutputTokens", "is negative")
	}
	if c.Size == 0 {
		c.Size = defaultSize
	}
	if c.Threshold == 0 {
		c.Threshold = defaultThreshold
	}
	if c.OutputTokens == 0 {
		c.OutputTokens = defaultOutputTokens
	}
	return nil
}

// Filter is a shortlist. It has no opinion, so that all are predicted, where an estimate
// says too little: for requests with an SLO, which should go where they only just fit;
// while a running request has a target for the time per token; for models that have learned
// from less than 5,000 responses; for kinds of endpoint that are not predicted yet; and if
// most of those that it would choose have stopped answering.
//
// A Filter is safe for concurrent use and belongs to one router.
type Filter struct {
	endpick.OneRouter
	config Config
	model  estimate.Model
	bound  atomic.Int64 // open requests with a target for the time per token
	work   sync.Pool    // *work
	ratios ratios
}

var (
	_ endpick.Filter         = (*Filter)(nil)
	_ endpick.RoutedObserver = (*Filter)(nil)
	_ endpick.DoneObserver   = (*Filter)(nil)
)

// New returns a Filter, or an [endpick.ConfigError].
func New(config Config) (*Filter, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	f := &Filter{config: config, model: estimate.ModelOf(config.Latency.Source)}
	f.work.New = func() any { return new(work) }
	return f, nil
}

// Name is what receipts show.
func (*Filter) Name() string { return "shortlist" }

// hasTarget reports whether a request restricts those that come after it.
func hasTarget(req *endpick.Request) bool { return req.SLO.TPOT > 0 && req.Stream }

// Routed implements [endpick.RoutedObserver].
func (f *Filter) Routed(e *endpick.Event) {
	if hasTarget(e.Request) {
		f.bound.Add(1)
	}
	if p, ok := f.price(e.Request); ok {
		f.ratios.learn(&p, e.Request, e.Candidates, e.Candidate.Ref)
	}
}

// Done implements [endpick.DoneObserver].
func (f *Filter) Done(e *endpick.Event, _ *endpick.Outcome) {
	if hasTarget(e.Request) {
		f.bound.Add(-1)
	}
}

// price is how the candidates of one request are estimated. Times are in milliseconds.
type price struct {
	first, rest estimate.Linear
	model       uint32  // model of the estimates and ratios
	output      float64 // expected output tokens; zero if the whole is estimated at once
	perToken    float64 // the delay for one other request per token to be computed
}

// price returns the price of a request; false if it can't be estimated.
func (f *Filter) price(req *endpick.Request) (p price, ok bool) {
	p.first, p.rest, p.model, ok = f.model.Estimate(req)
	p.model <<= 1
	if req.Stream {
		p.model |= 1
		p.output = cmp.Or(req.ExpectedPerResponse(), float64(f.config.OutputTokens))
	}
	if f.config.PrefillRate > 0 {
		p.perToken = 1000 / f.config.PrefillRate
	}
	return p, ok
}

// work is the working memory of one call.
type work struct {
	whole, plain, holds, some, first lowest
	marked                           []uint64 // one bit per candidate
	chosen                           []int32
}

func (w *work) mark(index int32) { w.marked[index/64] |= 1 << (index % 64) }

var saltChance = endpick.Salt("predict/shortlist")

// Filter implements [endpick.Filter].
func (f *Filter) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	if len(candidates) <= 2*f.config.Size || req.SLO.Asked() || f.bound.Load() > 0 {
		return candidates
	}
	p, ok := f.price(req)
	if !ok {
		return candidates
	}
	w := f.work.Get().(*work)
	defer f.work.Put(w)
	if !f.choose(w, &p, req, candidates) {
		return candidates
	}
	for i, at := range w.chosen {
		if int(at) != i {
			candidates[i], candidates[at] = candidates[at], candidates[i]
		}
	}
	return candidates[:len(w.chosen)]
}

// choose fills w.chosen in ascending order; false: no opinion.
func (f *Filter) choose(w *work, p *price, req *endpick.Request, candidates []endpick.Candidate) bool {
	w.whole.begin(f.config.Size)
	w.plain.begin(f.config.Size / 2)
	w.holds.begin(f.config.Size / 4)
	w.some.begin(f.config.Size / 8)
	w.first.begin(f.config.Size / 4)
	words := (len(candidates) + 63) / 64
	w.marked = slices.Grow(w.marked[:0], words)[:words]
	clear(w.marked)
	if !f.offer(w, p, req, candidates) {
		return false
	}
	for _, l := range [...]*lowest{&w.whole, &w.plain, &w.holds, &w.some, &w.first} {
		for _, it := range l.items {
			w.mark(it.index)
		}
	}
	w.chosen = w.chosen[:0]
	for i, word := range w.marked {
		for ; word != 0; word &= word - 1 {
			w.chosen = append(w.chosen, int32(i*64+bits.TrailingZeros64(word)))
		}
	}
	return f.model.Silent(req, candidates, w.chosen) <= len(w.chosen)/2
}

// offer examines every candidate; false if one can't be estimated.
func (f *Filter) offer(w *work, p *price, req *endpick.Request, candidates []endpick.Candidate) bool {
	mask, draw := lot(req, len(candidates))
	known, some := "", false // a variant known to be predicted
	f.ratios.mu.RLock()
	defer f.ratios.mu.RUnlock()
	levels := f.ratios.level(p.model)
	by := levels.whole()
	for i := range candidates {
		c := &candidates[i]
		r := f.ratios.of(c.Ref, p.model)
		if r == nil {
			// It will be predicted soon, unless its whole kind is not predicted yet.
			if v := c.Endpoint.Variant; !some || v != known {
				if !f.model.Predicts(req, v) {
					return false
				}
				known, some = v, true
			}
			r = &unknown
		}
		anew := float64(c.NewTokens(req))
		others := float64(float64(anew*c.BatchSize()) * p.perToken)
		share, level := 0.0, &by[0]
		if c.PrefixTokens > 0 {
			share = c.MatchShare(req)
			level = &by[matchOf(share)]
		}
		first, rest := p.first.Of(c, anew)*level.first, p.rest.Of(c, anew)*level.rest
		plain := rest + others
		if p.output > 0 {
			plain = first + float64(p.output*rest) + others
		}
		first, rest = first*float64(r.first), rest*float64(r.rest)
		whole := rest + others
		if p.output > 0 {
			whole = first + float64(p.output*rest) + others
		}
		it := item{index: int32(i)}
		// Most are not among the lowest; this saves them the call.
		if !(whole > w.whole.worst) {
			w.whole.offer(req, candidates, &it, whole)
		}
		if !(plain > w.plain.worst) {
			w.plain.offer(req, candidates, &it, plain)
		}
		if !(first > w.first.worst) {
			w.first.offer(req, candidates, &it, first)
		}
		if c.PrefixTokens > 0 {
			// What the trees add for a match also depends on the load, so a few of these are predicted.
			if !(whole > w.some.worst) {
				w.some.offer(req, candidates, &it, whole)
			}
			if share >= f.config.Threshold { // like the gate
				w.holds.offer(req, candidates, &it, whole)
			}
		}
		if (c.IDHash^draw)&mask == 0 || r.chosen {
			w.mark(it.index)
		}
	}
	return true
}

// lot selects candidates at random: those whose ID hashes have the same bits under the
// mask as the draw.
func lot(req *endpick.Request, n int) (mask, draw uint64) {
	mask = 1
	for mask < uint64(n)/byChance {
		mask <<= 1
	}
	return mask - 1, uint64(req.Chance(saltChance) * (1 << 52))
}
