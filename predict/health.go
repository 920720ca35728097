package predict

import (
	"cmp"
	"slices"
	"time"
)

// Health says how well one latency of one served model is predicted.
type Health struct {
	// Phase is how far learning has come: "heuristic" without a model, "prior" while it is linear,
	// "trees".
	Phase    string
	Samples  int    // in the window
	Labels   uint64 // labels received
	Skipped  uint64 // labels that were not positive numbers
	Dropped  uint64 // labels that arrived too fast to be taken in
	Refits   uint64
	LastFit  time.Time     // when the samples of the last refit were taken; zero before the first
	FitTime  time.Duration // how long the last refit took; zero with LatencyConfig.Synchronous
	LastFail error         // error of the last refit, or nil
	// Shifts counts how often all labels changed by one factor at once, by which the window was
	// then corrected.
	Shifts uint64

	// MAPE is the mean absolute percentage error of the last 1,000 predictions as they were made, P90
	// the error that nine in ten stay below; both as shares (0.05 is 5 %, none is above 1), NaN before
	// there are any.
	MAPE, P90 float64
	// Coverage is the share of these whose upper bound held.
	Coverage float64
	// Drift is the mean error of the last 100 divided by that of the long run: far above 1,
	// something has changed.
	Drift float64
}

// ModelHealth is the health of what was learned about one served model.
type ModelHealth struct {
	Model           string
	TTFT, TPOT, E2E Health
}

func (l *predictor) Health() []ModelHealth {
	var all []ModelHealth
	for name, m := range *l.models.Load() {
		all = append(all, ModelHealth{name, Health(m.learners[ttft].Health()), Health(m.learners[tpot].Health()), Health(m.learners[e2e].Health())})
	}
	slices.SortFunc(all, func(a, b ModelHealth) int { return cmp.Compare(a.Model, b.Model) })
	return all
}
