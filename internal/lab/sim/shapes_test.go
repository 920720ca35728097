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
	"github.com/endpick/endpick/slo/quota"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// midLoad is a rate in requests per second at which a scenario's fleet queues little.
var midLoad = map[string]float64{"A": 20, "B": 8, "C": 6, "D": 2}

func runScenario(t *testing.T, name string, router func() (endpick.Config, error)) *Report {
	sparingly(t)
	cfg := rig.Must(Experiment{Scenario: name, Pace: Pace{Rate: midLoad[name], Requests: 1200}}.Config())
	cfg.Router = router
	return mustRun(t, cfg)
}

// Prefix-aware routing beats round-robin where prompts are shared. In A they are short
// and answers long: the prefill saved by keeping conversations in place is worth less than the balance lost.
func TestPrefixAwareBeatsRoundRobin(t *testing.T) {
	for name, least := range map[string]float64{"A": 0.95, "B": 0.95, "C": 0.5, "D": 0.9} {
		blind, aware := runScenario(t, name, named("round-robin")), runScenario(t, name, named("lmetric"))
		t.Logf("%s: TTFT %.0f → %.0f ms, E2E %.1f → %.1f s, hits %.2f → %.2f", name, blind.TTFT.Mean, aware.TTFT.Mean,
			blind.E2E.Mean/1000, aware.E2E.Mean/1000, blind.PrefixHitRatio, aware.PrefixHitRatio)
		require.Less(t, aware.TTFT.Mean, least*blind.TTFT.Mean, name)
		require.Less(t, aware.E2E.Mean, 1.05*blind.E2E.Mean, name)
		require.Greater(t, aware.PrefixHitRatio, blind.PrefixHitRatio, name)
	}
}

// conversation is the start of Mooncake's conversation trace on ten servers
// with a mixture of experts, judged as in LMetric.
func conversation(t *testing.T, router func() (endpick.Config, error)) *Report {
	trace := rig.Must(OpenTrace(sharedTrace(t, "mooncake_conversation_first_half.jsonl.gz")))
	trace.Records = trace.Records[:2000]
	profile := rig.Must(engine.ProfileByName("qwen3-30b-a3b-rtxpro6000-dp2"))
	return mustRun(t, Config{Router: router, Fleet: Fleet(10, engine.Config{Profile: profile}), Workload: trace})
}

// LMetric against vLLM on the conversation trace: far lower TTFT, lower TPOT, and no
// worse than linear. (The paper: −92 % and −24 %, on 16 GPUs at half load.)
func TestLMetricOnConversations(t *testing.T) {
	sparingly(t)
	vllm, lmetric, linear := conversation(t, named("vllm")), conversation(t, named("lmetric")), conversation(t, named("linear"))
	t.Logf("TTFT %.0f → %.0f ms (linear %.0f), TPOT %.1f → %.1f ms (linear %.1f)", vllm.TTFT.Mean, lmetric.TTFT.Mean, linear.TTFT.Mean,
		vllm.TPOT.Mean, lmetric.TPOT.Mean, linear.TPOT.Mean)
	require.Less(t, lmetric.TTFT.Mean, 0.6*vllm.TTFT.Mean)
	require.Less(t, lmetric.TPOT.Mean, 0.8*vllm.TPOT.Mean)
	require.Less(t, lmetric.E2E.Mean, 1.02*linear.E2E.Mean)

	// A policy that sees only load spreads prefill most evenly.
	level := conversation(t, named("least-loaded"))
	for _, other := range []*Report{conversation(t, named("round-robin")), linear, lmetric} {
		require.Less(t, level.Imbalance, other.Imbalance, other.Policy)
	}
}

// Policies that keep the sessions of agents in place find most of their prompts in caches;
// one that does not finds a fraction.
func TestAgentsOnAFleet(t *testing.T) {
	hits := func(policy string) float64 {
		return mustRun(t, Config{
			Router: named(policy), Fleet: Fleet(4, engine.Config{Blocks: 6000}), Seed: 1,
			Workload: Agents{Rate: 2, Scale: 16, Requests: 1500},
		}).PrefixHitRatio
	}
	blind := hits("round-robin")
	for _, policy := range []string{"lmetric", "preble", "sglang", "predicted-latency:synchronous"} {
		require.Greater(t, hits(policy), blind+0.2, policy)
	}
}

