package learn

import (
	"math"

	"github.com/endpick/endpick/predict/boost"
)

const (
	// driftErrors is how many of the latest errors are compared with the long run, driftRatio the
	// ratio that counts as a drift.
	driftErrors = 100
	driftRatio  = 1.5
	// Each challengeEvery-th choice of tests also fits a challenger with the other choice of prior. It
	// takes over if its error on at least challengeSamples new samples is below challengeMargin times
	// that of the current model.
	challengeEvery   = 4
	challengeSamples = 50
	challengeMargin  = 0.98
	// A refit chooses new tests for its trees if a share of renewal of the window is newer than the
	// tests, or if a share of novelty is in buckets that have since grown by more than the factor
	// grown and a few samples: regimes that the tests don't know. In a growing window all buckets
	// grow, so the factor is multiplied by the square root of that growth. Other refits keep the
	// tests, and take about a tenth of the time.
	renewal = 0.3
	novelty = 0.02
	grown   = 1.5
	few     = 5
	// driftRenewal replaces renewal while errors drift.
	driftRenewal = 0.03
)

// due reports whether there are enough new samples for a refit; l.mu is held.
func (l *Learner) due() bool {
	if l.trainer.Manual {
		return false
	}
	if l.hurry.Load() {
		return true
	}
	growth := l.window.Len() / 5
	if l.window.Len() < fewSamples {
		growth /= 2
	}
	every := max(FirstFit, min(growth, l.config.RefitEvery))
	if sooner := max(driftErrors, every/4); sooner < every && l.since >= sooner {
		l.statusMu.Lock()
		if l.drift() > driftRatio {
			every = sooner
		}
		l.statusMu.Unlock()
	}
	if l.since < every+shiftHistory && l.shifts.suspects() {
		return false
	}
	return l.since >= every
}

// Refit fits a new model to the window and makes it the current one. If that fails, the old one
// stays. Trainers call it unless they are manual.
func (l *Learner) Refit() error {
	l.mu.Lock()
	defer l.release()
	return l.refit()
}

// refitIfDue is Refit unless somebody else has just refitted. Health reports errors.
func (l *Learner) refitIfDue() {
	l.mu.Lock()
	defer l.release()
	if l.due() {
		_ = l.refit()
	}
}

// refit is Refit with l.mu held. After a failure, it waits for as many new labels again.
func (l *Learner) refit() (err error) {
	began := l.trainer.clock()
	overdue := 0
	defer func() {
		l.statusMu.Lock()
		defer l.statusMu.Unlock()
		l.health.LastFail = err
		l.health.Overdue = overdue
		l.health.FitTime = l.trainer.clock().Sub(began)
		l.health.Refits = l.refits.Load()
		if err == nil {
			l.health.LastFit = l.window.Newest()
			l.health.Prior = !l.noPrior && len(l.config.Boost.Prior) > 0
		}
	}()
	defer recovered(&err)
	keep := l.keepsTests()
	l.hurry.Store(false)
	l.since = 0
	if l.scores.count >= challengeSamples && l.scores.challenger < challengeMargin*l.scores.model {
		l.noPrior = !l.noPrior
		keep = false
	}
	l.challenger = nil
	l.scores = scores{}
	l.window.Expire(l.window.Newest())
	var data boost.Data
	l.window.AppendTo(&data)
	if l.Unfinished != nil {
		// Requests that have waited longer than predicted will have waited at least as long when they
		// end.
		l.Unfinished(l.window.Newest(), func(row []float64, atLeast float64) {
			data.X = append(data.X, row...)
			data.Y = append(data.Y, atLeast)
			data.W = append(data.W, 1)
			overdue++
		})
	}
	config := l.config.Boost
	if l.noPrior {
		config.Prior = nil
	}
	var m *boost.Model
	if keep {
		m, err = l.model.Load().Refit(data)
	} else {
		l.renewed, l.asked = 0, l.window.rowsByBucket(l.asked[:0])
		m, err = boost.Fit(config, data)
	}
	if err != nil {
		return err
	}
	l.model.Store(m)
	l.shifts.refitted(l.spread)
	l.refits.Add(1)
	if keep || m.Trees() == 0 {
		return nil
	}
	l.choices++
	if len(l.config.Boost.Prior) > 0 && l.choices%challengeEvery == 1 {
		config.Prior = nil
		if l.noPrior {
			config.Prior = l.config.Boost.Prior
		}
		l.challenger, _ = boost.Fit(config, data)
		if l.noPrior {
		}
	}
	return nil
}

// keepsTests reports whether the next model may keep the current tests; l.mu is held.
func (l *Learner) keepsTests() bool {
	m, rows := l.model.Load(), float64(l.window.Len())
	if m == nil || m.Trees() == 0 || l.hurry.Load() || len(l.asked) == 0 || float64(l.renewed) >= renewal*rows {
		return false
	}
	asked := 0
	for _, then := range l.asked {
		asked += int(then)
	}
	large := grown * max(1, math.Sqrt(rows/float64(max(asked, 1))))
	unknown := 0
	for i, then := range l.asked {
		if now := l.window.buckets[i].rows; float64(now) >= float64(large*float64(then))+few {
			unknown += now - int(then)
		}
	}
	if float64(unknown) >= novelty*rows {
		return false
	}
	l.statusMu.Lock()
	defer l.statusMu.Unlock()
	return l.drift() <= driftRatio || float64(l.renewed) < driftRenewal*rows
}
