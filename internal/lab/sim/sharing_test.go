package sim

import (
	"os"
	"path/filepath"
	"strings"
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

// sharers runs routers that share their requests, on caches that are too small, and
// checks that nothing is left behind in any of them.
func sharers(t *testing.T, routers int, s *Sharing) *Report {
	cfg := rig.Must(Experiment{Scenario: "C", Pace: Pace{Rate: 3, Requests: 300}, Servers: 4, Engine: engine.Config{Blocks: 16_000}}.Config())
	cfg.Routers, cfg.Sharing = routers, s
	var sums sums
	cfg.Router = func() (endpick.Config, error) {
		c := all.LMetric()
		c.Policy.Admitters = []endpick.Admitter{&sums}
		return c, nil
	}
	r := rig.Must(newRun(cfg))
	require.NoError(t, r.loop())
	if s != nil {
		r.now += s.Delay
		r.hear()
	}
	require.Empty(t, r.notices)
	for _, router := range r.routers {
		stats := router.Stats()
		require.Zero(t, stats.OpenLeases)
		for _, e := range router.Endpoints() {
			require.Zero(t, e.Candidate.InFlight)
		}
		if routers > 1 && s != nil {
			require.Equal(t, 300, int(stats.Routed), "each knows of all requests")
			require.Equal(t, 300-300/routers, int(stats.Mirrored))
		}
	}
	if s != nil {
		want := sums[0]
		for i := range want {
			want[i] *= routers - 1
		}
		if s.LoadOnly {
			want[1] = 0
		}
		require.Equal(t, want, sums[1], "each knows the same of the others' requests")
	}
	return r.finish()
}

// sums are of what routers know of their own requests, and of the mirrored: cached tokens, blocks, times to first token.
type sums [2][3]int

func (s *sums) of(e *endpick.Event) *[3]int {
	if e.Request.Adopted == nil {
		return &s[0]
	}
	return &s[1]
}

func (s *sums) Admit(*endpick.Request, []endpick.Candidate) error { return nil }

func (s *sums) Routed(e *endpick.Event) {
	of := s.of(e)
	of[0] += e.Candidate.PrefixTokens
	for i, b := range e.Request.Blocks {
		of[1] += (i + 1) * int(b%1000)
	}
}

func (s *sums) Done(e *endpick.Event, _ *endpick.Outcome) {
	if ttft, ok := e.TTFT(); ok {
		s.of(e)[2] += int(ttft)
	}
}

// Routers that share act as one, the less so the later the messages arrive.
func TestRoutersThatShareAreLikeOne(t *testing.T) {
	one, none, all := sharers(t, 1, nil), sharers(t, 3, nil), sharers(t, 3, &Sharing{Delay: 5 * time.Millisecond})
	late := sharers(t, 3, &Sharing{Delay: 20 * time.Second})
	load := sharers(t, 3, &Sharing{Delay: 5 * time.Millisecond, LoadOnly: true})
	t.Logf("hit ratios: one router %.3f, three that share nothing %.3f, all %.3f, all late %.3f, load %.3f",
		one.PrefixHitRatio, none.PrefixHitRatio, all.PrefixHitRatio, late.PrefixHitRatio, load.PrefixHitRatio)
	require.Greater(t, all.PrefixHitRatio, 1.2*none.PrefixHitRatio)
	require.Greater(t, all.PrefixHitRatio, 0.95*one.PrefixHitRatio)
	require.Less(t, load.PrefixHitRatio, 0.9*all.PrefixHitRatio)
	require.Less(t, late.PrefixHitRatio, all.PrefixHitRatio)
	require.Less(t, all.TTFT.Mean, none.TTFT.Mean)
	require.Equal(t, all, sharers(t, 3, &Sharing{Delay: 5 * time.Millisecond}), "the same again")
	sharers(t, 3, &Sharing{})
}

// sparingly skips a long single-goroutine test under the race detector, where it
// takes ten times as long and finds nothing that shorter tests would not.
func sparingly(t *testing.T) {
	if rig.Race {
		t.Skip("much work in one goroutine")
	}
}

// sharedTrace is the path of a trace next to the repository; without it the
// test is skipped.
func sharedTrace(t testing.TB, name string) string {
	path := filepath.Join("../../../../shared/traces", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no ../shared/traces/%s beside the repository", name)
	}
	return path
}

// requestsOf takes all requests of a run, each of which ends a while after it was sent.
func requestsOf(t *testing.T, w Workload, while time.Duration) (all []Request) {
	source := rig.Must(w.Start(1))
	ended := 0
	for {
		at, more := source.Next()
		if ended < len(all) && (!more || all[ended].Arrival+while <= at) {
			source.Done(&all[ended], all[ended].Arrival+while)
			ended++
			continue
		}
		if !more {
			return all
		}
		r := source.Take()
		r.Arrival = at
		all = append(all, r)
	}
}

// named returns the maker of a preset's router. Models are fitted synchronously: in the background,
// decisions would depend on the machine.
func named(policy string) func() (endpick.Config, error) {
	if strings.HasPrefix(policy, "predicted-latency") && !strings.Contains(policy, ":synchronous") {
		policy += ":synchronous"
	}
	return func() (endpick.Config, error) { return all.ByName(policy) }
}

// listeners runs routers with or without cache events, on caches that are too small.
func listeners(t *testing.T, routers int, events *Events) *Report {
	cfg := rig.Must(Experiment{Scenario: "C", Pace: Pace{Rate: 3, Requests: 200}, Servers: 4, Engine: engine.Config{Blocks: 16_000}}.Config())
	cfg.Routers, cfg.Events = routers, events
	cfg.Router = func() (endpick.Config, error) {
		c := all.LMetric()
		if events != nil {
			c.Policy.Matcher = rig.Must(precise.New(precise.Config{Approximate: c.Policy.Matcher.(*prefix.Index)}))
		}
		return c, nil
	}
	return mustRun(t, cfg)
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
