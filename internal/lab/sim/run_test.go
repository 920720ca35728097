package sim

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func mustRun(t testing.TB, cfg Config) *Report {
	rep := rig.Must(Run(cfg))
	require.Equal(t, rep.Requests, rep.Completed+rep.Rejected)
	return rep
}

// plain takes 1 ms a step, whatever is in it.
var plain = engine.Config{Profile: engine.Profile{Name: "plain", StepMicros: 1000}}

func at(ms int, input, output int) Request {
	return Request{Arrival: time.Duration(ms) * time.Millisecond, InputTokens: input, OutputTokens: output}
}

func TestLatenciesByHand(t *testing.T) {
	slow := plain
	slow.Profile.StepMicros = 3000
	work := Given{at(0, 10, 5), at(0, 10, 1), at(100, 10, 11)}
	work[0].SLO.TTFT, work[1].SLO.TTFT = time.Millisecond, time.Millisecond
	work[2].SLO, work[2].Class = endpick.SLO{TPOT: 2 * time.Millisecond}, "gold"
	work[2].Tenant = "other"
	rep := mustRun(t, Config{Router: named("round-robin"), Fleet: []Server{{Engine: plain}, {Engine: slow}}, Workload: work})
	// 1 + 4 ms on the first, 3 ms on the second, and the third back on the first: 1 + 10 ms.
	require.Equal(t, [][]float64{{1, 1, 3}, {1, 1}, {3, 5, 11}}, [][]float64{rep.TTFT.sorted, rep.TPOT.sorted, rep.E2E.sorted})
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
	require.Nil(t, mustRun(t, Config{Router: named("random"), Fleet: Fleet(1, plain), Workload: Given{at(0, 1, 1)}}).SLOAttainment)
	for target, met := range map[int]int{10: 0, 11: 1} { // of a whole response, which has no TPOT
		work[2].Whole, work[2].SLO = true, endpick.SLO{TTFT: time.Duration(target) * time.Millisecond, TPOT: 1}
		require.Equal(t, met, mustRun(t, Config{Router: named("random"), Fleet: Fleet(1, plain), Workload: work[2:]}).Classes[0].Met)
	}
}

// One user, questions of 160 and answers of 800 tokens: of the second to fifth prompt
// an index fed with prompts alone knows what was sent before, 160/1120, 1120/2080,
// 2080/3040 and 3040/4000; the engine, and an index fed with answers too, all but the question.
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
		Workload: Given{at(0, 10, 1), at(1, 10, 1), at(12_000, 10, 1), at(25_000, 10, 1), at(31_000, 10, 20_000)},
	})
	// A millisecond each, in turn: one on each server, then one at a time. What comes after the last arrival doesn't count.
	require.InDelta(t, (0+0.5+0.5)/(1+0.5+0.5), rep.Imbalance, 1e-12)
}

// A tenant that got nothing has been treated unfairly.
func TestFairnessCountsWhoGotNothing(t *testing.T) {
	small := plain
	small.Blocks = 10
	work := Given{at(0, 10, 5), at(0, 1000, 5)}
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
		Workload: Given{at(0, 161, 1), at(1, 161, 1), at(2, 1<<20, 1)},
	})
	require.Equal(t, []int{2, 1, 1}, []int{rep.Completed, rep.TooLong, rep.Rejected}, "both on the large one")
}

func TestRequestsThatCannotBe(t *testing.T) {
	for err, request := range map[string]Request{
		"sim: request 2: engine: request 1: OutputTokens 0 is below 1": at(0, 10, 0),
		"sim: request 2: endpick: ":                                    at(0, -100, 1),
	} {
		require.ErrorContains(t, rig.Err(Run(Config{Router: named("random"), Fleet: Fleet(2, plain), Workload: Given{at(0, 1, 1), request}})), err)
	}
}

func scoring(s endpick.Scorer) endpick.Config {
	return endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Weight: 1, Scorer: s}}}}
}

