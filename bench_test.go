package endpick_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/require"
)

// BenchmarkSum64 is the yardstick: one hash over as many bytes as the token ids
// of the longest prompt below.
func BenchmarkSum64(b *testing.B) {
	data := make([]byte, 65536)
	b.Run("bytes=65536", func(b *testing.B) {
		b.SetBytes(65536)
		for b.Loop() {
			xxhash.Sum64(data)
		}
	})
}

// benchBlocks is the limit of the index, in blocks per endpoint: as many as fit
// into its default size with up to 1,000 endpoints.
func benchBlocks(endpoints int) int {
	if endpoints > 1000 {
		return 2000
	}
	return 10_000
}

// lmetric is the preset, with a large enough index.
func lmetric(endpoints int) endpick.Config {
	config := all.LMetric()
	config.Policy.Matcher = rig.Must(prefix.NewIndex(benchIndex(endpoints)))
	return config
}

func benchIndex(endpoints int) prefix.IndexConfig {
	return prefix.IndexConfig{BlocksPerEndpoint: benchBlocks(endpoints), MaxBytes: 1 << 30}
}

// fleet is a router in the state of a busy one: every endpoint has reported,
// the index is full, and the first holders endpoints hold the first quarter of
// all prompts.
type fleet struct {
	router  *endpick.Router
	index   *prefix.Index
	blocks  int // limit per endpoint
	tokens  int
	holders int
	prompts atomic.Uint32
}

func newFleet(b *testing.B, config endpick.Config, endpoints, tokens, holders int) *fleet {
	f := emptyFleet(b, config, endpoints, tokens, holders)
	f.fillAll(b)
	return f
}

// emptyFleet is a fleet with an empty index.
func emptyFleet(b *testing.B, config endpick.Config, endpoints, tokens, holders int) *fleet {
	config.Endpoints = numbered(endpoints)
	for i := range config.Endpoints {
		e := &config.Endpoints[i]
		e.Models = []string{"llama", e.ID} // a model of its own, by which to fill it
	}
	config.ReportMaxAge = 24 * time.Hour
	f := &fleet{blocks: benchBlocks(endpoints), tokens: tokens, holders: holders}
	f.index, _ = config.Policy.Matcher.(*prefix.Index)
	f.router = rig.Must(endpick.New(config))
	for _, e := range config.Endpoints {
		require.NoError(b, f.router.Report(e.ID, endpick.Load{Waiting: 1, Running: 8, KVUsage: 0.5}))
	}
	return f
}

func (f *fleet) fillAll(b *testing.B) {
	if f.index == nil {
		return
	}
	for i, e := range f.router.Endpoints() {
		f.fill(b, i, e.Candidate.Endpoint.ID)
	}
}

// fill routes requests to one endpoint until the index has reached its limit there.
func (f *fleet) fill(b *testing.B, i int, id string) {
	p := f.prompt()
	if i >= f.holders {
		p.tokens[0] = ^uint32(i) // a head of its own
	}
	fresh := f.tokens / prefix.BlockTokens * 3 / 4
	for n := 0; n < f.blocks; n += fresh {
		rig.Must(p.route(endpick.Request{Model: id})).Done(endpick.Outcome{})
	}
}

// check checks that the measured requests found what the benchmark's name says.
func (f *fleet) check(b *testing.B) {
	if f.index == nil {
		return
	}
	var receipt endpick.Receipt
	rig.Must(f.prompt().route(endpick.Request{Model: "llama", Receipt: &receipt})).Done(endpick.Outcome{})
	holders := 0
	for _, v := range receipt.Verdicts {
		require.Contains(b, []int{0, f.tokens / 4}, v.Candidate.PrefixTokens, "three quarters are new")
		if v.Candidate.PrefixTokens > 0 {
			holders++
		}
	}
	require.Equal(b, f.holders, holders)
	stats := f.index.Stats()
	require.Len(b, stats.Endpoints, len(receipt.Verdicts))
	for _, e := range stats.Endpoints {
		require.Equal(b, f.blocks, e.Held, "slot %d is not at its bound", e.Ref.Slot)
	}
}

// prompt is one goroutine's prompt. Blocks are chained, so that one new token
// makes its block and all that follow new.
type prompt struct {
	fleet  *fleet
	tokens []uint32
	blocks []uint64
}

