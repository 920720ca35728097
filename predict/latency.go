package predict

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/learn"
)

const (
	defaultMaxModels = 64
	// maxVariants bounds the kinds of endpoint that are told apart; more are not predicted.
	maxVariants = 8
	// rateWindow is the time over which the prefill rate of an endpoint fades.
	rateWindow = 10 * time.Second
	// The most trees and samples that a model can have.
	maxTrees   = 1024
	maxSamples = 1<<20 - 1
	targets    = learn.Targets
)

var (
	_ endpick.Predictor          = (*Latency)(nil)
	_ endpick.RoutedObserver     = (*Latency)(nil)
	_ endpick.FirstTokenObserver = (*Latency)(nil)
	_ endpick.DoneObserver       = (*Latency)(nil)
	_ endpick.EndpointObserver   = (*Latency)(nil)
)

// LatencyConfig says how latencies are learned. The zero value is a usable default.
type LatencyConfig struct {
	// Synchronous fits models in the call that brings the label which makes a fit due, before it returns: what is
	// learned then depends on the order of the calls alone. It is for simulators and tests.
	Synchronous bool
	// Share is how much of one core fitting may take, in (0, 1]; 0 means 0.2.
	Share float64
	// Trees is the number of trees in a model, at most 1,024; 0 means 64.
	Trees int
	// Samples bounds the samples that each model is fitted to, at most 1,048,575; 0 means 25,000.
	Samples int
	// MaxAge is the age beyond which samples are dropped; 0 means never.
	MaxAge time.Duration
	// DisableStrata keeps one bucket: the newest samples of whatever kind, as a plain sliding window does. It is there to
	// show what stratification buys.
	DisableStrata bool
	// RefitEvery is how many new samples call for a refit once there are ten times as many; before that a tenth of the
	// samples do, and the first 25. After a drift a quarter of it is enough. 0 means 1,000.
	RefitEvery int
	// MaxModels bounds the served models that are learned; requests for more are not predicted. 0 means 64.
	MaxModels int
}

// Latency predicts the time to first token, the time per output token and, for responses that do not stream, the time
// of the whole request, from what it observes of finished requests. It is an endpick.Predictor and Observer, safe for
// concurrent use; Predict allocates nothing and takes no lock.
//
// A candidate is predicted once there are 25 labels of its served model and variant; until then its Prediction stays
// empty, which scorers take as a reason to fall back to a heuristic. From then on a linear prior predicts, and from 100
// labels on trees as well. Requests of unknown length are not predicted.
type Latency struct {
	config  LatencyConfig
	trainer learn.Trainer
	scratch sync.Pool
	open    openTable
	rates   rateTable

	mu       sync.Mutex // guards changes of what follows
	models   atomic.Pointer[map[string]*servedModel]
	variants atomic.Pointer[[]string]
}

// A servedModel has the learners of one model name.
type servedModel struct {
	name     string
	learners [targets]*learn.Learner
	seen     [targets][maxVariants]variantLabels
}

// variantLabels counts the labels of one variant, and remembers which refit will be the first to know enough of them.
type variantLabels struct {
	count      atomic.Uint64
	readyAfter atomic.Uint64
}

const (
	ttft = learn.TTFT
	tpot = learn.TPOT
	e2e  = learn.E2E
)

var targetSets = [targets]endpick.Latencies{endpick.TTFT, endpick.TPOT, endpick.E2E}

// NewLatency returns a predictor that has learned nothing yet.
func NewLatency(config LatencyConfig) (*Latency, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	l := &Latency{config: config, trainer: learn.Trainer{Synchronous: config.Synchronous, Share: config.Share}}
	l.scratch.New = func() any { return new(scratch) }
	l.models.Store(&map[string]*servedModel{})
	l.variants.Store(&[]string{})
	return l, nil
}

func (c *LatencyConfig) validate() error {
	switch {
	case !(c.Share >= 0 && c.Share <= 1):
		return badConfig("Share", "is %v, want 0 to 1", c.Share)
	case c.Trees < 0 || c.Trees > maxTrees:
		return badConfig("Trees", "is %d, want 0 to %d", c.Trees, maxTrees)
	case c.Samples < 0 || c.Samples > maxSamples:
		return badConfig("Samples", "is %d, want 0 to %d", c.Samples, maxSamples)
	case c.MaxAge < 0:
		return badConfig("MaxAge", "is %v, want 0 or more", c.MaxAge)
	case c.RefitEvery < 0:
		return badConfig("RefitEvery", "is %d, want 0 or more", c.RefitEvery)
	case c.MaxModels < 0:
		return badConfig("MaxModels", "is %d, want 0 or more", c.MaxModels)
	}
	if c.MaxModels == 0 {
		c.MaxModels = defaultMaxModels
	}
	return nil
}

func badConfig(field, reason string, args ...any) error {
	return &endpick.ConfigError{Field: "predict.LatencyConfig." + field, Reason: fmt.Sprintf(reason, args...)}
}

