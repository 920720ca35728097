package predict

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict/internal/learn"
)

// Names come with requests, so clients can invent them. A served model, or a kind of endpoint, gets
// a place when a request for it has been completed. If there is none left, it waits until it is used
// more than the least used one, which it replaces; among models, first those that have not learned
// enough to predict anything. So one name more than there are places costs one its place, however
// they alternate, and a flood of invented ones costs none.

const (
	defaultMaxModels = 64
	// maxVariants is how many kinds of endpoint have a place in a model.
	maxVariants = 16
	// maxName is the longest name in bytes; longer ones are ignored.
	maxName = 256
)

// A servedModel has the learners of one model name.
type servedModel struct {
	name     string
	used     atomic.Uint64 // requests for it that were completed lately
	learners [targets]*learn.Learner
	seen     [targets][maxVariants]variantLabels
}

// variantLabels counts the labels of the variant in one place, and remembers which refit will be
// the first with enough of them.
type variantLabels struct {
	of         atomic.Pointer[variant] // the owner of the place; another variant may have taken it
	count      atomic.Uint64
	readyAfter atomic.Uint64
	off        offset // guarded by Latency.mu
}

// A variant is a kind of endpoint. Models know it by its place.
type variant struct {
	name  string
	place int
	used  atomic.Uint64
}

// agingAfter is after how many completed requests each use counts half.
const agingAfter = 1024

// waiting is the name that would be next to get a place: of those without one, the one that is
// most of them (Boyer and Moore's majority).
type waiting struct {
	name string
	uses uint64
}

// outdoes counts a use of a name without a place, and reports whether it takes the place of one
// that is used as often as this, whose labels are worth keeping if it has learned.
func (w *waiting) outdoes(name string, used uint64, learned bool) bool {
	switch {
	case w.name == name:
		w.uses++
	case w.uses > 0:
		w.uses--
	default:
		*w = waiting{strings.Clone(name), 1} // it may be a part of a request's body
	}
	if w.name != name || w.uses <= used || learned && w.uses < learn.FirstFit {
		return false
	}
	*w = waiting{}
	return true
}

// use counts a completed request for a model on a kind of endpoint, either of which may be nil.
func (l *predictor) use(m *servedModel, v *variant) {
	if m != nil {
		m.used.Add(1)
	}
	if v != nil {
		v.used.Add(1)
	}
	if l.completed.Add(1)%agingAfter != 0 {
		return
	}
	l.names.Lock()
	defer l.names.Unlock()
	l.waitingModel.uses /= 2
	l.waitingVariant.uses /= 2
	for _, m := range *l.models.Load() {
		m.used.Store((m.used.Load() + 1) / 2) // upwards, so that rounding costs nobody a place
	}
	for _, v := range *l.variants.Load() {
		v.used.Store((v.used.Load() + 1) / 2)
	}
}

// modelName is the name under which a request's latencies are learned: adapters run on their model.
func modelName(req *endpick.Request) string {
	if req.Model == "" {
		return req.Adapter
	}
	return req.Model
}

// findVariant returns the variant of that name, or nil.
func findVariant(known []*variant, name string) *variant {
	for _, v := range known {
		if v.name == name {
			return v
		}
	}
	return nil
}

// admitModel returns the learners of a model for which a request has been completed, creating
// them if necessary; nil if it has to wait.
func (l *predictor) admitModel(name string) *servedModel {
	if m := (*l.models.Load())[name]; m != nil {
		return m
	}
	l.names.Lock()
	defer l.names.Unlock()
	models := *l.models.Load()
	if m := models[name]; m != nil {
		return m
	}
	models = maps.Clone(models)
	var used uint64
	if len(models) >= l.config.MaxModels {
		least := leastUsed(models)
		if !l.waitingModel.outdoes(name, least.used.Load(), least.learned()) {
			return nil
		}
		delete(models, least.name)
		used = least.used.Load()
	}
	m := l.newModel(strings.Clone(name)) // name may be a part of a request's body
	m.used.Store(used)
	models[m.name] = m
	l.models.Store(&models)
	return m
}

// leastUsed returns the model to be replaced.
func leastUsed(models map[string]*servedModel) *servedModel {
	var least *servedModel
	for _, m := range models {
		if least == nil || m.givesWayBefore(least) {
			least = m
		}
	}
	return least
}

func (m *servedModel) givesWayBefore(o *servedModel) bool {
	if a, b := m.learned(), o.learned(); a != b {
		return b
	}
	if a, b := m.used.Load(), o.used.Load(); a != b {
		return a < b
	}
	return m.name < o.name
}

// learned reports whether any latency can be predicted.
func (m *servedModel) learned() bool {
	return slices.ContainsFunc(m.learners[:], func(l *learn.Learner) bool { return l.Model() != nil })
}

func (l *predictor) newModel(name string) *servedModel {
	m := &servedModel{name: name}
	for i := range targets {
		m.learners[i] = learn.New(&l.trainer, l.config.learner(i))
	}
	return m
}

// admitVariant returns the variant of an endpoint that has completed a request, giving it a
// place if necessary; nil if it has to wait.
func (l *predictor) admitVariant(name string) *variant {
	if v := findVariant(*l.variants.Load(), name); v != nil {
		return v
	}
	l.names.Lock()
	defer l.names.Unlock()
	known := *l.variants.Load()
	if v := findVariant(known, name); v != nil {
		return v
	}
	known = slices.Clone(known)
	v := &variant{name: strings.Clone(name), place: len(known)}
	if len(known) < maxVariants {
		known = append(known, v)
	} else {
		least := slices.MinFunc(known, func(a, b *variant) int { return cmp.Compare(a.used.Load(), b.used.Load()) })
		if !l.waitingVariant.outdoes(name, least.used.Load(), true) {
			return nil
		}
		v.place = least.place
		v.used.Store(least.used.Load())
		known[v.place] = v
		for _, m := range *l.models.Load() {
			for _, learner := range m.learners {
				learner.Forget(learn.Variant, float64(v.place))
			}
		}
	}
	l.variants.Store(&known)
	return v
}

// ready reports whether a target is predicted for a variant.
func (m *servedModel) ready(target learn.Target, v *variant) bool {
	seen := &m.seen[target][v.place]
	if seen.of.Load() != v {
		return false
	}
	after := seen.readyAfter.Load()
	return after > 0 && m.learners[target].Refits() >= after
}

// count counts a label of a variant.
func (m *servedModel) count(target learn.Target, v *variant) {
	seen := &m.seen[target][v.place]
	if of := seen.of.Load(); of != v && seen.of.CompareAndSwap(of, v) {
		seen.count.Store(0)
		seen.readyAfter.Store(0)
	}
	if seen.count.Add(1) == learn.FirstFit {
		learner := m.learners[target]
		seen.readyAfter.Store(learner.Refits() + 1)
		learner.Hurry()
	}
}