// The best weight of the linear combination depends on the workload.
func TestBestLambdaDiffers(t *testing.T) {
	// Many groups with long system prompts call for affinity, few with short ones for balance.
	require.Less(t, runScenario(t, "C", named("linear:0.7")).TTFT.Mean, 0.9*runScenario(t, "C", named("linear:0.3")).TTFT.Mean)
	require.Less(t, runScenario(t, "A", named("linear:0.3")).E2E.Mean, 0.95*runScenario(t, "A", named("linear:0.7")).E2E.Mean)
}

// Two tenants share a fleet equally. When one sends ten times its share, the other's
// TTFT p95 stays within a fifth of what it is alone with a quota, and does not without one.
func TestTenantsKeepTheirShare(t *testing.T) {
	profile := rig.Must(engine.ProfileByName("llama-3.1-8b-h100"))
	const share = 12 // requests a second
	tenant := func(name string, perSecond float64) Workload {
		return Conversations{
			Groups: 20, UsersPerGroup: 1000, Turns: 1, SystemTokens: 500,
			Question: Length{Mean: 1500, Std: 400}, Output: Length{Mean: 200, Std: 50},
			Arrivals: ConstantRate(perSecond), Duration: 2 * time.Minute, Tenant: name,
		}
	}
	quiet := tenant("quiet", share)
	loud := tenant("loud", 10*share)
	run := func(limits *quota.Limits, work ...Workload) map[string][]float64 {
		got := &byTenant{map[string][]float64{}}
		mustRun(t, Config{
			Router: func() (endpick.Config, error) {
				c := all.LMetric()
				c.Policy.Filters = append(c.Policy.Filters, got)
				if limits == nil {
					return c, nil
				}
				q, err := quota.New(quota.Config{Limits: func(string) quota.Limits { return *limits }})
				c.Policy.Admitters = append(c.Policy.Admitters, q)
				return c, err
			},
			Fleet: Fleet(8, engine.Config{Profile: profile}), Workload: Merge(work), Seed: 1,
		})
		return got.ttft
	}
	// A request has a prompt of 2,000 tokens and 200 of output, which count twice; a fifth more leaves room for chance.
	limits := &quota.Limits{Rate: 1.2 * share * (2000 + 2*200), Burst: 20 * share * (2000 + 2*200)}
	alone, both, without := run(limits, quiet), run(limits, quiet, loud), run(nil, quiet, loud)
	p95 := func(of map[string][]float64) float64 { return summarize(of["quiet"]).P95 }
	t.Logf("quiet's TTFT p95: alone %.0f ms, beside loud %.0f ms, without a quota %.0f ms", p95(alone), p95(both), p95(without))
	assert.LessOrEqual(t, p95(both), 1.2*p95(alone))
	assert.Greater(t, p95(without), 2*p95(alone))
	assert.Len(t, both["quiet"], len(without["quiet"]), "none is refused")
	got := len(both["loud"])
	assert.Greater(t, got, share*120, "it gets its share, and no less for asking for more")
	assert.Less(t, got, 2*share*120)
}

// byTenant records the TTFTs of completed requests, in milliseconds.
type byTenant struct{ ttft map[string][]float64 }

func (*byTenant) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	return candidates
}

func (b *byTenant) Done(e *endpick.Event, o *endpick.Outcome) {
	if ttft, ok := e.TTFT(); ok && o.Status == endpick.Completed {
		b.ttft[e.Request.Tenant] = append(b.ttft[e.Request.Tenant], millis(ttft))
	}
}

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
	rig.SkipUnderRace(t, "much work in one goroutine")
}

// sharedTrace is the path of a trace next to the repository; without it the test is skipped.
func sharedTrace(t testing.TB, name string) string {
	path := filepath.Join("../../../../shared/traces", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no ../shared/traces/%s beside the repository", name)
	}
	return path
}

// requestsOf takes all requests of a run, each of which ends a while after it was sent.
func requestsOf(w Workload, while time.Duration) (all []Request) {
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
