package delay_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo/delay"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestConfig(t *testing.T) {
	for field, configs := range map[string][]delay.Config{
		"MaxKinds":         {{MaxKinds: -1}},
		"FirstTokenWeight": {{FirstTokenWeight: -1}, {FirstTokenWeight: math.NaN()}, {FirstTokenWeight: math.Inf(1)}},
	} {
		for _, c := range configs {
			assert.Equal(t, "delay.Config."+field, rig.Field(delay.New(c)))
		}
	}
}

func TestConforms(t *testing.T) {
	scorertest.RunWeighted(t, func(t *testing.T) endpick.Scorer { return rig.Must(delay.New(delay.Config{})) })
	t.Run("predictor", func(t *testing.T) {
		scorertest.RunPredictor(t, func(t *testing.T) endpick.Predictor { return rig.Must(delay.New(delay.Config{})) })
	})
	t.Run("observer", func(t *testing.T) {
		scorertest.RunObserver(t, func(t *testing.T) any { return rig.Must(delay.New(delay.Config{})) })
	})
}

// world is a router on a clock of its own.
type world struct {
	router *endpick.Router
	m      delay.Marginal
	now    time.Time
	// jitter lengthens latencies in turn by 0, 1 and 2 times this many thousandths.
	jitter int
	number int
}

// routing is a router of these endpoints, on a clock that stands still by itself.
func routing(endpoints ...endpick.Endpoint) *world {
	w := &world{m: rig.Must(delay.New(delay.Config{MaxKinds: 2})), now: time.Unix(1e9, 0)}
	w.router = rig.Must(endpick.New(endpick.Config{
		Seed: 1, Endpoints: endpoints, Clock: func() time.Time { return w.now },
		Policy: endpick.Policy{Predictor: w.m, Scorers: []endpick.Weighted{{Scorer: w.m, Weight: 1}}},
	}))
	return w
}

// A minimal model server computes prompts one after another, taking token for each token, and meanwhile
// decodes all others, in steps of step plus slot for each.
const token, step, slot = 100 * time.Microsecond, 15 * time.Millisecond, 500 * time.Microsecond

// serve routes a request to such a server, which decodes some others beside it, and
// completes it.
func (w *world) serve(id string, input, output, beside int) {
	others := slices.DeleteFunc([]string{"a", "b", "c"}, func(other string) bool { return other == id })
	route := func(input int) endpick.Lease {
		return rig.Must(w.router.Route(endpick.Request{Model: "m", InputTokens: input, Stream: true, Exclude: others}))
	}
	var held []endpick.Lease
	for n := range beside {
		l := route(1)
		w.now = w.now.Add(token + (step+time.Duration(n+1)*slot)*3/2)
		l.FirstToken()
		held = append(held, l)
	}
	w.number++
	late := func(d time.Duration) time.Duration { return d + d*time.Duration(w.number%3*w.jitter)/1000 }
	lease := route(input)
	each := step + time.Duration(beside+1)*slot
	w.now = w.now.Add(late(time.Duration(input)*token + each*3/2))
	lease.FirstToken()
	w.now = w.now.Add(late(each * time.Duration(output-1)))
	lease.Tokens(output - 1)
	lease.Done(endpick.Outcome{OutputTokens: output})
	for _, l := range held {
		l.Done(endpick.Outcome{Status: endpick.Canceled})
	}
	w.now = w.now.Add(time.Second)
}

// It learns how long things take, and predicts requests unlike those it learned
// from.
func TestLearnsTimes(t *testing.T) {
	for _, jitter := range []int{0, 50} {
		w := routing(endpick.Endpoint{ID: "a"}, endpick.Endpoint{ID: "b"})
		w.jitter = jitter
		for i := range 200 {
			w.serve("a", 100+i*37%3000, 50+i%100, i%20)
		}
		for _, input := range []int{200, 1000, 4000} {
			var receipt endpick.Receipt
			req := endpick.Request{Model: "m", InputTokens: input, Stream: true, ExpectedOutputTokens: 100, Receipt: &receipt}
			rig.Must(w.router.Route(req)).Done(endpick.Outcome{Status: endpick.Canceled})
			require.Len(t, receipt.Verdicts, 2)
			for _, v := range receipt.Verdicts {
				p, id, late := v.Candidate.Prediction, v.Candidate.Endpoint.ID, 1+float64(jitter)/1000
				require.Equal(t, endpick.TTFT|endpick.TPOT, p.Has, "b is of the same kind")
				assert.InEpsilon(t, late*(float64(input)*0.1+1.5*15.5), p.TTFT.Seconds()*1e3, 0.15, "input %d on %s", input, id)
				assert.InEpsilon(t, late*15.5, p.TPOT.Seconds()*1e3, 0.1)
				assert.GreaterOrEqual(t, p.TTFTUpper, p.TTFT)
				assert.GreaterOrEqual(t, p.TPOTUpper, p.TPOT)
			}
		}
	}
}

