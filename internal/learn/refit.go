package learn

import (
	"math"

	"github.com/endpick/endpick/predict/boost"
)

const (
	// driftErrors is how many of the newest errors are compared with the long run, driftRatio what is called a drift.
	driftErrors = 100
	driftRatio  = 1.5
	// Each challengeEvery-th choice of tests also fits a challenger with the other choice of prior. It takes over if, on at
	// least challengeSamples new samples, its error is below challengeMargin times that of the model in force.
	challengeEvery   = 4
	challengeSamples = 50
	challengeMargin  = 0.98
	// A refit chooses the tests of its trees anew if a share of renewal of the window is newer than the tests, or if a share
	// of novelty is in buckets that have since grown by more than the factor grown and a few samples: regimes that the tests
	// do not know. In a window that grows, all buckets grow, so the factor is multiplied by the square root of that growth.
	// Other refits keep the tests, and take about a tenth of the time.
	renewal = 0.3
	novelty = 0.02
	grown   = 1.5
	few     = 5
	// driftRenewal is the share of the window that is enough while errors drift.
	driftRenewal = 0.03
)

// due tells whether enough is new for a refit; l.mu is held.
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

// Refit fits a new model to what is in the window now and puts it in force. If that fails, the old one stays. Trainers
// do it by themselves unless they are told not to.
func (l *Learner) Refit() error {
	l.mu.Lock()
	defer l.release()
	return l.refit()
}

// refitIfDue is Refit unless somebody else has done it. Health tells what went wrong.
func (l *Learner) refitIfDue() {
	l.mu.Lock()
	defer l.release()
	if l.due() {
		_ = l.refit()
	}
}

// refit is Refit with l.mu held. One that fails is not tried again before as many new labels have come.
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
	l.scores = struct{ model, challenger, count float64 }{}
	l.window.Expire(l.window.Newest())
	var data boost.Data
	l.window.AppendTo(&data)
	if l.Unfinished != nil {
		// Who has waited longer than predicted will have waited at least as long when it is over.
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
	l.use(m)
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
			l.estimateBy(l.challenger)
		}
	}
	return nil
}

// keepsTests tells whether the trees of the next model may ask what those of the one in force ask; l.mu is held.
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
