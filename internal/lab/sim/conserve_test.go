package sim

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/scorer/preset/all"
)

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

// For random workloads, fleets and failures: arrived = completed + rejected + lost, every
// lease is closed, the routers' accounts are empty, and the KV blocks of every engine
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
		for i := range n {
			profile, err := engine.ProfileByName(rapid.SampledFrom(engine.ProfileNames()).Draw(t, "profile"))
			require.NoError(t, err)
			fleet = append(fleet, Server{Absent: i > 0 && rapid.Bool().Draw(t, "absent"), Engine: engine.Config{
				Profile: profile, Blocks: rapid.IntRange(20, 300).Draw(t, "blocks"),
				MaxSequences: rapid.IntRange(1, 16).Draw(t, "sequences"), MaxBatchedTokens: 256,
			}})
		}
		var changes []Change
		for range rapid.IntRange(0, 8).Draw(t, "changes") {
			changes = append(changes, Change{
				At:        time.Duration(rapid.IntRange(0, 5000).Draw(t, "at")) * time.Millisecond,
				Endpoint:  fmt.Sprintf("server-%03d", rapid.IntRange(0, n-1).Draw(t, "which")),
				Kind:      ChangeKind(rapid.IntRange(0, int(Resume)).Draw(t, "kind")),
				Unnoticed: time.Duration(rapid.IntRange(0, 1).Draw(t, "unnoticed")) * 500 * time.Millisecond,
			})
		}
		cfg := Config{
			Router: named(rapid.SampledFrom(all.Names()).Draw(t, "policy")), Fleet: fleet, Changes: changes,
			Seed:    rapid.Uint64Min(1).Draw(t, "seed"),
			Routers: rapid.IntRange(1, 3).Draw(t, "routers"),
		}
		if rapid.Bool().Draw(t, "stale") {
			cfg.ReportInterval = time.Duration(rapid.IntRange(1, 5000).Draw(t, "interval")) * time.Millisecond
			cfg.ReportDelay = time.Duration(rapid.IntRange(0, 2000).Draw(t, "delay")) * time.Millisecond
		}
		var source *watched
		cfg.Workload = workloadFunc(func(seed uint64) (Source, error) {
			s, err := c.Start(seed)
			source = &watched{Source: s, t: t}
			return source, err
		})
		rep, r := runFresh(t, cfg)

		require.Equal(t, rep.Requests, rep.Completed+rep.Rejected+rep.Lost)
		require.Equal(t, c.Requests, rep.Requests)
		require.Equal(t, []int{rep.Requests, rep.Requests}, []int{source.taken, source.done})
		require.Equal(t, rep.Completed, rep.E2E.Count)
		for _, router := range r.routers {
			require.Zero(t, router.Stats().OpenLeases)
			require.Zero(t, router.Stats().BadStage)
		}
		for i := range r.servers {
			l := r.servers[i].engine.Load(r.now)
			require.Zero(t, l.Running+l.Waiting)
			require.Zero(t, l.KVUsage)
		}

		again, _ := runFresh(t, cfg)
		require.Equal(t, toJSON(t, rep), toJSON(t, again), "the same config gives the same report")
	})
}

// runFresh is Run with a check: where reports are always fresh, every decision sees
// the loads that the servers would report at that moment.
func runFresh(t require.TestingT, cfg Config) (*Report, *run) {
	var r *run
	router := cfg.Router
	cfg.Router = func() (endpick.Config, error) {
		c, err := router()
		if cfg.ReportInterval == 0 {
			c.Policy.Filters = append([]endpick.Filter{seesTheTruth{t, &r}}, c.Policy.Filters...)
		}
		return c, err
	}
	r, err := newRun(cfg)
	require.NoError(t, err)
	require.NoError(t, r.loop())
	return r.finish(), r
}

type seesTheTruth struct {
	t   require.TestingT
	run **run
}

func (s seesTheTruth) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	for _, c := range candidates {
		server := &(*s.run).servers[(*s.run).byID[c.Endpoint.ID]]
		if !server.up {
			continue
		}
		l := server.engine.Load((*s.run).now)
		require.Equal(s.t, float64(l.Waiting), c.Waiting)
		require.Equal(s.t, float64(l.Running), c.Running)
		require.Equal(s.t, l.KVUsage, c.KVUsage)
	}
	return candidates
}

// If nothing happens for longer than a report is valid, reports are renewed.
func TestAQuietServerIsNoUnknownOne(t *testing.T) {
	cfg := Config{
		Router: named("lmetric"), Fleet: Fleet(2, plain),
		Workload: hand{at(0, 10, 200_000), at(50, 10, 2), at(180_000, 10, 2), at(180_010, 10, 2), at(360_000, 10, 2)},
	}
	rep, _ := runFresh(t, cfg)
	require.Equal(t, 5, rep.Completed)
}

func toJSON(t require.TestingT, v any) string {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}
