package predict

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/predict/internal/learn"
)

const (
	// The most trees and samples that a model can have.
	maxTrees   = 1024
	maxSamples = 1<<20 - 1
	targets    = learn.Targets
	// maxLatency is the longest latency that is predicted or learned.
	maxLatency = 24 * time.Hour
)

// LatencyConfig configures a [Latency]. The zero value is a usable default.
type LatencyConfig struct {
	// Synchronous fits models within the call that makes a fit due, so that what is learned
	// depends only on the order of the calls. It is for simulators and tests.
	Synchronous bool
	// Share is how much of one core fitting may take, in (0, 1]; 0 means 0.2.
	Share float64
	// Trees is the number of trees in a model, at most 1,024; 0 means 100.
	Trees int
	// Samples bounds the samples that each model is fitted to, at most 1,048,575; 0 means 25,000.
	// A sample takes about 130 bytes, and a served model has up to three models.
	Samples int
	// MaxAge is the age beyond which samples are dropped, counted from the newest, as long as a
	// thousand remain; 0 means never.
	MaxAge time.Duration
	// RefitEvery is the number of new samples that triggers a refit. While there are fewer
	// than 5×RefitEvery samples, a fifth of them is enough (a tenth below 1,000 samples),
	// and the first fit needs 25. After a drift, a quarter of it is enough. 0 means 1,000.
	RefitEvery int
	// MaxModels limits the number of served models that are learned; 0 means 64. A model is
	// learned once a request for it has been completed; beyond the limit, once it is used more
	// than the least used one, which it replaces.
	MaxModels int
}

// Latency predicts the time to first token, the time per output token and, for responses that do
// not stream, the time of the whole request, from what it observes of finished requests. Make one
// with [NewLatency]. It is safe for concurrent use, allocates nothing in a decision, and belongs to
// one router.
//
// A candidate is predicted once there are 25 labels of its served model and variant; until
// then its Prediction stays empty, and scorers fall back to a heuristic. From then on a
// linear prior predicts, and from 100 labels on trees as well. Requests of unknown length
// are not predicted.
//
// An endpoint that is slower or faster than others of its kind is expected to stay so, as
// far as that is statistically certain. After half a minute without a response it is
// expected to be like the others.
type Latency interface {
	endpick.Predictor
	// Health reports on every served model, sorted by name.
	Health() []ModelHealth
}

type predictor struct {
	endpick.Exclusive
	config    LatencyConfig
	trainer   learn.Trainer
	scratch   sync.Pool
	completed atomic.Uint64 // requests, the clock by which names age

	mu     sync.RWMutex // guards open requests and endpoint states
	open   endpick.PerLease[openRequest]
	states endpick.PerEndpoint[endpointState]

	names                        sync.Mutex // guards changes of the fields below; what they point to is replaced and never modified
	models                       atomic.Pointer[map[string]*servedModel]
	variants                     atomic.Pointer[[]*variant]
	waitingModel, waitingVariant waiting
}

const (
	ttft = learn.TTFT
	tpot = learn.TPOT
	e2e  = learn.E2E
)

var targetSets = [targets]endpick.Latencies{endpick.TTFT, endpick.TPOT, endpick.E2E}

// NewLatency returns a predictor without any samples, or an [endpick.ConfigError].
func NewLatency(config LatencyConfig) (Latency, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	l := &predictor{config: config, trainer: learn.Trainer{Synchronous: config.Synchronous, Share: config.Share}}
	l.scratch.New = func() any { return new(scratch) }
	l.models.Store(&map[string]*servedModel{})
	l.variants.Store(&[]*variant{})
	return l, nil
}

func (c *LatencyConfig) validate() error {
	switch {
	case !(c.Share >= 0 && c.Share <= 1):
		return check.Bad("predict.LatencyConfig.Share", "is %v, want 0 to 1", c.Share)
	case c.Trees < 0 || c.Trees > maxTrees:
		return check.Bad("predict.LatencyConfig.Trees", "is %d, want 0 to %d", c.Trees, maxTrees)
	case c.Samples < 0 || c.Samples > maxSamples:
		return check.Bad("predict.LatencyConfig.Samples", "is %d, want 0 to %d", c.Samples, maxSamples)
	}
	return cmp.Or(
		check.Default("predict.LatencyConfig.MaxAge", &c.MaxAge, 0),
		check.Default("predict.LatencyConfig.RefitEvery", &c.RefitEvery, 0),
		check.Default("predict.LatencyConfig.MaxModels", &c.MaxModels, defaultMaxModels),
	)
}

