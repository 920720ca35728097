package delay

import (
	"math"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// Config configures a [Marginal]. The zero value is a usable default.
type Config struct {
	// FirstTokenWeight is how many milliseconds of decoding a millisecond of waiting for
	// the first token of a stream counts as. At 1, whole responses are as short as
	// possible; the larger it is, the sooner they begin, and the later they end. Zero:
	// measured, as 1 + (E2E / TTFT)^0.6, between adding up milliseconds and adding up
	// relative delays.
	FirstTokenWeight float64
	// MaxKinds bounds the number of pairs of served model and variant that are
	// learned. A pair is learned once a request for it has been completed, or, if its
	// variant has a name, answered. One more replaces the least used one when it
	// is used more. Zero: 64.
	MaxKinds int
}

const defaultMaxKinds = 64

func (c *Config) validate() error {
	if !(c.FirstTokenWeight >= 0) || math.IsInf(c.FirstTokenWeight, 1) {
		return check.Bad("delay.Config.FirstTokenWeight", "is negative or not finite")
	}
	return check.Default("delay.Config.MaxKinds", &c.MaxKinds, defaultMaxKinds)
}

// Marginal is a Scorer, and the Predictor of its latencies: put the same one into
// both places of a policy. With another Predictor, its predictions are used as the
// request's own latencies.
//
// The lowest cost scores 1, twice that cost scores one half. Everything is learned
// from the responses, per served model and variant; before there are any, costs are
// in prompt tokens.
//
// Make one with [New]. It is safe for concurrent use, belongs to one router and
// allocates nothing in a decision.
type Marginal interface {
	endpick.Predictor
	endpick.Scorer
	// Loads are what servers that load models have loaded for requests, by model: of those that servers
	// have, the first 1,024 that were asked for.
	Loads() []Loads
}

type marginal struct {
	endpick.Exclusive
	config Config
	work   sync.Pool // *decision

	mu        sync.RWMutex // guards the fields below
	learned   learned
	leases    endpick.PerLease[lease]
	pending   []pending
	loading   uint64 // loads that were decided upon
	endpoints endpick.PerEndpoint[endpoint]
}

// New returns a Marginal that has learned nothing, or an [endpick.ConfigError].
func New(config Config) (Marginal, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	m := &marginal{config: config}
	m.work.New = func() any { return new(decision) }
	m.learned.start(config.MaxKinds)
	return m, nil
}

func (*marginal) Name() string { return "marginal-delay" }

// Score implements [endpick.Scorer].
func (m *marginal) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for {
		loads, version := m.score(req, candidates, dst)
		if !loads {
			return
		}
		best := endpick.MaxScore{}.Pick(req, candidates, dst)
		if m.reserve(req, &candidates[best], version) {
			return
		}
	}
}

// score is Score, and reports whether the best candidate would have to load a model.
func (m *marginal) score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) (loads bool, version uint64) {
	d := m.decide(req, candidates)
	defer d.end()
	d.survey()
	least := math.Inf(1)
	var one cost
	for i := range candidates {
		d.cost(&candidates[i], &one)
		dst[i] = one.sum()
		if dst[i] < least {
			least = dst[i]
			loads = one.loads
		}
	}
	for i, sum := range dst {
		switch {
		case !finite(sum):
			dst[i] = 0
		case sum <= least: // both may be zero
			dst[i] = 1
		default:
			dst[i] = least / sum
		}
	}
	return loads, m.loading
}

// Explain writes the parts of each candidate's cost, for receipts.
func (m *marginal) Explain(req *endpick.Request, candidates []endpick.Candidate, dst []string) {
	d := m.decide(req, candidates)
	defer d.end()
	d.survey()
	var one, least cost
	for i := range candidates {
		if d.cost(&candidates[i], &one); i == 0 || one.sum() < least.sum() {
			least = one
		}
	}
	for i := range candidates {
		d.cost(&candidates[i], &one)
		var goes []string
		d.load(&candidates[i], func(model string) { goes = append(goes, model) })
		dst[i] = one.text(d.unit(), goes, &least)
	}
}

// Predict implements [endpick.Predictor]. It predicts from measurements on the
// same kind of server, for a new kind on all others. Nine in ten requests stay
// below the upper bounds.
func (m *marginal) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	d := m.decide(req, candidates)
	defer d.end()
	if req.InputTokens <= 0 || m.learned.common.labels == 0 {
		return
	}
	for i := range candidates {
		d.predict(&candidates[i])
	}
}

// predict sets the prediction of a candidate.
func (d *decision) predict(c *endpick.Candidate) {
	d.at(c)
	first, each := d.latency(c)
	if !finite(first) || !finite(each) {
		return
	}
	p := &c.Prediction
	p.Has |= endpick.TTFT
	p.TTFT, p.TTFTUpper = duration(first), duration(first*d.late)
	if d.req.Stream {
		p.Has |= endpick.TPOT
		p.TPOT, p.TPOTUpper = duration(each), duration(each*d.slow)
		return
	}
	whole := first + d.n*each
	p.Has |= endpick.E2E
	p.E2E, p.E2EUpper = duration(whole), duration(whole*max(d.late, d.slow))
}

// milliseconds is negative if the clock was set back.
func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// duration is capped at maxLatency.
func duration(ms float64) time.Duration {
	return time.Duration(min(ms, maxLatency) * float64(time.Millisecond))
}

// nanoseconds is t.UnixNano, clamped so that differences don't overflow: from 2116 on, time stands still.
func nanoseconds(t time.Time) int64 { return max(math.MinInt64/2, min(t.UnixNano(), math.MaxInt64/2)) }

// finite reports whether a time is possible.
func finite(ms float64) bool { return ms >= 0 && !math.IsInf(ms, 1) }

// maxLatency is the longest latency that is predicted or learned, in milliseconds.
const maxLatency = 24 * 3600 * 1e3