// learned returns a Marginal trained on a busy fleet.
func learned() delay.Marginal {
	w := routing(endpick.Endpoint{ID: "a"}, endpick.Endpoint{ID: "b"}, endpick.Endpoint{ID: "c"})
	for i := range 60 {
		w.serve(string(rune('a'+i%3)), 100+i*37%3000, 50+i%100, i%20)
	}
	return w.m
}

// More load never makes an endpoint look better, a longer match never worse, and a
// lower predicted latency never ranks behind a higher one.
func TestMonotone(t *testing.T) {
	for name, m := range map[string]delay.Marginal{"cold": rig.Must(delay.New(delay.Config{})), "warm": learned()} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				req := scorertest.Requests().Draw(rt, "request")
				req.Model = "m"
				of := scorertest.Candidates(req, 4).Draw(rt, "candidates")
				for i := range of {
					of[i].Prediction = endpick.Prediction{}
				}
				// a and b are equal but for one change.
				a, b := of[0], of[0]
				a.Ref.Slot, b.Ref.Slot = 100, 101
				switch what := rapid.SampledFrom([]string{"waiting", "running", "queue", "match", "latency"}).Draw(rt, "what"); what {
				case "waiting":
					b.Waiting += float64(rapid.IntRange(1, 100).Draw(rt, "more"))
				case "running":
					b.Running += float64(rapid.IntRange(1, 100).Draw(rt, "more"))
				case "queue":
					b.InFlight.PrefillTokens += rapid.IntRange(1, 1<<20).Draw(rt, "more")
				case "match":
					a.PrefixTokens = rapid.IntRange(0, max(req.InputTokens-1, 0)).Draw(rt, "match")
					b.PrefixTokens = rapid.IntRange(0, a.PrefixTokens).Draw(rt, "shorter match")
				case "latency":
					low := time.Duration(rapid.Int64Range(0, 1e12).Draw(rt, "low"))
					high := low + time.Duration(rapid.Int64Range(1, 1e12).Draw(rt, "more"))
					which := rapid.SampledFrom([]endpick.Latencies{endpick.TTFT, endpick.TPOT, endpick.E2E}).Draw(rt, "which")
					a.Prediction = endpick.Prediction{Has: which, TTFT: low, TPOT: low, E2E: low}
					b.Prediction = endpick.Prediction{Has: which, TTFT: high, TPOT: high, E2E: high}
				}
				candidates := append([]endpick.Candidate{a, b}, of[1:]...)
				dst := make([]float64, len(candidates))
				m.Score(&req, candidates, dst)
				if dst[0] < dst[1] {
					rt.Fatalf("%v and %v", dst[0], dst[1])
				}
			})
		})
	}
}

// Impossible labels leave every number finite: clocks that step back or ahead,
// responses of no tokens or of too many.
func TestBadLabels(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := routing(endpick.Endpoint{ID: "a"}, endpick.Endpoint{ID: "b"})
		for range rapid.IntRange(1, 20).Draw(rt, "requests") {
			l := rig.Must(w.router.Route(endpick.Request{
				Model: fmt.Sprint(rapid.IntRange(0, 5).Draw(rt, "model")), InputTokens: rapid.SampledFrom([]int{0, 1, 1000, math.MaxInt32}).Draw(rt, "input"),
				Stream: rapid.Bool().Draw(rt, "stream"), ExpectedOutputTokens: rapid.SampledFrom([]int{0, 1, math.MaxInt32}).Draw(rt, "guess"),
			}))
			step := func() {
				w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int64{0, 1, 1e9, -1e9, 1e15, -1e15, 1e18}).Draw(rt, "step")))
			}
			step()
			if rapid.Bool().Draw(rt, "first token") {
				l.FirstToken()
				step()
			}
			l.Done(endpick.Outcome{
				Status: endpick.Status(rapid.IntRange(0, 3).Draw(rt, "status")), OutputTokens: rapid.SampledFrom([]int{0, 1, 2, math.MaxInt32}).Draw(rt, "output"),
			})
		}
		stats := w.router.Stats()
		if stats.StageErrors != 0 || stats.Panics != 0 {
			rt.Fatalf("%+v", stats)
		}
		receipt := new(endpick.Receipt)
		l := rig.Must(w.router.Route(endpick.Request{Model: "0", InputTokens: 100, Stream: true, Receipt: receipt}))
		l.Done(endpick.Outcome{})
		for _, v := range receipt.Verdicts {
			if !(v.Score >= 0 && v.Score <= 1) {
				rt.Fatalf("score %v", v.Score)
			}
		}
		if kinds := delay.Kinds(w.m); kinds > 2 {
			rt.Fatalf("%d kinds", kinds)
		}
	})
}

func TestAllocatesNothing(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector allocates")
	m := learned()
	req := endpick.Request{Model: "m", InputTokens: 4000, Stream: true, Tenant: "t"}
	candidates := make([]endpick.Candidate, 20)
	for i := range candidates {
		candidates[i] = endpick.Candidate{Endpoint: &endpick.Endpoint{ID: fmt.Sprint(i)}, Ref: endpick.EndpointRef{Slot: uint32(i), Generation: 1}}
	}
	dst := make([]float64, len(candidates))
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		m.Predict(&req, candidates)
		m.Score(&req, candidates, dst)
	}))
}