// With stale reports, requests between two reports see the same loads; the
// router's own account still tells the servers apart.
func TestReportsAreAsOldAsTheyAre(t *testing.T) {
	var seen []float64
	router := func() (endpick.Config, error) {
		return scoring(scorer.Cost("watch", func(_ *endpick.Request, c *endpick.Candidate) float64 {
			seen = append(seen, c.KVUsage)
			return 1
		})), nil
	}
	cfg := Config{Router: router, Fleet: Fleet(1, plain), Workload: Given{at(0, 160, 100), at(5, 10, 1), at(14, 10, 1), at(16, 10, 1)}}
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
	good := Config{Router: named("random"), Fleet: Fleet(2, plain), Workload: Given{at(0, 1, 1)}}
	for err, change := range map[string]func(*Config){
		"is unknown": func(c *Config) { c.Router = named("best") },
		"sim: Fleet[1]: engine: config: Blocks -1 is not within [1, 16777216]": func(c *Config) { c.Fleet[1].Engine.Blocks = -1 },
		`"x"`: func(c *Config) { c.Fleet[0].Endpoint.ID, c.Fleet[1].Endpoint.ID = "x", "x" },
	} {
		bad := good
		bad.Fleet = slices.Clone(good.Fleet)
		change(&bad)
		require.ErrorContains(t, rig.Err(Run(bad)), err)
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
	require.Equal(t, []float64{1, 0.25, 1}, []float64{jain([]float64{3, 3, 3}), jain([]float64{4, 0, 0, 0}), jain(nil)})
}

// Routers do not know what engines do not report.
func TestServersThatTellNothing(t *testing.T) {
	for _, tells := range []bool{true, false} {
		w := &eavesdropper{}
		cfg := Config{
			Router: func() (endpick.Config, error) { return scoring(w), nil },
			Fleet:  Fleet(1, plain), Workload: Given{at(0, 160, 100)}, NoUsage: !tells,
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

func (w *eavesdropper) Score(_ *endpick.Request, candidates []endpick.Candidate, _ []float64) {
	w.endpoint = *candidates[0].Endpoint
}

func (w *eavesdropper) Done(_ *endpick.Event, o *endpick.Outcome) { w.outcome = *o }

// watched is a source that checks what a run does with its requests.
type watched struct {
	Source
	t     require.TestingT
	last  time.Duration
	taken int
	done  int
}

func (w *watched) Take() Request {
	at, ok := w.Next()
	require.True(w.t, ok)
	w.last = max(w.last, at)
	w.taken++
	r := w.Source.Take()
	r.Arrival = at
	return r
}

func (w *watched) Done(r *Request, now time.Duration) {
	require.GreaterOrEqual(w.t, now, r.Arrival, "ends before it arrives")
	w.done++
	w.Source.Done(r, now)
}

// workloadFunc is a function used as a workload.
type workloadFunc func(seed uint64) (Source, error)

func (f workloadFunc) Start(seed uint64) (Source, error) { return f(seed) }

// For random workloads and fleets: arrived = completed + rejected, every lease is closed, the routers' accounts are empty, and the KV blocks of every engine
// balance.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Conversations{
			Groups: rapid.IntRange(1, 4).Draw(t, "groups"), UsersPerGroup: rapid.IntRange(1, 20).Draw(t, "users"),
			SystemTokens: rapid.IntRange(0, 200).Draw(t, "system"),
			Question:     Length{Mean: rapid.Float64Range(1, 300).Draw(t, "question"), Std: 100},
			Output:       Length{Mean: rapid.Float64Range(1, 100).Draw(t, "output"), Std: 50, Shape: LogNormal, Max: 500},
			Turns:        rapid.IntRange(0, 3).Draw(t, "turns"),
			Requests:     rapid.IntRange(1, 60).Draw(t, "requests"),
		}
		c.Arrivals = ConstantRate(rapid.Float64Range(1, 200).Draw(t, "rate"))
		c.Arrivals.CV = rapid.SampledFrom([]float64{0, 0.5, 3}).Draw(t, "cv")
		n := rapid.IntRange(1, 5).Draw(t, "servers")
		var fleet []Server
		for range n {
			profile := rig.Must(engine.ProfileByName(rapid.SampledFrom(engine.ProfileNames()).Draw(t, "profile")))
			fleet = append(fleet, Server{Engine: engine.Config{
				Profile: profile, Blocks: rapid.IntRange(20, 300).Draw(t, "blocks"),
				MaxSequences: rapid.IntRange(1, 16).Draw(t, "sequences"), MaxBatchedTokens: 256,
			}})
		}
		cfg := Config{
			Router: named(rapid.SampledFrom(all.Names()).Draw(t, "policy")), Fleet: fleet,
			Seed:    rapid.Uint64Min(1).Draw(t, "seed"),
			Routers: rapid.IntRange(1, 3).Draw(t, "routers"),
		}
		if rapid.Bool().Draw(t, "stale") {
			cfg.ReportInterval = time.Duration(rapid.IntRange(1, 5000).Draw(t, "interval")) * time.Millisecond
		}
		var source *watched
		cfg.Workload = workloadFunc(func(seed uint64) (Source, error) {
			s, err := c.Start(seed)
			source = &watched{Source: s, t: t}
			return source, err
		})
		r := rig.Must(newRun(cfg))
		require.NoError(t, r.loop())
		rep := r.finish()

		require.Equal(t, rep.Requests, rep.Completed+rep.Rejected)
		require.Equal(t, c.Requests, rep.Requests)
		require.Equal(t, []int{rep.Requests, rep.Requests}, []int{source.taken, source.done})
		require.Equal(t, rep.Completed, rep.E2E.Count)
		for _, router := range r.routers {
			require.Zero(t, router.Stats().OpenLeases)
			require.Zero(t, router.Stats().StageErrors)
		}
		for i := range r.servers {
			l := r.servers[i].engine.Load(r.now)
			require.Zero(t, l.Running+l.Waiting)
			require.Zero(t, l.KVUsage)
		}

		require.Equal(t, string(rig.Must(json.Marshal(rep))), string(rig.Must(json.Marshal(rig.Must(Run(cfg))))), "the same config gives the same report")
	})
}

