package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/stretchr/testify/require"
)

func mustRun(t testing.TB, cfg Config) *Report {
	rep := rig.Must(Run(cfg))
	require.Equal(t, rep.Requests, rep.Completed+rep.Rejected)
	return rep
}

// hand is a workload of requests at given times.
type hand = Given

// plain takes 1 ms a step, whatever is in it.
var plain = engine.Config{Profile: engine.Profile{Name: "plain", StepMicros: 1000}}

func at(ms int, input, output int) Request {
	return Request{Arrival: time.Duration(ms) * time.Millisecond, InputTokens: input, OutputTokens: output}
}

func TestLatenciesByHand(t *testing.T) {
	slow := plain
	slow.Profile.StepMicros = 3000
	work := hand{at(0, 10, 5), at(0, 10, 1), at(100, 10, 11)}
	work[0].SLO.TTFT = time.Millisecond
	work[1].SLO.TTFT = time.Millisecond
	work[2].SLO, work[2].Class = endpick.SLO{TPOT: 2 * time.Millisecond}, "gold"
	work[2].Tenant = "other"
	rep := mustRun(t, Config{
		Router: named("round-robin"), Fleet: []Server{{Engine: plain}, {Engine: slow}}, Workload: work,
	})
	// 1 + 4 ms on the first, 3 ms on the second, and the third back on the first: 1 + 10 ms.
	require.Equal(t, []float64{1, 1, 3}, rep.TTFT.sorted)
	require.Equal(t, []float64{1, 1}, rep.TPOT.sorted)
	require.Equal(t, []float64{3, 5, 11}, rep.E2E.sorted)
	require.Equal(t, 3, rep.Completed)
	require.Equal(t, 0.111, rep.Seconds)
	require.InDelta(t, 3/0.111, rep.ThroughputRPS, 1e-9)
	require.InDelta(t, 17/0.111, rep.OutputTPS, 1e-9)
	require.InDelta(t, 17.0*17/(2*(6*6+11*11)), rep.Jain, 1e-12)
	require.Equal(t, []Class{
		{Name: "default", Requests: 2, Met: 1, Attainment: 0.5, GoodputRPS: 1 / 0.111},
		{Name: "gold", Requests: 1, Met: 1, Attainment: 1, GoodputRPS: 1 / 0.111},
	}, rep.Classes)
	require.InDelta(t, 2.0/3, *rep.SLOAttainment, 1e-12)
	require.InDelta(t, 2/0.111, rep.GoodputRPS, 1e-9)
	require.Equal(t, []int{2, 1}, []int{rep.Endpoints[0].Completed, rep.Endpoints[1].Completed})
	require.Equal(t, []float64{0.002, 0.003}, []float64{rep.Endpoints[0].PrefillSeconds, rep.Endpoints[1].PrefillSeconds})
	require.InDelta(t, 0.0005/0.0025, rep.Imbalance, 1e-12)
	require.Nil(t, mustRun(t, Config{Router: named("random"), Fleet: Fleet(1, plain), Workload: hand{at(0, 1, 1)}}).SLOAttainment)
}

// One user, questions of 160 and answers of 800 tokens: of the second to fifth prompt
// an index fed with prompts alone knows what was sent before, 160/1120, 1120/2080,
// 2080/3040 and 3040/4000; the engine, and an index fed with answers too, all but the
// question.
func TestColdYetWarm(t *testing.T) {
	cfg := Config{
		Router: named("lmetric"), Fleet: Fleet(1, engine.Config{}),
		Workload: Conversations{
			Groups: 1, UsersPerGroup: 1, Question: Length{Mean: 160}, Output: Length{Mean: 800},
			Arrivals: ConstantRate(1), Requests: 5,
		},
	}
	require.Zero(t, *mustRun(t, cfg).ColdYetWarm)
	cfg.PromptsOnly = true
	require.Equal(t, 0.8, *mustRun(t, cfg).ColdYetWarm)
	cfg.Router = named("round-robin")
	require.Nil(t, mustRun(t, cfg).ColdYetWarm, "no index, no opinion")
}

// A window holds the work of its own time.
func TestWindowsByHand(t *testing.T) {
	rep := mustRun(t, Config{
		Router: named("round-robin"), Fleet: Fleet(2, plain),
		Workload: hand{at(0, 10, 1), at(1, 10, 1), at(12_000, 10, 1), at(25_000, 10, 1), at(31_000, 10, 20_000)},
	})
	// A millisecond each, in turn: one on each server, then one at a time. What comes after the last arrival doesn't count.
	require.InDelta(t, (0+0.5+0.5)/(1+0.5+0.5), rep.Imbalance, 1e-12)
}

// A tenant that got nothing has been treated unfairly.
func TestFairnessCountsWhoGotNothing(t *testing.T) {
	small := plain
	small.Blocks = 10
	work := hand{at(0, 10, 5), at(0, 1000, 5)}
	work[0].Tenant, work[1].Tenant = "served", "never"
	rep := mustRun(t, Config{Router: named("round-robin"), Fleet: Fleet(1, small), Workload: work})
	require.Equal(t, []int{1, 1}, []int{rep.Completed, rep.TooLong})
	require.Equal(t, 0.5, rep.Jain)
}

