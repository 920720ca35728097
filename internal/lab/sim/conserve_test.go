package sim

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
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

		require.Equal(t, toJSON(t, rep), toJSON(t, rig.Must(Run(cfg))), "the same config gives the same report")
	})
}

func toJSON(t require.TestingT, v any) string {
	return string(rig.Must(json.Marshal(v)))
}
