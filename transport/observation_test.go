package transport_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
)

func ms(v float64) *float64 { return &v }

// stream is one with targets of 100 ms and 10 ms.
func stream(ttft, e2e float64, output int) transport.Observation {
	return transport.Observation{Request: recording.Request{
		Model: "m", Stream: true, HTTP: 200, Status: "completed", TTFTMillis: ms(ttft), E2EMillis: e2e, OutputTokens: output,
		SLOTTFTMillis: 100, SLOTPOTMillis: 10,
	}, Serving: -1}
}

func TestTarget(t *testing.T) {
	type kept struct{ asked, met bool }
	met, missed, unasked := kept{true, true}, kept{true, false}, kept{}
	for name, tc := range map[string]struct {
		change     func(*transport.Observation)
		ttft, tpot kept
	}{
		"met":               {nil, met, met}, // (190 − 100)/9 = 10
		"late":              {func(r *transport.Observation) { r.TTFTMillis = ms(101) }, missed, met},
		"slow":              {func(r *transport.Observation) { r.E2EMillis = 191 }, met, missed},
		"one token":         {func(r *transport.Observation) { r.OutputTokens = 1 }, met, unasked},
		"no token":          {func(r *transport.Observation) { r.OutputTokens, r.TTFTMillis = 0, nil }, missed, unasked},
		"TTFT alone":        {func(r *transport.Observation) { r.SLOTPOTMillis = 0 }, met, unasked},
		"nothing asked for": {func(r *transport.Observation) { r.SLOTPOTMillis, r.SLOTTFTMillis = 0, 0 }, unasked, unasked},
		"rejected": {func(r *transport.Observation) {
			*r = stream(0, 1, 0)
			r.TTFTMillis, r.HTTP, r.Status = nil, 0, "failed"
		}, missed, missed},
		"refused there": {func(r *transport.Observation) { r.HTTP = 400 }, missed, missed},
		"cut":           {func(r *transport.Observation) { r.Status = "failed" }, missed, missed},
		"left":          {func(r *transport.Observation) { r.Status = "canceled" }, unasked, unasked},
		"at once":       {func(r *transport.Observation) { r.Stream, r.TTFTMillis, r.E2EMillis = false, nil, 100 }, met, unasked},
		"at once, late": {func(r *transport.Observation) { r.Stream, r.TTFTMillis = false, nil }, missed, unasked},
	} {
		t.Run(name, func(t *testing.T) {
			r := stream(100, 190, 10)
			if tc.change != nil {
				tc.change(&r)
			}
			asked, ok := r.Target(endpick.TTFT)
			assert.Equal(t, tc.ttft, kept{asked, ok})
			asked, ok = r.Target(endpick.TPOT)
			assert.Equal(t, tc.tpot, kept{asked, ok})
			asked, ok = r.Target(endpick.E2E)
			assert.Equal(t, unasked, kept{asked, ok})
		})
	}
}

// Predictions count from the routing, and so do the latencies compared with them.
func TestLatencies(t *testing.T) {
	at := time.Unix(100, 0)
	r := stream(100, 190, 10)
	r.Time, r.Held = at, 20*time.Millisecond // part of the time until the routing
	ttft, tpot, e2e := r.Latencies()
	assert.Zero(t, ttft, "it was sent nowhere")
	assert.Zero(t, tpot)
	assert.Zero(t, e2e)

	prediction := endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 50 * time.Millisecond, TPOT: 0, E2E: time.Hour}
	r.Attempts = []transport.ObservedAttempt{{}, {At: at.Add(30 * time.Millisecond), Candidate: endpick.Candidate{Prediction: prediction}}}
	r.Serving = 1
	ttft, tpot, e2e = r.Latencies()
	assert.Equal(t, transport.Latency{Predicted: 50 * time.Millisecond, Actual: 70 * time.Millisecond}, ttft)
	assert.Equal(t, transport.Latency{Predicted: 1, Actual: 10 * time.Millisecond}, tpot, "0 would be unknown")
	assert.Equal(t, transport.Latency{Actual: 160 * time.Millisecond}, e2e)

	r.Responses = 5 // of two tokens each
	_, tpot, _ = r.Latencies()
	assert.Equal(t, 90*time.Millisecond, tpot.Actual)
	r.SLOTPOTMillis = 80
	_, met := r.Target(endpick.TPOT)
	assert.False(t, met)
	r.SLOTPOTMillis = 100
	_, met = r.Target(endpick.TPOT)
	assert.True(t, met)
	r.Responses = 6 // of one token
	asked, _ := r.Target(endpick.TPOT)
	assert.False(t, asked)
	r.Responses = 0

	r.Status = "canceled"
	ttft, _, e2e = r.Latencies()
	assert.Equal(t, 70*time.Millisecond, ttft.Actual, "what was seen was seen")
	assert.Zero(t, e2e.Actual)

	r.Stream, r.Status, r.TTFTMillis = false, "completed", nil
	r.Attempts[1].Candidate.Prediction.Has = endpick.TTFT | endpick.E2E
	ttft, tpot, e2e = r.Latencies()
	assert.Zero(t, ttft)
	assert.Zero(t, tpot)
	assert.Equal(t, transport.Latency{Predicted: time.Hour, Actual: 160 * time.Millisecond}, e2e)

	r.Serving = 2
	assert.Nil(t, r.Last())
	r.Serving = -1
	assert.Nil(t, r.Last())
}

func TestResults(t *testing.T) {
	for result, failed := range map[transport.Result]bool{
		transport.Served: false, transport.Unreachable: true, transport.Broken: true, transport.Erred: true,
		transport.Full: false, transport.Refused: false, transport.Canceled: false,
	} {
		assert.Equal(t, failed, result.Failed(), result)
	}
}
