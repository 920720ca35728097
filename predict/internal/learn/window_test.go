package learn

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick/predict/boost"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWindowKeepsARareRegime(t *testing.T) {
	w := NewWindow(WindowConfig{Features: 1, Samples: 2010, Strata: []Stratum{{Edges: []float64{1}}}})
	for i := range 10 {
		w.Add([]float64{5}, float64(i+1), time.Unix(int64(i), 0))
	}
	for i := range 10_000 {
		w.Add([]float64{0}, 1, time.Unix(int64(10+i), 0))
	}
	require.Equal(t, 2010, w.Len())
	require.EqualValues(t, 10_010, w.added)
	var d boost.Data
	w.AppendTo(&d)
	require.Equal(t, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, d.Y[:10], "the regime that has passed")
	// Its newest sample weighs 1, the one before e^(−ln 2/400), and so on; none weighs less than 0.05.
	require.InDelta(t, 1, d.W[9], 1e-12)
	require.InDelta(t, math.Exp2(-9.0/400), d.W[0], 1e-12)
	require.InDelta(t, 1, d.W[2009], 1e-12)
	require.InDelta(t, 0.25, d.W[1209], 1e-12)
	require.InDelta(t, 0.05, d.W[10], 1e-12)
}

// naiveWindow is a list; every answer scans all of it.
type naiveWindow struct {
	config  WindowConfig
	samples []naiveSample
	added   uint64
	newest  time.Time
}

type naiveSample struct {
	row    []float64
	label  float64
	at     time.Time
	bucket string
	number uint64 // in the order of insertion, from 1
}

func (w *naiveWindow) bucket(row []float64) string {
	b := ""
	for _, s := range w.config.Strata {
		n := 0
		for _, e := range s.Edges {
			if row[s.Feature] >= e {
				n++
			}
		}
		b += fmt.Sprintf("%02d,", n) // sorts like the numbers
	}
	return b
}

func (w *naiveWindow) add(row []float64, label float64, at time.Time) {
	if len(w.samples) == w.config.Samples {
		sizes := map[string]int{}
		for _, s := range w.samples {
			sizes[s.bucket]++
		}
		fullest := ""
		for b, n := range sizes {
			if fullest == "" || n > sizes[fullest] || n == sizes[fullest] && b < fullest {
				fullest = b
			}
		}
		i := slices.IndexFunc(w.samples, func(s naiveSample) bool { return s.bucket == fullest })
		w.samples = slices.Delete(w.samples, i, i+1)
	}
	w.added++
	w.newest = at
	w.samples = append(w.samples, naiveSample{slices.Clone(row), label, at, w.bucket(row), w.added})
}

// expire drops the oldest of each bucket while they are too old.
func (w *naiveWindow) expire(now time.Time) {
	stays := map[string]bool{}
	left := len(w.samples)
	w.samples = slices.DeleteFunc(w.samples, func(s naiveSample) bool {
		left--
		if stays[s.bucket] || !s.at.Before(now.Add(-w.config.MaxAge)) && !s.at.After(now.Add(w.config.MaxAge)) || left < w.config.Samples/4 {
			stays[s.bucket] = true
			return false
		}
		return true
	})
}

func (w *naiveWindow) data() boost.Data {
	var d boost.Data
	for i, s := range w.samples {
		newer := 0
		for _, o := range w.samples[i+1:] {
			if o.bucket == s.bucket {
				newer++
			}
		}
		d.X = append(d.X, s.row...)
		d.Y = append(d.Y, s.label)
		d.W = append(d.W, max(leastWeight, math.Exp(-math.Ln2*float64(newer)/halfLife)))
	}
	return d
}

func TestWindowEqualsItsNaiveTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := WindowConfig{
			Features: 2,
			Samples:  rapid.IntRange(1, 30).Draw(t, "samples"),
			Strata:   []Stratum{{0, []float64{1, 2, 3}}, {1, []float64{0}}},
			MaxAge:   time.Duration(rapid.IntRange(0, 20).Draw(t, "max age")),
		}
		w := NewWindow(config)
		require.Equal(t, 8, w.Buckets())
		require.True(t, w.Newest().IsZero())
		twin := &naiveWindow{config: config}
		now := time.Unix(100, 0)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				row := []float64{rapid.SampledFrom([]float64{0, 1, 1.5, 2.5, 9, math.NaN()}).Draw(t, "a"), rapid.Float64Range(-1, 1).Draw(t, "b")}
				label := rapid.Float64Range(1, 9).Draw(t, "label")
				now = now.Add(time.Duration(rapid.IntRange(-2, 3).Draw(t, "passed")))
				if rapid.IntRange(0, 20).Draw(t, "clock") == 0 {
					now = now.Add(time.Duration(rapid.IntRange(-100, 100).Draw(t, "set")))
				}
				w.Add(row, label, now)
				twin.add(row, label, now)
			},
			"expire": func(t *rapid.T) {
				w.Expire(now)
				if config.MaxAge > 0 {
					twin.expire(now)
				}
			},
			"forget": func(t *rapid.T) {
				v := rapid.SampledFrom([]float64{0, 1, 1.5, 2.5, 9, math.NaN()}).Draw(t, "value")
				w.Forget(0, v)
				twin.samples = slices.DeleteFunc(twin.samples, func(s naiveSample) bool { return s.row[0] == v })
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(twin.samples), w.Len())
				require.Equal(t, twin.added, w.added)
				if twin.added > 0 {
					require.True(t, twin.newest.Equal(w.Newest()))
				}
				require.LessOrEqual(t, w.Len(), config.Samples)
				require.LessOrEqual(t, len(w.y), config.Samples, "places are used again")
				var d boost.Data
				w.AppendTo(&d)
				want := twin.data()
				require.Equal(t, fmt.Sprint(want.X), fmt.Sprint(d.X)) // NaN equals NaN
				require.Equal(t, want.Y, d.Y)
				require.Equal(t, want.W, d.W)
			},
		})
	})
}

func TestAClockThatIsSetEmptiesNoWindow(t *testing.T) {
	w := NewWindow(WindowConfig{Features: 1, MaxAge: time.Hour})
	now := time.Unix(1e9, 0)
	add := func(n int) {
		for range n {
			now = now.Add(time.Second)
			w.Add([]float64{0}, 1, now)
		}
		w.Expire(w.Newest())
	}
	add(5000)
	require.Equal(t, 3601, w.Len(), "an hour, both ends")
	now = now.Add(365 * 24 * time.Hour)
	add(22)
	require.Equal(t, leastSamples, w.Len(), "ahead: the newest thousand stay")
	now = now.Add(-365 * 24 * time.Hour)
	add(100)
	require.Equal(t, leastSamples+100, w.Len(), "and back: what came meanwhile has no say over the others")
	add(3600)
	require.Equal(t, 3601, w.Len(), "nor do they stay for their dates")
}
