package predict

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// How long a request took that was under way when this router heard of it is not known.
func TestWhatWasUnderWayIsNoLabel(t *testing.T) {
	w := newWorld(t, synchronous())
	for _, underWay := range []bool{true, false} {
		req := w.request()
		req.Stream, req.UnderWay = false, underWay
		w.finish(req, w.candidate("", 0))
	}
	require.EqualValues(t, 1, w.latency.Health()[0].E2E.Samples)
}

// What waits for too long counts in the model that has predicted it, and in no other.
func TestWaitsCountInTheirOwnModel(t *testing.T) {
	w := newWorld(t, synchronous())
	of := func(model string) endpick.Request {
		req := w.request()
		req.Model = model
		return req
	}
	for range 300 {
		w.finish(of("m"), w.candidate("", 0))
		w.finish(of("n"), w.candidate("", 0))
	}
	for range 5 {
		c := w.candidate("", 0)
		require.NotZero(t, w.predict(of("n"), &c).Has&endpick.TTFT)
		w.route(of("n"), &c)
	}
	for model, want := range map[string]int{"m": 0, "n": 5} {
		got := 0
		w.latency.overdue((*w.latency.models.Load())[model], ttft, w.now.Add(time.Hour), func([]float64, float64) { got++ })
		require.Equal(t, want, got, model)
	}
}
