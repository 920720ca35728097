package boost

import (
	"math"
	"testing"

	"github.com/endpick/endpick/internal/codec"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestModelsSurviveSaving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 10).Draw(t, "features")
		d := randomData(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 400).Draw(t, "rows"), k)
		c := Config{Features: k, Trees: rapid.IntRange(1, 8).Draw(t, "trees")}
		if rapid.Bool().Draw(t, "prior") {
			c.Prior = []int{k - 1, 0}
		}
		m := fit(t, c, d)
		saved := modelBytes(t, m)
		var got Model
		require.NoError(t, got.UnmarshalBinary(saved))
		require.Equal(t, saved, modelBytes(t, &got))
		a, b := make([]float64, len(d.Y)), make([]float64, len(d.Y))
		require.NoError(t, m.Predict(a, d.X))
		require.NoError(t, got.Predict(b, d.X))
		require.Equal(t, a, b)
		require.Equal(t, m.Importance(), got.Importance())
	})
}

func TestDamagedModelsAreRefused(t *testing.T) {
	d := randomData(9, 150, 3)
	old := fit(t, Config{Features: 3, Trees: 2, Prior: []int{1}}, d)
	saved := modelBytes(t, old)
	for i := range saved {
		require.ErrorIs(t, old.UnmarshalBinary(saved[:i]), ErrFormat, "cut at %d", i)
		damaged := append([]byte(nil), saved...)
		damaged[i] ^= 0x10
		err := old.UnmarshalBinary(damaged)
		if i >= 4 && i < 8 {
			require.ErrorIs(t, err, ErrVersion, "byte %d", i)
		} else {
			require.ErrorIs(t, err, ErrFormat, "byte %d", i)
		}
	}
	require.ErrorIs(t, old.UnmarshalBinary(append(saved, 0)), ErrFormat)
	later := append([]byte(nil), saved...)
	later[4] = codec.Version + 1
	require.EqualError(t, old.UnmarshalBinary(later), "endpick: unknown format version: 2, want 1")
	require.EqualError(t, old.UnmarshalBinary([]byte("PNG\x00123456789012345678901234567890")), `endpick: malformed saved data: starts with "PNG\x00", want "EPBM"`)
	require.Equal(t, saved, modelBytes(t, old), "a model is not changed by what it refuses")
}

// Content that no fit could have produced is refused, whatever its checksum.
func TestContentThatMakesNoModelIsRefused(t *testing.T) {
	d := randomData(9, 150, 3)
	for name, spoil := range map[string]func(*Model){
		"equal cuts":            func(m *Model) { m.quantisers[0].cuts[1] = m.quantisers[0].cuts[0] },
		"descending cuts":       func(m *Model) { c := m.quantisers[0].cuts; c[0], c[1] = c[1], c[0] },
		"a cut at the bottom":   func(m *Model) { m.quantisers[0].cuts[0] = 0 },
		"a cut above all cells": func(m *Model) { c := m.quantisers[0].cuts; c[len(c)-1] = cellCount },
		"cells of no width":     func(m *Model) { m.quantisers[0].shift = 53 },
		"another feature":       func(m *Model) { m.trees[0].feature[0] = 3 },
		"the bin of the absent": func(m *Model) { m.trees[0].threshold[0] = 0 },
		"a bin too high":        func(m *Model) { m.trees[0].threshold[0] = (maxBins + 1) * lowBits },
		"a leaf":                func(m *Model) { m.trees[0].leaf[5] = float32(math.Inf(1)) },
		"no leaf":               func(m *Model) { m.trees[1].leaf[63] = float32(math.NaN()) },
		"a base":                func(m *Model) { m.base = math.NaN() },
		"a prior of nothing":    func(m *Model) { m.prior.floor = 0 },
		"a prior below zero":    func(m *Model) { m.prior.floor = -1 },
		"a prior cut short":     func(m *Model) { m.prior.weights = m.prior.weights[:1] },
		"importances":           func(m *Model) { m.gained = m.gained[:2] },
		"a column":              func(m *Model) { m.config.Prior = []int{3} },
	} {
		m := fit(t, Config{Features: 3, Trees: 2, Prior: []int{1}}, d)
		require.NoError(t, new(Model).UnmarshalBinary(modelBytes(t, m)))
		spoil(m)
		require.ErrorIs(t, new(Model).UnmarshalBinary(modelBytes(t, m)), ErrFormat, name)
	}
}

// reseal gives changed content a correct header, so that only the content can be at fault.
func reseal(b []byte) []byte {
	if len(b) < codec.HeaderSize {
		return b
	}
	return codec.Seal(nil, string(b[:4]), b[codec.HeaderSize:])
}

// FuzzModel decodes garbage with a valid checksum: it is refused, or yields a model that works.
func FuzzModel(f *testing.F) {
	// Small inputs: minimising an interesting one takes time quadratic in its length.
	step := Data{X: make([]float64, 120), Y: make([]float64, 120)}
	for i := range step.X {
		step.X[i], step.Y[i] = float64(i%3), float64(1+i%3)
	}
	for _, c := range []Config{{Features: 1, Trees: 1, Prior: []int{0}}, {Features: 1, Trees: 1}} {
		b, err := fit(f, c, step).MarshalBinary()
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte("EPBM\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Model
		if err := m.UnmarshalBinary(reseal(b)); err != nil {
			require.Zero(t, m.Features())
			return
		}
		y := make([]float64, 9)
		x := make([]float64, 9*m.Features())
		for i := range x {
			x[i] = float64(i) - 3
		}
		x[0] = math.NaN()
		require.NoError(t, m.Predict(y, x))
		for i := range y {
			require.Equal(t, math.Float64bits(naivePredict(&m, x[i*m.Features():(i+1)*m.Features()])), math.Float64bits(y[i]))
		}
		again := modelBytes(t, &m)
		var n Model
		require.NoError(t, n.UnmarshalBinary(again))
		require.Equal(t, again, modelBytes(t, &n))
	})
}

func TestDecodingDamageBehindAValidChecksum(t *testing.T) {
	saved := modelBytes(t, fit(t, Config{Features: 3, Trees: 2, Prior: []int{1}}, randomData(9, 150, 3)))
	rapid.Check(t, func(t *rapid.T) {
		b := append([]byte(nil), saved...)
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			b[rapid.IntRange(codec.HeaderSize, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		b = b[:rapid.IntRange(codec.HeaderSize, len(b)).Draw(t, "length")]
		var m Model
		if m.UnmarshalBinary(reseal(b)) != nil {
			return
		}
		predictOne(t, &m, 1, math.NaN(), -5)
	})
}