func (f *fleet) prompt() *prompt {
	return &prompt{fleet: f, tokens: make([]uint32, f.tokens), blocks: make([]uint64, 0, f.tokens/prefix.BlockTokens)}
}

var benchSeed = prefix.Scope{Model: "llama"}.Seed()

func (p *prompt) route(req endpick.Request) (endpick.Lease, error) {
	p.tokens[len(p.tokens)/4] = p.fleet.prompts.Add(1)
	p.blocks = prefix.AppendTokens(p.blocks[:0], benchSeed, p.tokens)
	req.Stream, req.InputTokens, req.Blocks = true, len(p.tokens), p.blocks
	return p.fleet.router.Route(req)
}

// BenchmarkRoute measures a whole request: hash the prompt in blocks of 16
// tokens, match, score, pick, open the lease, close it, update the index. Three
// quarters of the prompt are new each time, and the index is full: each request
// evicts as many blocks as it adds.
func BenchmarkRoute(b *testing.B) {
	sizes := []int{10, 100, 1000, 10000}
	for _, endpoints := range sizes {
		onFleet(b, fmt.Sprintf("policy=least-loaded/endpoints=%d", endpoints), routeAlone, func(b *testing.B) *fleet {
			return newFleet(b, rig.Must(all.ByName("least-loaded")), endpoints, 0, 0)
		})
	}
	for _, endpoints := range sizes {
		for _, tokens := range []int{2048, 16384} {
			for _, held := range []string{"tenth", "all"} {
				name := fmt.Sprintf("policy=lmetric/endpoints=%d/tokens=%d/held=%s", endpoints, tokens, held)
				holders := endpoints
				if held == "tenth" {
					holders = endpoints / 10
				}
				onFleet(b, name, routeChecked, func(b *testing.B) *fleet {
					return newFleet(b, lmetric(endpoints), endpoints, tokens, holders)
				})
			}
		}
	}
	for _, endpoints := range sizes {
		onFleet(b, fmt.Sprintf("policy=predicted-latency/endpoints=%d/tokens=16384", endpoints), routeAll, func(b *testing.B) *fleet {
			return newTrainedFleet(b, endpoints, 16384)
		})
		onFleet(b, fmt.Sprintf("policy=marginal-delay/endpoints=%d/tokens=16384", endpoints), routeAll, func(b *testing.B) *fleet {
			return newMarginalFleet(b, endpoints, 16384, anyLoad)
		})
		onFleet(b, fmt.Sprintf("policy=marginal-delay/endpoints=%d/idle", endpoints), routeAlone, func(b *testing.B) *fleet {
			return newMarginalFleet(b, endpoints, 16384, func(*rand.Rand) endpick.Load { return endpick.Load{} })
		})
	}
}

// onFleet runs a benchmark on a fleet that is made once, however often the benchmark is restarted.
func onFleet(b *testing.B, name string, run func(*testing.B, *fleet), build func(*testing.B) *fleet) {
	var f *fleet
	b.Run(name, func(b *testing.B) {
		if f == nil {
			f = build(b)
		}
		run(b, f)
	})
}

// routeAlone routes requests whose prompts nobody knows.
func routeAlone(b *testing.B, f *fleet) {
	measure(b, func() (endpick.Lease, error) {
		return f.router.Route(endpick.Request{Model: "llama", InputTokens: 2048, Stream: true})
	})
}

func routeAll(b *testing.B, f *fleet) {
	p := f.prompt()
	measure(b, func() (endpick.Lease, error) { return p.route(endpick.Request{Model: "llama"}) })
}

func routeChecked(b *testing.B, f *fleet) {
	routeAll(b, f)
	f.check(b)
}

// measure measures whole requests.
func measure(b *testing.B, route func() (endpick.Lease, error)) {
	b.ReportAllocs()
	for b.Loop() {
		l, err := route()
		if err != nil {
			b.Fatal(err)
		}
		l.Done(endpick.Outcome{})
	}
}