func TestPromptsThatNeverFit(t *testing.T) {
	small := plain
	small.Blocks = 10
	rep := mustRun(t, Config{
		Router: named("round-robin"), Fleet: []Server{{Engine: small}, {Engine: plain}},
		Workload: hand{at(0, 161, 1), at(1, 161, 1), at(2, 1<<20, 1)},
	})
	require.Equal(t, 2, rep.Completed, "both on the large one")
	require.Equal(t, 1, rep.TooLong)
	require.Equal(t, 1, rep.Rejected)
}

func TestRequestsThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		request Request
		err     string
	}{
		{at(0, 10, 0), "sim: request 2: engine: request 1: OutputTokens 0 is below 1"},
		{at(0, -100, 1), "sim: request 2: endpick: "},
	} {
		_, err := Run(Config{Router: named("random"), Fleet: Fleet(2, plain), Workload: hand{at(0, 1, 1), c.request}})
		require.ErrorContains(t, err, c.err)
	}
}

// With stale reports, requests between two reports see the same loads; the
// router's own account still tells the servers apart.
func TestReportsAreAsOldAsTheyAre(t *testing.T) {
	var seen []float64
	router := func() (endpick.Config, error) {
		return endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{
			Weight: 1, Scorer: scorer.Cost("watch", func(_ *endpick.Request, c *endpick.Candidate) float64 {
				seen = append(seen, c.KVUsage)
				return 1
			}),
		}}}}, nil
	}
	cfg := Config{Router: router, Fleet: Fleet(1, plain), Workload: hand{at(0, 160, 100), at(5, 10, 1), at(14, 10, 1), at(16, 10, 1)}}
	usage := func(interval time.Duration) []float64 {
		seen = nil
		cfg.ReportInterval = interval
		mustRun(t, cfg)
		var blocks []float64
		for _, v := range seen {
			blocks = append(blocks, math.Round(v*engine.DefaultBlocks))
		}
		return blocks
	}
	const none = engine.DefaultBlocks / 2 // no report yet: one half
	require.Equal(t, []float64{0, 11, 11, 11}, usage(0))
	require.Equal(t, []float64{none, 0, 11, 11}, usage(10*time.Millisecond)) // reports at 0 and 10 ms
}

func TestRefusedConfigs(t *testing.T) {
	good := Config{Router: named("random"), Fleet: Fleet(2, plain), Workload: hand{at(0, 1, 1)}}
	for _, c := range []struct {
		change func(*Config)
		err    string
	}{
		{func(c *Config) { c.Router = named("best") }, "is unknown"},
		{func(c *Config) { c.Fleet[1].Engine.Blocks = -1 }, "sim: Fleet[1]: engine: config: Blocks -1 is not within [1, 16777216]"},
		{func(c *Config) { c.Fleet[0].Endpoint.ID, c.Fleet[1].Endpoint.ID = "x", "x" }, `"x"`},
	} {
		bad := good
		bad.Fleet = slices.Clone(good.Fleet)
		c.change(&bad)
		_, err := Run(bad)
		require.ErrorContains(t, err, c.err)
	}
	mustRun(t, good)
}

func TestSummaries(t *testing.T) {
	samples := make([]float64, 100)
	for i := range samples {
		samples[i] = float64(100 - i)
	}
	s := summarize(samples)
	require.Equal(t, []float64{50.5, 50, 90, 95, 99}, []float64{s.Mean, s.P50, s.P90, s.P95, s.P99})
	require.Equal(t, []float64{1, 51, 100}, []float64{s.Quantile(0), s.Quantile(0.501), s.Quantile(1)})
	require.Equal(t, Summary{}, summarize(nil))
	require.Equal(t, 1.0, jain([]float64{3, 3, 3}))
	require.Equal(t, 0.25, jain([]float64{4, 0, 0, 0}))
	require.Equal(t, 1.0, jain(nil))
}

// Routers do not know what engines do not report.
func TestServersThatTellNothing(t *testing.T) {
	for _, tells := range []bool{true, false} {
		w := &eavesdropper{}
		cfg := Config{
			Router: func() (endpick.Config, error) {
				return endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Weight: 1, Scorer: w}}}}, nil
			},
			Fleet: Fleet(1, plain), Workload: hand{at(0, 160, 100)}, NoUsage: !tells,
		}
		cfg.Fleet[0].Undescribed = !tells
		mustRun(t, cfg)
		require.Equal(t, tells, w.outcome.HasCachedTokens)
		require.Equal(t, tells, w.outcome.InputTokens == 160)
		require.Equal(t, 100, w.outcome.OutputTokens, "which are counted on their way")
		require.Equal(t, tells, w.endpoint.KVTokens == engine.DefaultBlocks*engine.DefaultBlockTokens)
		require.Equal(t, tells, w.endpoint.MaxSequences == engine.DefaultMaxSequences)
		require.Equal(t, tells, w.endpoint.Variant == "plain")
	}
}

// eavesdropper keeps the latest loads it saw.
type eavesdropper struct {
	endpoint endpick.Endpoint
	outcome  endpick.Outcome
}

func (*eavesdropper) Name() string { return "eavesdropper" }

func (w *eavesdropper) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		w.endpoint, dst[i] = *candidates[i].Endpoint, 1
	}
}

func (w *eavesdropper) Done(_ *endpick.Event, o *endpick.Outcome) { w.outcome = *o }
