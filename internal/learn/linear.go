package learn

import (
	"github.com/endpick/endpick/internal/estimate"
	"github.com/endpick/endpick/predict/boost"
)

// Linear is what is linear in a learner's model, for requests that differ in nothing
// else.
type Linear struct {
	estimate.Linear
	// Rows is how many samples it was fitted to.
	Rows                int
	perInput, perOutput float64
}

// linear takes the columns apart.
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

// For returns the estimate for a request of so many tokens; an expected output of zero
// is unknown.
func (l *Linear) For(input, output int) estimate.Linear {
	e := l.Linear
	e.Constant += float64(l.perInput*float64(input)) + float64(l.perOutput*float64(output))
	return e
}

// Linear returns what is linear in the newest model that has something linear; nil if
// there has been none.
func (l *Learner) Linear() *Linear { return l.linear.Load() }

// fitLinear fits what is linear, which a restored model without prior has nothing of; l.mu
// is held. It is what a model with trees would have: these come after it.
func (l *Learner) fitLinear() {
	config := l.config.Boost
	config.Trees = 1
	var data boost.Data
	l.window.AppendTo(&data)
	if m, err := boost.Fit(config, data); err == nil {
		l.estimateBy(m)
	}
}

// use puts a model in force; nil is none.
func (l *Learner) use(m *boost.Model) {
	if m == nil {
		l.linear.Store(nil)
	}
	l.estimateBy(m)
	l.model.Store(m)
}

// estimateBy takes over what is linear in a model, if it has something.
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