func (c *LatencyConfig) learner(target learn.Target) learn.Config {
	lc := learn.Latency(target)
	lc.Boost.Trees = c.Trees
	lc.Window.Samples = c.Samples
	lc.Window.MaxAge = c.MaxAge
	if c.DisableStrata {
		lc.Window.Strata = nil
	}
	lc.RefitEvery = c.RefitEvery
	return lc
}

// scratch is what one call of Predict needs.
type scratch struct {
	x       []float64
	y       []float64
	index   []int
	buckets []int
	variant []int
}

// Predict sets the Prediction of every candidate that can be predicted.
func (l *Latency) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	m := (*l.models.Load())[modelName(req)]
	if m == nil || req.InputTokens <= 0 {
		return
	}
	s := l.scratch.Get().(*scratch)
	defer l.scratch.Put(s)
	s.x, s.index, s.buckets, s.variant = s.x[:0], s.index[:0], s.buckets[:0], s.variant[:0]
	known := *l.variants.Load()
	name, variant := "", -1
	now := req.Now()
	for i := range candidates {
		c := &candidates[i]
		if v := c.Endpoint.Variant; variant < 0 || v != name {
			name, variant = v, slices.Index(known, v)
		}
		if variant < 0 {
			continue
		}
		f := l.features(req, c, variant, now)
		n := len(s.x)
		s.x = slices.Grow(s.x, learn.FeatureCount)[:n+learn.FeatureCount]
		f.Row(s.x[n:])
		s.index = append(s.index, i)
		s.variant = append(s.variant, variant)
		s.buckets = append(s.buckets, m.learners[ttft].Bucket(s.x[n:]))
	}
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
			if m.ready(target, s.variant[j]) {
				set(&candidates[i].Prediction, target, s.y[j], s.y[j]*learner.Upper(s.buckets[j]))
			}
		}
	}
}

// set puts a latency in milliseconds and its upper bound into a prediction.
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

// milliseconds is at most a year.
func milliseconds(v float64) time.Duration {
	return time.Duration(min(v, 366*24*3600*1e3) * float64(time.Millisecond))
}

// features are those of the request on one candidate: the same function for predictions and for samples.
func (l *Latency) features(req *endpick.Request, c *endpick.Candidate, variant int, now time.Time) learn.Features {
	return learn.Features{
		KVUsage:              c.KVUsage,
		InputTokens:          float64(req.InputTokens),
		Waiting:              c.Waiting,
		Running:              c.Running,
		PrefixShare:          c.MatchShare(req),
		PrefillTokens:        float64(c.InFlight.PrefillTokens),
		ResidentTokens:       float64(c.InFlight.ContextTokens),
		PrefillRate:          l.rates.of(c.Ref, now),
		ExpectedOutputTokens: positive(req.ExpectedOutputTokens),
		Variant:              float64(variant),
	}
}

func (m *servedModel) ready(target learn.Target, variant int) bool {
	after := m.seen[target][variant].readyAfter.Load()
	return after > 0 && m.learners[target].Refits() >= after
}

// label passes a measured latency on.
func (m *servedModel) label(target learn.Target, o *openRequest, latency time.Duration, at time.Time) {
	learner := m.learners[target]
	seen := &m.seen[target][o.variant]
	if seen.count.Add(1) == learn.FirstFit {
		seen.readyAfter.Store(learner.Refits() + 1)
		learner.Hurry()
	}
	learner.Label(o.row[:], latency.Seconds()*1e3, o.predicted[target], o.upper[target], at)
}

// positive is v, or NaN where zero stands for unknown.
func positive(v int) float64 {
	if v <= 0 {
		return math.NaN()
	}
	return float64(v)
}

// modelName is the name under which a request's latencies are learned: adapters run on their model.
func modelName(req *endpick.Request) string {
	if req.Model == "" {
		return req.Adapter
	}
	return req.Model
}

// model returns the learners of a model name, made on first use; nil if there are too many.
func (l *Latency) model(name string) *servedModel {
	if m := (*l.models.Load())[name]; m != nil {
		return m
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	models := *l.models.Load()
	if m := models[name]; m != nil || len(models) >= l.config.MaxModels {
		return m
	}
	m := l.newModel(name)
	models = maps.Clone(models)
	models[name] = m
	l.models.Store(&models)
	return m
}

func (l *Latency) newModel(name string) *servedModel {
	m := &servedModel{name: name}
	for i := range targets {
		learner, err := learn.New(&l.trainer, l.config.learner(i))
		if err != nil {
			panic(err) // NewLatency has validated the same configuration
		}
		learner.Unfinished = func(now time.Time, add func(row []float64, atLeast float64)) {
			l.open.overdue(m, i, now, add)
		}
		m.learners[i] = learner
	}
	return m
}

// variant returns the number of a variant, given out on first use; none if there are too many.
func (l *Latency) variant(name string) int {
	if i := slices.Index(*l.variants.Load(), name); i >= 0 {
		return i
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known := *l.variants.Load()
	if i := slices.Index(known, name); i >= 0 || len(known) >= maxVariants {
		return i
	}
	known = append(slices.Clone(known), name)
	l.variants.Store(&known)
	return len(known) - 1
}
