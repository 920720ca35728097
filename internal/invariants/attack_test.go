package invariants

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/engine"
	"github.com/endpick/endpick/internal/race"
	"github.com/endpick/endpick/internal/sim"
	"github.com/endpick/endpick/internal/splitmix"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
)

// attackKinds are what the attacker does; "everything" is all of them in turn.
var attackKinds = []string{"invented names", "huge refused prompts", "impossible targets", "false cached tokens", "fragmented prefixes", "one-block floods", "everything"}

const (
	attackFor   = 2 * time.Minute
	hugeTokens  = 1 << 20 // more than any server can hold
	hugePrompts = 12
)

// attackWork is a workload of the attacker, or of a harmless tenant who sends
// requests of as many tokens at the same moments.
type attackWork struct {
	kind     string
	harmless bool
}

func (a attackWork) Start(uint64) (sim.Source, error) { return &attackSource{attackWork: a}, nil }

type attackSource struct {
	attackWork
	n, huge int
}

const attackEvery = 125 * time.Millisecond

func (s *attackSource) Next() (time.Duration, bool) {
	at := time.Duration(s.n) * attackEvery
	return at, at < attackFor
}

func (s *attackSource) Done(*sim.Request, time.Duration) {}

// block is a block of the attacker's prompt n.
func block(n, i int) uint64 { return splitmix.Mix(0xa77ac4 ^ splitmix.Mix(uint64(n)<<32|uint64(i))) }

func (s *attackSource) Take() sim.Request {
	n := s.n
	s.n++
	kind := s.kind
	if kind == "everything" {
		kind = attackKinds[n%(len(attackKinds)-1)]
	}
	r := sim.Request{InputTokens: 1600, OutputTokens: 40, Tenant: "attacker", Class: "attacker"}
	every := int(attackFor/attackEvery) / hugePrompts
	switch kind {
	case "huge refused prompts":
		if s.huge < hugePrompts && s.huge*every <= n {
			s.huge++
			r.InputTokens = hugeTokens
		}
	case "one-block floods":
		r.InputTokens = sim.BlockTokens + 1
	}
	// Nobody has sent these blocks, and nobody ever will again.
	for i := range r.InputTokens / sim.BlockTokens {
		if r.InputTokens == hugeTokens && s.harmless {
			break // nobody computes them, and nobody knows them
		}
		r.Blocks = append(r.Blocks, block(n, i))
	}
	switch kind {
	case "false cached tokens": // prompts that come again
		for i := range r.Blocks {
			r.Blocks[i] = block(-2-n%24, i)
		}
	case "fragmented prefixes": // half of each is like others
		for i := range len(r.Blocks) / 2 {
			r.Blocks[i] = block(-1, i)
		}
	}
	if s.harmless {
		return r
	}
	switch kind {
	case "invented names":
		r.Tenant, r.Session, r.Model = fmt.Sprint("attacker ", n), fmt.Sprint("session ", n), fmt.Sprint("model ", n)
	case "impossible targets":
		r.SLO = endpick.SLO{TTFT: time.Millisecond, TPOT: time.Millisecond}
		r.Priority = 1000
	case "false cached tokens":
		r.Session = "replay" // see tap.Done
	case "fragmented prefixes":
		// Here too, but each leaves the others at a block of its own.
		for i := range r.Blocks {
			if r.Blocks[i] = block(n, i); i < n%len(r.Blocks) {
				r.Blocks[i] = block(-1, i)
			}
		}
	}
	return r
}

// tap is a prefix index that also measures, and through which engines lie of the
// attacker's replays: as if it had found prompts that are one to the router and
// not to the engine.
type tap struct {
	*prefix.Index
	cached, prompts float64 // tokens of the others
}

func (x *tap) Done(e *endpick.Event, o *endpick.Outcome) {
	lies := *o
	if e.Request.Session == "replay" && o.HasCachedTokens {
		lies.CachedTokens = 0
	}
	if slices.Contains(attackVictims, e.Request.Tenant) && o.Status == endpick.Completed {
		x.cached += float64(o.CachedTokens)
		x.prompts += float64(o.InputTokens)
	}
	x.Index.Done(e, &lies)
}

var attackVictims = []string{"chat", "documents"}

// figures are what the others see.
type figures struct{ hits, attained, ttft float64 }

