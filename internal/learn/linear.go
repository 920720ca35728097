package learn

import (
	"github.com/endpick/endpick/internal/estimate"
	"github.com/endpick/endpick/predict/boost"
)

// Linear is the linear part of a learner's model, for requests of one model.
type Linear struct {
	estimate.Linear
	// Rows is how many samples it was fitted to.
	Rows                int
	perInput, perOutput float64
}

// linear converts columns and weights.
func linear(columns []int, weights []float64) (l Linear) {
	l.Constant = weights[0]
	for i, c := range columns {
		w := weights[i+1]
		switch c {
		case columnKV:
			l.KVUsage += w
		case columnInput:
			l.perInput += w
		case columnWaiting:
			l.Waiting += w
		case columnRunning:
			l.Running += w
		case columnPrefill:
			l.Prefill += w
		case columnResident:
			l.Resident += w
		case columnOutput:
			l.perOutput += w
		case columnNew:
			l.Fresh += w
		case columnAhead: // their sum
			l.Fresh += w
			l.Prefill += w
		}
	}
	return l
}

// For returns the estimate for a request of this length; an expected output of zero is
// unknown.
func (l *Linear) For(input, output int) estimate.Linear {
	e := l.Linear
	e.Constant += l.perInput*float64(input) + l.perOutput*float64(output)
	return e
}

// Linear returns the linear part of the newest model that has one; nil if there has
// been none.
func (l *Learner) Linear() *Linear { return l.linear.Load() }

// fitLinear fits the linear part for a restored model without prior; l.mu is held. A model
// with trees would have the same, because trees are fitted afterwards.
func (l *Learner) fitLinear() {
	config := l.config.Boost
	config.Trees = 1
	var data boost.Data
	l.window.AppendTo(&data)
	if m, err := boost.Fit(config, data); err == nil {
		l.estimateBy(m)
	}
}

// use makes m the current model; nil is none.
func (l *Learner) use(m *boost.Model) {
	if m == nil {
		l.linear.Store(nil)
	}
	l.estimateBy(m)
	l.model.Store(m)
}

// estimateBy sets the linear part from a model, if it has one.
func (l *Learner) estimateBy(m *boost.Model) {
	if m == nil {
		return
	}
	if columns, weights := m.Linear(); columns != nil {
		of := linear(columns, weights)
		of.Rows = m.Rows()
		l.linear.Store(&of)
	}
}