// witness is a filter that keeps every candidate and records where requests went, and when.
type witness struct {
	start time.Time
	sent  map[string][]time.Duration
}

func (*witness) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	return candidates
}

func (w *witness) Routed(e *endpick.Event) {
	w.sent[e.Candidate.Endpoint.ID] = append(w.sent[e.Candidate.Endpoint.ID], e.RoutedAt.Sub(w.start))
}

// share is a server's share of the requests between two times.
func (w *witness) share(id string, from, to time.Duration) float64 {
	own, all := 0.0, 0.0
	for server, times := range w.sent {
		for _, at := range times {
			if at >= from && at < to {
				all++
				if server == id {
					own++
				}
			}
		}
	}
	return own / all
}

// shareOfASlowServer makes one of four servers ten times as slow from the first minute to the third.
func shareOfASlowServer(t *testing.T, policy string, work Workload) *witness {
	profile := rig.Must(engine.ProfileByName("llama-3.1-8b-h100"))
	w := &witness{epoch, map[string][]time.Duration{}}
	r := rig.Must(newRun(Config{
		Fleet: Fleet(4, engine.Config{Profile: profile}), Workload: work, Seed: 1,
		Router: func() (endpick.Config, error) {
			c, err := all.ByName(policy)
			if policy == "predicted-latency" { // without its goroutine
				c, err = all.PredictedLatency(all.PredictedLatencyConfig{Latency: predict.LatencyConfig{Synchronous: true}})
			}
			c.Policy.Filters = append(c.Policy.Filters, w)
			return c, err
		},
	}))
	r.source = &slowing{r.source, r}
	require.NoError(t, r.loop())
	return w
}