func (c *LatencyConfig) learner(target learn.Target) learn.Config {
	lc := learn.Latency(target)
	lc.Boost.Trees = c.Trees
	lc.Window.Samples = c.Samples
	lc.Window.MaxAge = c.MaxAge
	lc.RefitEvery = c.RefitEvery
	return lc
}

// scratch is the working memory of one Predict.
type scratch struct {
	x        []float64
	y        []float64
	index    []int
	buckets  []int
	variants []*variant
	paces    []float64
}

// Predict sets the Prediction of every candidate that can be predicted.
func (l *predictor) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	m := (*l.models.Load())[modelName(req)]
	if m == nil || req.InputTokens <= 0 {
		return
	}
	s := l.scratch.Get().(*scratch)
	defer l.scratch.Put(s)
	l.predict(m, req, candidates, s)
}

// predict predicts a model's latencies on all candidates.
func (l *predictor) predict(m *servedModel, req *endpick.Request, candidates []endpick.Candidate, s *scratch) {
	s.x, s.index, s.buckets, s.variants = s.x[:0], s.index[:0], s.buckets[:0], s.variants[:0]
	known := *l.variants.Load()
	var v *variant
	for i := range candidates {
		c := &candidates[i]
		if name := c.Endpoint.Variant; v == nil || v.name != name {
			if v = findVariant(known, name); v == nil {
				continue
			}
		}
		f := features(req, c)
		f.Variant = float64(v.place)
		n := len(s.x)
		s.x = slices.Grow(s.x, learn.FeatureCount)[:n+learn.FeatureCount]
		f.Row(s.x[n:])
		s.index = append(s.index, i)
		s.variants = append(s.variants, v)
		s.buckets = append(s.buckets, m.learners[ttft].Bucket(s.x[n:]))
	}
	s.paces = l.paces(s.paces[:0], s.index, candidates, nanoseconds(req.Now()))
	n := len(s.index)
	s.y = slices.Grow(s.y[:0], n)[:n]
	second := tpot
	if !req.Stream {
		second = e2e
	}
	for _, target := range [2]learn.Target{ttft, second} {
		learner := m.learners[target]
		if !learner.Predict(s.y, s.x) {
			continue
		}
		for j, i := range s.index {
			if m.ready(target, s.variants[j]) {
				ms := s.y[j] * s.paces[j]
				set(&candidates[i].Prediction, target, ms, ms*learner.Upper(s.buckets[j]))
			}
		}
	}
}

// set sets a latency in milliseconds, and its upper bound, in a prediction.
func set(p *endpick.Prediction, target learn.Target, ms, upper float64) {
	if !(ms > 0) || math.IsInf(upper, 1) {
		return
	}
	d, u := milliseconds(ms), milliseconds(upper)
	p.Has |= targetSets[target]
	switch target {
	case ttft:
		p.TTFT, p.TTFTUpper = d, u
	case tpot:
		p.TPOT, p.TPOTUpper = d, u
	case e2e:
		p.E2E, p.E2EUpper = d, u
	}
}

// milliseconds is at most maxLatency.
func milliseconds(v float64) time.Duration {
	return time.Duration(min(v*float64(time.Millisecond), float64(maxLatency)))
}

// features are those of the request on one candidate, without its variant: the same function for
// predictions and samples. The endpoint's recent prefill speed is not among them: without requests
// it is unknown, and a server that was once slow, and therefore gets no requests, would be known as
// slow for ever.
func features(req *endpick.Request, c *endpick.Candidate) learn.Features {
	return learn.Features{
		KVUsage:              c.KVUsage,
		InputTokens:          float64(req.InputTokens),
		Waiting:              c.Waiting,
		Running:              c.Running,
		PrefixShare:          c.MatchShare(req),
		PrefillTokens:        float64(c.InFlight.PrefillTokens),
		ResidentTokens:       float64(c.InFlight.ContextTokens),
		PrefillRate:          math.NaN(),
		ExpectedOutputTokens: positive(int(req.ExpectedPerResponse())),
	}
}

// positive is v, or NaN if v is zero, which means unknown.
func positive(v int) float64 {
	if v <= 0 {
		return math.NaN()
	}
	return float64(v)
}

// nanoseconds is t.UnixNano, clamped so that differences don't overflow: from 2116 on, time stands still.
func nanoseconds(t time.Time) int64 { return max(math.MinInt64/2, min(t.UnixNano(), math.MaxInt64/2)) }
