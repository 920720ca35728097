package learn

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick/predict/boost"
)

const (
	defaultRefitEvery = 1000
	// FirstFit is how many samples the first model needs.
	FirstFit = 25
	// fewSamples is the number below which a model gains most from each sample.
	fewSamples = 1000
	// recentErrors is how many of the latest errors Health reports on.
	recentErrors = 1000
	// maxLabel is the largest label that is learned, its inverse the smallest: the range of
	// package boost.
	maxLabel = 1e15
)

// Config says what a Learner learns. The zero value of every field but the numbers of features is usable.
type Config struct {
	Boost  boost.Config
	Window WindowConfig
	// RefitEvery is how many new samples trigger a refit, once there are five times as many; before
	// that a fifth of the samples do, a tenth of fewer than a thousand, and the first 25. After a
	// drift, a quarter of it is enough. 0 means 1,000.
	RefitEvery int
}

// Health is the state of a learner. Package predict exports it, and says what is what.
type Health struct {
	Phase                      string
	Samples                    int
	Labels, Skipped, Dropped   uint64
	Refits                     uint64
	LastFit                    time.Time
	FitTime                    time.Duration
	LastFail                   error
	Shifts                     uint64
	MAPE, P90, Coverage, Drift float64
}

// A Learner learns to predict one positive quantity. It belongs to a [Trainer]. Predict may be
// called by any goroutine, even during a refit.
type Learner struct {
	trainer *Trainer
	model   atomic.Pointer[boost.Model]
	refits  atomic.Uint64
	hurry   atomic.Bool // refit at the next label
	spread  *spread

	queue queue

	mu         sync.Mutex // guards training: one refit at a time
	config     Config
	window     *Window
	shifts     shiftDetector
	since      int        // samples since the last refit
	renewed    int        // samples since the current model's tests were chosen
	chosenFrom []int32    // rows that they were chosen from, by bucket
	statusMu   sync.Mutex // guards the fields below, held briefly
	health     Health
	errors     []float64 // ring of the latest errors
	covered    []bool
	nextErr    int
	longRun    float64
	longN      float64
}

// New returns a learner without samples.
func New(t *Trainer, config Config) *Learner {
	config.RefitEvery = cmp.Or(config.RefitEvery, defaultRefitEvery)
	w := NewWindow(config.Window)
	return &Learner{trainer: t, config: config, window: w, spread: newSpread(w.Buckets())}
}

// Refits returns the number of models used so far.
func (l *Learner) Refits() uint64 { return l.refits.Load() }

// Hurry makes a refit due at the next label.
func (l *Learner) Hurry() { l.hurry.Store(true) }

// Forget drops the samples with a value in a column. The current model remains.
func (l *Learner) Forget(column int, value float64) {
	l.mu.Lock()
	defer l.release()
	l.window.Forget(column, value)
}

// Model returns the current model, or nil if there is none yet.
func (l *Learner) Model() *boost.Model { return l.model.Load() }

// Bucket returns the bucket of the window, and so the regime, of a row.
func (l *Learner) Bucket(row []float64) int { return bucketOf(l.config.Window.Strata, row) }

// Predict writes a prediction for each row of x into dst and returns true, or false if there is no model yet or a
// length is wrong. It allocates nothing.
func (l *Learner) Predict(dst, x []float64) bool {
	m := l.model.Load()
	return m != nil && m.Predict(dst, x) == nil
}

// Upper returns the factor on predictions in a bucket below which nine in ten labels stay.
func (l *Learner) Upper(bucket int) float64 { return l.spread.factor(bucket) }

