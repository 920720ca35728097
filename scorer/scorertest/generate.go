package scorertest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// Requests generates requests as a router hands them to its stages: timed,
// numbered and seeded, for "model", with and without blocks and targets; of tenant-1, tenant-2 or nobody, and
// the same with sessions and adapters: endpoints that take all of them have Models {"model"} and
// Adapters {"adapter-1", "adapter-2"}. Some have a priority below zero, and targets that are out of reach: a policy
// with admitters, such as preset.Default, may refuse these with an [endpick.RejectedError].
func Requests() *rapid.Generator[endpick.Request] {
	return rapid.Custom(func(t *rapid.T) endpick.Request {
		req := endpick.Request{
			Model:                "model",
			Adapter:              rapid.SampledFrom([]string{"", "adapter-1", "adapter-2"}).Draw(t, "adapter"),
			InputTokens:          rapid.OneOf(rapid.Just(0), rapid.IntRange(1, 64), rapid.IntRange(1, 1<<20)).Draw(t, "input tokens"),
			ExpectedOutputTokens: rapid.IntRange(0, 4096).Draw(t, "output tokens"),
			Stream:               rapid.Bool().Draw(t, "stream"),
			Priority:             priority.Draw(t, "priority"),
			Tenant:               rapid.SampledFrom([]string{"", "tenant-1", "tenant-2"}).Draw(t, "tenant"),
			Session:              rapid.SampledFrom([]string{"", "session-1", "session-2"}).Draw(t, "session"),
		}
		req.Blocks = prompt(uint64(len(req.Session)), min(req.InputTokens/endpick.DefaultBlockTokens, 4))
		if rapid.Bool().Draw(t, "TTFT asked") {
			req.SLO.TTFT = milliseconds(t, "TTFT target")
		}
		if rapid.Bool().Draw(t, "TPOT asked") {
			req.SLO.TPOT = milliseconds(t, "TPOT target")
		}
		now := time.Unix(0, 0).UTC().Add(time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "now")))
		return req.At(now, rapid.Uint64().Draw(t, "seed"), rapid.Uint64Range(1, 1<<40).Draw(t, "number"))
	})
}

// priority is one of -32, -1, 0, 1 and 32.
var priority = rapid.Map(rapid.IntRange(-2, 2), func(n int) int { return n * n * n * n * n })

// Candidates generates between one and most candidates for the request, each with
// an endpoint of its own: idle and overloaded ones, with and without report,
// match and prediction. Shrinking removes what a property does not need. What is drawn is a
// []endpick.Candidate that prints in words when a property fails.
func Candidates(req endpick.Request, most int) *rapid.Generator[drawnCandidates] {
	one := rapid.Custom(func(t *rapid.T) endpick.Candidate { return candidate(t, &req) })
	return rapid.Map(rapid.SliceOfN(one, 1, most), func(cs []endpick.Candidate) drawnCandidates {
		for i := range cs {
			id := fmt.Sprintf("server-%d", i)
			cs[i].Endpoint.ID, cs[i].ChanceKey = id, endpick.Salt(id)
			cs[i].Ref = endpick.EndpointRef{Slot: uint32(i), Generation: 1}
		}
		return cs
	})
}

// candidate is a candidate without a name.
func candidate(t *rapid.T, req *endpick.Request) endpick.Candidate {
	c := endpick.Candidate{
		Endpoint: &endpick.Endpoint{
			Models:   []string{"model"},
			Adapters: []string{"adapter-1", "adapter-2"},
			Variant:  rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "variant"),
		},
		Waiting: float64(count(t, "waiting")),
		Running: float64(count(t, "running")),
		KVUsage: rapid.OneOf(rapid.SampledFrom([]float64{0, 1}), rapid.Float64Range(0, 1)).Draw(t, "KV usage"),
	}
	if rapid.Bool().Draw(t, "reports") {
		c.Report = &endpick.Load{Waiting: c.Waiting, Running: c.Running, KVUsage: c.KVUsage}
		c.Reported = endpick.WaitingSignal | endpick.RunningSignal | endpick.KVUsageSignal
		c.Report.Adapters = rapid.SampledFrom([][]string{nil, {}, {"adapter-1"}, {"adapter-1", "adapter-2"}}).Draw(t, "adapters")
	}
	c.InFlight.Requests = count(t, "in flight")
	c.InFlight.Prefilling = rapid.IntRange(0, c.InFlight.Requests).Draw(t, "prefilling")
	if c.InFlight.Requests > 0 {
		c.InFlight.ContextTokens = rapid.IntRange(0, 1<<24).Draw(t, "context tokens")
		c.InFlight.PrefillTokens = rapid.IntRange(0, c.InFlight.ContextTokens).Draw(t, "prefill tokens")
		c.InFlight.OutputTokens = rapid.IntRange(0, 1<<20).Draw(t, "output tokens")
	}
	if req.InputTokens > 1 && rapid.Bool().Draw(t, "holds a prefix") {
		c.PrefixTokens = rapid.IntRange(1, req.InputTokens-1).Draw(t, "prefix tokens")
	}
	c.Prediction = prediction(t)
	return c
}

func count(t *rapid.T, label string) int {
	return rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 8), rapid.IntRange(0, 5000)).Draw(t, label)
}

func prediction(t *rapid.T) endpick.Prediction {
	p := endpick.Prediction{Has: endpick.Latencies(rapid.Uint8Range(0, 7).Draw(t, "predicted"))}
	draw := func(target endpick.Latencies, expected, upper *time.Duration, label string) {
		if p.Has&target != 0 {
			*expected = milliseconds(t, label)
			*upper = *expected + milliseconds(t, label+" spread")
		}
	}
	draw(endpick.TTFT, &p.TTFT, &p.TTFTUpper, "TTFT")
	draw(endpick.TPOT, &p.TPOT, &p.TPOTUpper, "TPOT")
	draw(endpick.E2E, &p.E2E, &p.E2EUpper, "E2E")
	return p
}

func milliseconds(t *rapid.T, label string) time.Duration {
	return time.Duration(rapid.IntRange(1, 600_000).Draw(t, label)) * time.Millisecond
}

// reordered returns all in another order, which depends on a single number, so
// that it shrinks independently of the rest. Zero: the original order.
func reordered[T any](t *rapid.T, all []T, name func(T) string) []T {
	seed := rapid.Uint64().Draw(t, "other order")
	other := slices.Clone(all)
	if seed != 0 {
		slices.SortStableFunc(other, func(a, b T) int {
			return cmp.Compare(endpick.Salt(fmt.Sprint(seed, name(a))), endpick.Salt(fmt.Sprint(seed, name(b))))
		})
	}
	return other
}