// newTrainedFleet routes by predicted latency. Trees predict both latencies of every candidate;
// all have different loads, and a tenth of them hold the first quarter of the prompts. The
// measured requests have no tokens, so that nothing is learned from them: only decisions are
// measured.
func newTrainedFleet(b *testing.B, endpoints, tokens int) *fleet {
	config := rig.Must(all.PredictedLatency(all.PredictedLatencyConfig{
		Index: benchIndex(endpoints), Latency: predict.LatencyConfig{Synchronous: true}, Warmup: slo.WarmupConfig{Ramp: 1},
	}))
	train(b, config.Policy.Predictor.(predict.Latency))
	f := emptyFleet(b, config, endpoints, tokens, endpoints/10)
	chance := rand.New(rand.NewPCG(1, 2))
	for i := range endpoints {
		require.NoError(b, f.router.Report(fmt.Sprintf("e%d", i), anyLoad(chance)))
	}
	f.fillAll(b)
	var receipt endpick.Receipt
	rig.Must(f.prompt().route(endpick.Request{Model: "llama", Receipt: &receipt})).Done(endpick.Outcome{})
	for _, v := range receipt.Verdicts {
		require.Equal(b, endpick.TTFT|endpick.TPOT, v.Candidate.Prediction.Has)
	}
	return f
}

// newMarginalFleet routes by marginal delay, learned from 500 responses; each endpoint
// has a load of its own, and a tenth of them hold the first quarter of the prompts.
func newMarginalFleet(b *testing.B, endpoints, tokens int, load func(*rand.Rand) endpick.Load) *fleet {
	config := rig.Must(preset.MarginalDelay(preset.MarginalDelayConfig{Index: benchIndex(endpoints)}))
	// The clock stands still while decisions are measured: a request that takes no time
	// teaches nothing.
	now := time.Unix(1_000_000, 0)
	config.Clock = func() time.Time { return now }
	f := emptyFleet(b, config, endpoints, tokens, endpoints/10)
	chance := rand.New(rand.NewPCG(1, 2))
	for i := range endpoints {
		require.NoError(b, f.router.Report(fmt.Sprintf("e%d", i), load(chance)))
	}
	for range 500 {
		require.NoError(b, f.router.Report(fmt.Sprintf("e%d", chance.IntN(endpoints)), load(chance)))
		l := rig.Must(f.router.Route(endpick.Request{Model: "llama", Stream: true, InputTokens: 16 + chance.IntN(2*tokens)}))
		c, _ := l.Candidate()
		now = now.Add(time.Duration(5e6 + 5e4*float64(c.InFlight.PrefillTokens) + 5e7*c.Waiting + 5e7*c.KVUsage + 1e6*c.Running))
		l.FirstToken()
		now = now.Add(99 * time.Duration(1e7+2e5*c.Running))
		l.Done(endpick.Outcome{OutputTokens: 100})
	}
	f.fillAll(b)
	now = now.Add(2 * time.Minute) // no endpoint is new any more
	return f
}

func anyLoad(chance *rand.Rand) endpick.Load {
	return endpick.Load{Waiting: float64(chance.IntN(8)), Running: float64(chance.IntN(64)), KVUsage: chance.Float64()}
}

// train lets models learn from 6,000 responses.
func train(b *testing.B, latency predict.Latency) {
	observes := latency.(interface {
		endpick.RoutedObserver
		endpick.FirstTokenObserver
		endpick.DoneObserver
	})
	now := time.Unix(1_000_000, 0)
	chance := rand.New(rand.NewPCG(1, 2))
	for i := range uint32(6000) {
		load := anyLoad(chance)
		req := endpick.Request{Model: "llama", Stream: true, InputTokens: 16 + chance.IntN(32768)}
		c := endpick.Candidate{Endpoint: &endpick.Endpoint{}, Waiting: load.Waiting, Running: load.Running, KVUsage: load.KVUsage}
		latency.Predict(&req, []endpick.Candidate{c})
		e := endpick.Event{Lease: endpick.LeaseRef{Generation: i + 1}, Request: &req, Candidate: &c, RoutedAt: now}
		observes.Routed(&e)
		now = now.Add(time.Duration(5e6 + 5e7*c.Waiting + 5e7*c.KVUsage + 1e6*c.Running))
		e.FirstTokenAt, e.Now = now, now
		observes.FirstToken(&e)
		now = now.Add(99 * time.Duration(1e7+2e5*c.Running))
		e.LastTokenAt, e.Now, e.OutputTokens = now, now, 100
		observes.Done(&e, &endpick.Outcome{})
	}
	health := latency.Health()[0]
	require.Equal(b, "trees", health.TTFT.Phase)
	require.Equal(b, "trees", health.TPOT.Phase)
}
