package sim

import (
	"os"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/stretchr/testify/require"
)

// witness is a filter that keeps every candidate and records where requests went, and when.
type witness struct {
	start time.Time
	sent  map[string][]time.Duration
}

func (*witness) Name() string { return "witness" }

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

// shareOfASlowServer makes one of four servers ten times as slow from the first minute to the
// third.
func shareOfASlowServer(t *testing.T, policy string, work Workload, seed uint64) *witness {
	profile := rig.Must(engine.ProfileByName("llama-3.1-8b-h100"))
	w := &witness{epoch, map[string][]time.Duration{}}
	r := rig.Must(newRun(Config{
		Fleet: Fleet(4, engine.Config{Profile: profile}), Workload: work, Seed: seed,
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

// While it is slow it gets a tenth of the requests at most, after ten seconds, and a
// minute after its recovery it has its share again: under every preset that looks at
// load or latency, whether it is known from short responses, from long ones, or wanted
// for its cache. With ENDPICK_LONG, under all presets, with three seeds.
func TestASlowServerRecovers(t *testing.T) {
	long := os.Getenv("ENDPICK_LONG") != ""
	seeds := uint64(1)
	if long {
		seeds = 3
	}
	length := func(mean float64) Length { return Length{Mean: mean, Std: mean / 4} }
	alone := Conversations{Groups: 1 << 16, UsersPerGroup: 1, Turns: 1, Question: Length{Mean: 800, Std: 400, Shape: LogNormal, Max: 4000}}
	short, chat := alone, alone
	short.Output, chat.Output = length(50), length(600)
	for name, work := range map[string]struct {
		Conversations
		rate float64
	}{
		"short": {short, 40}, "chat": {chat, 15},
		"turns": {Conversations{Groups: 20, UsersPerGroup: 50, SystemTokens: 1000, Question: length(200), Output: length(200)}, 20},
	} {
		for _, policy := range all.Names() {
			learns := policy == "predicted-latency" || policy == "marginal-delay"
			switch {
			case policy == "random", policy == "round-robin", policy == "always-busiest":
				continue
			case policy == "predicted-latency" && rig.Race: // its trees take a minute
				continue
			case name != "short" && !learns && !long:
				continue
			}
			for seed := range seeds {
				w := work.Conversations
				w.Arrivals, w.Duration = ConstantRate(work.rate), 260*time.Second
				seen := shareOfASlowServer(t, policy, w, seed+1)
				const id = "server-001"
				slow, well := seen.share(id, 70*time.Second, 3*time.Minute), seen.share(id, 4*time.Minute, 5*time.Minute)
				t.Logf("%s, %s: while it is slow %.1f %%, in the minute after %.1f %%, then %.1f %%", name, policy, 100*slow, 100*seen.share(id, 3*time.Minute, 4*time.Minute), 100*well)
				require.LessOrEqual(t, slow, 0.1)
				require.GreaterOrEqual(t, well, 0.25*3/4)
			}
		}
	}
}