// Label records the label of a row and its time. predicted is the prediction made for it, 0 if
// there was none, and upper its upper bound. It copies row and does not wait for training. A label
// that is not a positive number is counted and skipped.
func (l *Learner) Label(row []float64, label, predicted, upper float64, at time.Time) {
	if !(label >= 1/maxLabel && label <= maxLabel) {
		l.statusMu.Lock()
		l.health.Skipped++
		l.statusMu.Unlock()
		return
	}
	if !(predicted > 0 && predicted <= maxLabel) {
		predicted = 0
	}
	s := sample{label: label, predicted: predicted, upper: upper, at: at}
	if !l.queue.put(row, s) {
		l.statusMu.Lock()
		l.health.Dropped++
		l.statusMu.Unlock()
		return
	}
	l.takeIn()
}

// A sample is a label and its circumstances.
type sample struct {
	label, predicted, upper float64
	at                      time.Time
}

// take learns from one sample; l.mu is held.
func (l *Learner) take(row []float64, s sample) {
	if s.predicted > 0 {
		l.spread.add(l.Bucket(row), s.predicted, s.label)
		l.score(s)
	}
	var now [1]float64
	if l.Predict(now[:], row) {
		// The current model's prediction for a row that it has not seen, whatever the prediction was
		// when the request was routed.
		residual := max(-maxResidual, min(math.Log(s.label/now[0]), maxResidual))
		if shift, first := l.shifts.add(shiftResidual{residual, l.Bucket(row), l.window.added + 1}); shift != 0 {
			l.window.Rescale(math.Exp(shift), first)
			l.hurry.Store(true)
			l.statusMu.Lock()
			l.health.Shifts++
			l.statusMu.Unlock()
		}
	}
	l.window.Add(row, s.label, s.at)
	l.since++
	l.renewed++
	l.statusMu.Lock()
	l.health.Labels++
	l.health.Samples = l.window.Len()
	l.statusMu.Unlock()
}

// score records the error of a sample's prediction, capped at 100 %: otherwise a single label near
// zero would dominate.
func (l *Learner) score(s sample) {
	e := min(math.Abs(s.predicted-s.label)/s.label, 1)
	l.statusMu.Lock()
	defer l.statusMu.Unlock()
	if len(l.errors) < recentErrors {
		l.errors = append(l.errors, e)
		l.covered = append(l.covered, s.label <= s.upper)
	} else {
		l.errors[l.nextErr], l.covered[l.nextErr] = e, s.label <= s.upper
	}
	l.nextErr = (l.nextErr + 1) % recentErrors
	l.longN++
	l.longRun += (e - l.longRun) * max(1/l.longN, 1.0/(10*recentErrors))
}

// drift is the mean of the latest errors divided by that of the long run; l.statusMu is held.
func (l *Learner) drift() float64 {
	if len(l.errors) < 2*driftErrors || l.longRun == 0 {
		return 1
	}
	s := 0.0
	for i := range driftErrors {
		s += l.errors[(l.nextErr-1-i+2*recentErrors)%recentErrors%len(l.errors)]
	}
	return s / driftErrors / l.longRun
}

// Health reports the learner's state. It is for people and metrics, not for the request path.
func (l *Learner) Health() Health {
	l.statusMu.Lock()
	h := l.health
	errs := slices.Clone(l.errors)
	held := 0
	for _, ok := range l.covered {
		if ok {
			held++
		}
	}
	h.Drift = l.drift()
	l.statusMu.Unlock()
	h.Phase = "heuristic"
	if m := l.model.Load(); m != nil {
		h.Phase = "prior"
		if m.Trees() > 0 {
			h.Phase = "trees"
		}
	}
	h.MAPE, h.P90 = MeanAndP90(errs)
	h.Coverage = float64(held) / float64(len(errs))
	return h
}

// MeanAndP90 returns the mean and the 90th percentile of errors; NaN if there are none. It sorts
// errors.
func MeanAndP90(errors []float64) (mean, p90 float64) {
	n := len(errors)
	if n == 0 {
		return math.NaN(), math.NaN()
	}
	slices.Sort(errors)
	for _, e := range errors {
		mean += e
	}
	return mean / float64(n), errors[(n*9+9)/10-1]
}