// slowing is the work of a run, during which a server is slow.
type slowing struct {
	Source
	run *run
}

func (s *slowing) Take() Request {
	factor := 1.0
	if now := s.run.now; now >= time.Minute && now < 3*time.Minute {
		factor = 10
	}
	s.run.servers[1].engine.SetSlowness(s.run.now, factor)
	s.run.armEngine(1)
	return s.Source.Take()
}

// wholes are requests whose responses do not stream.
type wholes struct{ Source }

func (s wholes) Take() Request {
	r := s.Source.Take()
	r.Whole = true
	return r
}

// The ends of responses that do not stream teach the default as much as streams do. Nobody waits for their
// first tokens, so that on servers without room they take a tenth less; a third more if they taught only times.
func TestWholeResponses(t *testing.T) {
	var sum [2]float64
	engines := engine.Config{Profile: rig.Must(engine.ProfileByName("llama-3.1-8b-a100")), Blocks: 1024}
	is := func(n int, std float64) Length {
		return Length{Mean: float64(n), Std: std, Shape: LogNormal, Max: 5 * n}
	}
	work := Sessions{Groups: 4, System: is(2000, 0), Adds: is(300, 300), Output: is(200, 200), Turns: is(10, 0), Pause: is(300, 0), Rate: 5.5, Requests: 3000}
	for i := range 12 {
		r := rig.Must(newRun(Config{Router: named("marginal-delay"), Fleet: Fleet(4, engines), Workload: work, Seed: uint64(i / 2)}))
		if i%2 == 1 {
			r.source = wholes{r.source}
		}
		require.NoError(t, r.loop())
		sum[i%2] += r.finish().E2E.Mean
	}
	require.Less(t, sum[1], sum[0])
}

// While it is slow it gets a tenth of the requests at most, after ten seconds, and a minute after its
// recovery, or two where conversations have gone elsewhere, it has its share again: under every preset
// that looks at load or latency; under those that learn also if it is known from long responses, or wanted
// for its cache.
func TestASlowServerRecovers(t *testing.T) {
	length := func(mean float64) Length { return Length{Mean: mean, Std: mean / 4} }
	alone := Conversations{Groups: 1 << 16, UsersPerGroup: 1, Turns: 1, Question: Length{Mean: 800, Std: 400, Shape: LogNormal, Max: 4000}}
	short, chat := alone, alone
	short.Output, chat.Output = length(50), length(600)
	for name, work := range map[string]struct {
		Conversations
		rate  float64
		again time.Duration
	}{
		"short": {short, 40, 4 * time.Minute}, "chat": {chat, 15, 4 * time.Minute},
		"turns": {Conversations{Groups: 20, UsersPerGroup: 50, SystemTokens: 1000, Question: length(200), Output: length(200)}, 20, 5 * time.Minute},
	} {
		for _, policy := range all.Names() {
			learns := policy == "predicted-latency" || policy == "marginal-delay"
			switch {
			case policy == "random", policy == "round-robin", policy == "always-busiest":
				continue
			case policy == "predicted-latency" && rig.Race: // its trees take a minute
				continue
			case name != "short" && !learns:
				continue
			}
			w := work.Conversations
			w.Arrivals, w.Duration = ConstantRate(work.rate), work.again+20*time.Second
			seen := shareOfASlowServer(t, policy, w)
			const id = "server-001"
			slow, well := seen.share(id, 70*time.Second, 3*time.Minute), seen.share(id, work.again, work.again+time.Minute)
			t.Logf("%s, %s: while it is slow %.1f %%, in the minute after %.1f %%, then %.1f %%", name, policy, 100*slow, 100*seen.share(id, 3*time.Minute, 4*time.Minute), 100*well)
			require.LessOrEqual(t, slow, 0.1)
			require.GreaterOrEqual(t, well, 0.25*3/4)
		}
	}
}
