package codec

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEnvelope(t *testing.T) {
	sealed := Seal([]byte("before"), "KIND", []byte("content"))
	content, rest, err := Unseal(append(sealed[len("before"):], "after"...), "KIND")
	require.NoError(t, err)
	assert.Equal(t, []string{"content", "after"}, []string{string(content), string(rest)})

	sealed = sealed[len("before"):]
	change := func(at int) []byte {
		b := append([]byte(nil), sealed...)
		b[at] ^= 1
		return b
	}
	for name, b := range map[string][]byte{
		"short": sealed[:HeaderSize-1], "cut": sealed[:len(sealed)-1], "another kind": change(0),
		"another hash": change(16), "another content": change(len(sealed) - 1), "longer than it is": change(8),
	} {
		_, _, err := Unseal(b, "KIND")
		assert.ErrorIs(t, err, ErrFormat, name)
	}
	_, _, err = Unseal(change(4), "KIND")
	assert.ErrorIs(t, err, ErrVersion)
}

func TestValuesComeBack(t *testing.T) {
	var e Encoder
	e.Uint8(7)
	e.Uint64(math.MaxUint64)
	e.Int(-3)
	e.Float(math.Pi)
	e.Float(math.NaN())
	e.Float32(0.5)
	e.Bool(true)
	e.Bool(false)
	e.Floats([]float64{1, 2})
	e.Bytes([]byte("x"))
	d := Decoder{B: e.B}
	assert.EqualValues(t, 7, d.Uint8())
	assert.EqualValues(t, uint64(math.MaxUint64), d.Uint64())
	assert.Equal(t, -3, d.Int("int", -5, 5))
	assert.Equal(t, math.Pi, d.Number("number"))
	assert.True(t, math.IsNaN(d.Float()))
	assert.EqualValues(t, 0.5, d.Float32())
	assert.True(t, d.Bool())
	assert.False(t, d.Bool())
	assert.Equal(t, []float64{1, 2}, d.Floats("floats"))
	assert.Equal(t, "x", string(d.Bytes("bytes")))
	require.NoError(t, d.End())
}

// Impossible lengths are refused before any memory is allocated for them, and
// from then on reads return zeros. The first error stays.
func TestWhatCannotBe(t *testing.T) {
	number := func(v uint64, more int) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, v), make([]byte, more)...)
	}
	for _, tc := range []struct {
		name string
		b    []byte
		read func(*Decoder) any
		zero any
		want string
	}{
		{"too small", number(1, 0), func(d *Decoder) any { return d.Int("n", 2, 4) }, 2, "n is 1, want 2 to 4"},
		{"too large", number(5, 0), func(d *Decoder) any { return d.Int("n", 2, 4) }, 2, "n is 5"},
		{"not finite", number(math.Float64bits(math.Inf(1)), 0), func(d *Decoder) any { return d.Number("x") }, 0., "x is +Inf"},
		{"too many elements", number(3, 16), func(d *Decoder) any { return d.Count("things", 8) }, 0, "3 things do not fit"},
		{"many more", number(math.MaxUint64, 16), func(d *Decoder) any { return len(d.Floats("things")) }, 0, "things do not fit"},
		{"too few bytes", number(3, 2), func(d *Decoder) any { return len(d.Bytes("bytes")) }, 0, "3 bytes do not fit"},
		{"ends early", number(3, 2)[:7], func(d *Decoder) any { return d.Uint64() }, uint64(0), "ends early"},
	} {
		d := Decoder{B: tc.b}
		assert.Equal(t, tc.zero, tc.read(&d), tc.name)
		assert.ErrorIs(t, d.Err, ErrFormat, tc.name)
		assert.ErrorContains(t, d.Err, tc.want, tc.name)
		assert.Zero(t, d.Uint64(), tc.name)
		d.Fail("later")
		assert.ErrorContains(t, d.End(), tc.want, tc.name)
	}
	d := Decoder{B: number(2, 16)}
	assert.Equal(t, 2, d.Count("things", 8), "they do")
	assert.ErrorContains(t, d.End(), "16 bytes too many")
}