// attacked runs the others beside the attacker, or the harmless tenant.
func attacked(t *testing.T, policy, kind string, harmless bool) figures {
	profile, err := engine.ProfileByName("llama-3.1-8b-h100")
	require.NoError(t, err)
	var index *tap
	work := func(groups, system, question, output int, rate float64) sim.Workload {
		return sim.Conversations{
			Groups: groups, UsersPerGroup: 40, Turns: 4, SystemTokens: system,
			Question: sim.Length{Mean: float64(question), Std: float64(question) / 4}, Output: sim.Length{Mean: float64(output), Std: float64(output) / 4},
			Arrivals: sim.ConstantRate(rate), Duration: attackFor, Class: "others", SLO: endpick.SLO{TTFT: 150 * time.Millisecond, TPOT: 12 * time.Millisecond},
		}
	}
	report, err := sim.Run(sim.Config{
		Router: func() (endpick.Config, error) {
			config, err := preset.ByName(policy)
			if err != nil {
				return config, err
			}
			// As small as it gets, so that there is something to push out.
			small, err := prefix.NewIndex(prefix.IndexConfig{BlocksPerEndpoint: 12_000, MaxBytes: 8 << 20})
			index = &tap{Index: small}
			config.Policy.Matcher = index
			return config, err
		},
		Fleet: sim.Fleet(4, engine.Config{Profile: profile, Blocks: 12_000}),
		Workload: sim.Merge{
			sim.Owned{Workload: work(6, 1000, 300, 150, 16), Tenant: attackVictims[0]},
			sim.Owned{Workload: work(40, 3000, 600, 100, 8), Tenant: attackVictims[1]},
			attackWork{kind, harmless},
		},
		Seed: 1,
	})
	require.NoError(t, err)
	f := figures{hits: index.cached / index.prompts, ttft: report.TTFT.Mean}
	for _, c := range report.Classes {
		if c.Name == "others" {
			f.attained = c.Attainment
		}
	}
	return f
}

// Beside an attacker the others hit their caches and meet their targets as often, to
// a twentieth, as beside a tenant who sends as many tokens and means no harm.
// Decision times are those of BenchmarkDecisionUnderAttack.
//
// With ENDPICK_LONG, each kind of attack on each of four policies.
func TestInvariantIsolationUnderAttack(t *testing.T) {
	if race.Enabled {
		t.Skip("the simulator runs in one goroutine, and takes long")
	}
	type run struct{ policy, kind string }
	runs := []run{{"predicted-latency:synchronous", "everything"}}
	for _, kind := range attackKinds {
		runs = append(runs, run{"lmetric", kind})
	}
	if os.Getenv("ENDPICK_LONG") != "" {
		runs = nil
		for _, policy := range []string{"lmetric", "load-prefix", "predicted-latency:synchronous", "marginal-delay"} {
			for _, kind := range attackKinds {
				runs = append(runs, run{policy, kind})
			}
		}
	}
	for _, r := range runs {
		t.Run(r.policy+"/"+r.kind, func(t *testing.T) {
			t.Parallel()
			a, h := attacked(t, r.policy, r.kind, false), attacked(t, r.policy, r.kind, true)
			t.Logf("%s, %s: hit ratio %.4f, beside harmless requests %.4f; targets met %.4f and %.4f; TTFT %.1f and %.1f ms", r.policy, r.kind, a.hits, h.hits, a.attained, h.attained, a.ttft, h.ttft)
			assert.InEpsilon(t, h.hits, a.hits, 0.05, "hit ratio")
			assert.InEpsilon(t, h.attained, a.attained, 0.05, "attainment")
			assert.Greater(t, h.hits, 0.2)
			assert.Greater(t, h.attained, 0.5)
			assert.Less(t, h.hits, 0.99)
		})
	}
}

// BenchmarkDecisionUnderAttack is how long a decision for the others takes after an
// hour of the attacker, and of the harmless tenant.
func BenchmarkDecisionUnderAttack(b *testing.B) {
	for _, who := range []string{"attacker", "harmless"} {
		b.Run(who, func(b *testing.B) {
			config, err := preset.ByName("predicted-latency:synchronous")
			require.NoError(b, err)
			now := time.Unix(1_000_000, 0)
			config.Seed, config.Clock = 1, func() time.Time { return now }
			for i := range 16 {
				config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint("server-", i)})
			}
			router, err := endpick.New(config)
			require.NoError(b, err)
			ask := func(req endpick.Request, refused bool) {
				lease, err := router.Route(req)
				require.NoError(b, err)
				now = now.Add(10 * time.Millisecond)
				if refused {
					lease.Done(endpick.Outcome{Status: endpick.Failed})
					return
				}
				lease.FirstToken()
				now = now.Add(10 * time.Millisecond)
				lease.Tokens(20)
				lease.Done(endpick.Outcome{OutputTokens: 20})
			}
			others := func(i int) endpick.Request {
				return endpick.Request{Model: "model", Tenant: "others", InputTokens: 1600, Blocks: chained(splitmix.Mix(uint64(i%200)), 100), Stream: true}
			}
			source := &attackSource{attackWork: attackWork{"everything", who == "harmless"}}
			for i := range 10_000 {
				r := source.Take()
				req := endpick.Request{Model: "model", Tenant: r.Tenant, Session: r.Session, InputTokens: r.InputTokens, Blocks: r.Blocks, SLO: r.SLO, Stream: true}
				ask(req, r.InputTokens == hugeTokens)
				ask(others(i), false)
			}
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				lease, err := router.Route(others(i))
				if err != nil {
					b.Fatal(err)
				}
				lease.Done(endpick.Outcome{Status: endpick.Canceled})
			}
		})
	}
}

// chained are n blocks from a seed on.
func chained(seed uint64, n int) []uint64 {
	blocks := make([]uint64, n)
	for i := range blocks {
		seed = splitmix.Mix(seed)
		blocks[i] = seed
	}
	return blocks
}
