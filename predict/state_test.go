package predict

import (
	"math"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/codec"
	"github.com/stretchr/testify/require"
)

func TestThePredictorSurvivesARestart(t *testing.T) {
	w := newWorld(t, synchronous())
	for i := range 300 {
		req := w.request()
		req.Stream = i%3 > 0
		w.finish(req, w.candidate([]string{"a", "b"}[i%2], 0))
	}
	saved, err := w.latency.AppendBinary(nil)
	require.NoError(t, err)
	l, err := Restore(synchronous(), saved)
	require.NoError(t, err)
	again, _ := l.AppendBinary(nil)
	require.Equal(t, saved, again)
	candidates := []endpick.Candidate{w.candidate("a", 7), w.candidate("b", 7), w.candidate("c", 7)}
	same := append([]endpick.Candidate(nil), candidates...)
	req := w.request().At(w.now, 0, 1)
	w.latency.Predict(&req, candidates)
	l.Predict(&req, same)
	require.Equal(t, predictions(candidates), predictions(same))
	require.NotZero(t, same[0].Prediction.Has)
	require.Zero(t, same[2].Prediction.Has)

	for i := 0; i < len(saved); i += 1 + len(saved)/300 {
		_, err := Restore(synchronous(), saved[:i])
		require.ErrorIs(t, err, ErrFormat)
		if i >= codec.HeaderSize {
			_, err = Restore(synchronous(), reseal(saved[:i]))
			require.ErrorIs(t, err, ErrFormat)
		}
	}
	saved[4]++
	_, err = Restore(synchronous(), saved)
	require.ErrorIs(t, err, ErrVersion)
}

// FuzzRestore decodes garbage with a valid checksum: it is refused, or yields a predictor that
// works and saves the same. The learners and models inside have checksums and fuzz targets of their
// own.
func FuzzRestore(f *testing.F) {
	config := LatencyConfig{Trees: 1, MaxModels: 2, DisableStrata: true, Synchronous: true}
	w := newWorld(f, config)
	empty, _ := w.latency.AppendBinary(nil)
	f.Add(empty)
	w.finish(w.request(), w.candidate("a", 0))
	saved, _ := w.latency.AppendBinary(nil)
	f.Add(saved)
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Restore(config, reseal(b))
		if err != nil {
			return
		}
		req := endpick.Request{Model: "m", InputTokens: 10, Stream: true}.At(time.Unix(1, 0), 0, 1)
		one := []endpick.Candidate{{Endpoint: &endpick.Endpoint{Variant: "a"}, KVUsage: math.NaN()}}
		l.Predict(&req, one)
		p := one[0].Prediction
		require.True(t, p.Has&endpick.TTFT == 0 || p.TTFTUpper >= p.TTFT, "%+v", p)
		saved, err := l.AppendBinary(nil)
		require.NoError(t, err)
		again, err := Restore(config, saved)
		require.NoError(t, err)
		twice, _ := again.AppendBinary(nil)
		require.Equal(t, saved, twice)
	})
}

// reseal gives changed content a correct header, so that only the content can be at fault.
func reseal(b []byte) []byte {
	if len(b) < codec.HeaderSize {
		return b
	}
	return codec.Seal(nil, string(b[:4]), b[codec.HeaderSize:])
}
