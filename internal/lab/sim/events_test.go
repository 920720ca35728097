package sim

import (
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/stretchr/testify/require"
)

// listeners runs routers with or without cache events, on caches that are too small.
func listeners(t *testing.T, routers int, events *Events) *Report {
	x := Experiment{Scenario: "C", Pace: Pace{Rate: 3, Requests: 200}, Servers: 4, Engine: engine.Config{Blocks: 16_000}}
	cfg := rig.Must(x.Config())
	cfg.Routers, cfg.Events = routers, events
	cfg.Router = func() (endpick.Config, error) {
		c := all.LMetric()
		if events != nil {
			p, err := precise.New(precise.Config{Approximate: c.Policy.Matcher.(*prefix.Index)})
			if err != nil {
				return c, err
			}
			c.Policy.Matcher = p
		}
		return c, nil
	}
	report := rig.Must(Run(cfg))
	require.Equal(t, report.Requests, report.Completed+report.Rejected)
	return report
}

// Routers that each see part of the traffic find more cached prefixes with events. Late
// or lost events are worth less, but never less than none.
func TestEventsAreWorthTheMoreTheLessARouterSees(t *testing.T) {
	none, all := listeners(t, 4, nil), listeners(t, 4, &Events{})
	late, few := listeners(t, 4, &Events{Delay: 10 * time.Second}), listeners(t, 4, &Events{Loss: 0.01})
	t.Logf("hit ratios: none %.3f, all %.3f, late %.3f, a hundredth of them lost %.3f", none.PrefixHitRatio, all.PrefixHitRatio, late.PrefixHitRatio, few.PrefixHitRatio)
	require.Greater(t, all.PrefixHitRatio, 1.3*none.PrefixHitRatio)
	require.Less(t, all.TTFT.Mean, none.TTFT.Mean)
	require.Greater(t, few.PrefixHitRatio, none.PrefixHitRatio)
	require.Greater(t, all.PrefixHitRatio, late.PrefixHitRatio)
	require.Equal(t, all, listeners(t, 4, &Events{}), "the same again")
}
