package slo_test

import (
	"fmt"
	"math"
	"time"

	"github.com/endpick/endpick"
)

const ms = time.Millisecond

var epoch = time.Unix(1_700_000_000, 0)

func at(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }

var nan = math.NaN()

// both predicts TTFT and TPOT in milliseconds, with an upper bound half as much
// again.
func both(ttft, tpot float64) endpick.Prediction {
	first, each := time.Duration(ttft*1e6), time.Duration(tpot*1e6)
	return endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: first, TPOT: each, TTFTUpper: first + first/2, TPOTUpper: each + each/2}
}

func whole(e2e float64) endpick.Prediction {
	d := time.Duration(e2e * 1e6)
	return endpick.Prediction{Has: endpick.E2E, E2E: d, E2EUpper: d + d/2}
}

// fleet returns a busy candidate for each prediction.
func fleet(predictions ...endpick.Prediction) []endpick.Candidate {
	var cs []endpick.Candidate
	for i, p := range predictions {
		id := fmt.Sprintf("server-%d", i)
		cs = append(cs, endpick.Candidate{
			Endpoint: &endpick.Endpoint{ID: id}, ChanceKey: endpick.Salt(id), Ref: endpick.EndpointRef{Slot: uint32(i), Generation: 1},
			Running: 2, KVUsage: 0.5, Prediction: p,
		})
	}
	return cs
}

// ask is a streamed request with targets in milliseconds, 0 for none.
func ask(ttft, tpot float64) endpick.Request {
	return endpick.Request{
		InputTokens: 1000, ExpectedOutputTokens: 100, Stream: true,
		SLO: endpick.SLO{TTFT: time.Duration(ttft * 1e6), TPOT: time.Duration(tpot * 1e6)},
	}.At(epoch, 1, 1)
}

func score(s endpick.Scorer, req endpick.Request, cs []endpick.Candidate) []float64 {
	dst := make([]float64, len(cs))
	for i := range dst {
		dst[i] = nan // every slot has to be written
	}
	s.Score(&req, cs, dst)
	return dst
}

// pick is the choice of the scorer with the default picker.
func pick(s endpick.Scorer, req endpick.Request, cs []endpick.Candidate) string {
	return cs[endpick.MaxScore{}.Pick(&req, cs, score(s, req, cs))].Endpoint.ID
}

func ids(cs []endpick.Candidate) (all []string) {
	for i := range cs {
		all = append(all, cs[i].Endpoint.ID)
	}
	return all
}

// event is an observer's event of a request on a candidate.
func event(lease uint32, req *endpick.Request, c *endpick.Candidate) *endpick.Event {
	return &endpick.Event{Lease: endpick.LeaseRef{Slot: lease, Generation: 1}, Request: req, Candidate: c}
}

func benchmarkFleet(n int) []endpick.Candidate {
	cs := fleet(make([]endpick.Prediction, n)...)
	for i := range cs {
		cs[i].Prediction = both(50+float64(i*7919%200), 10+float64(i*104729%50))
		cs[i].PrefixTokens = i % 3 * 100
	}
	return cs
}
