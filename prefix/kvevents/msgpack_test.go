package kvevents

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

func TestIntegers(t *testing.T) {
	for _, c := range []struct {
		code string
		want int64
	}{
		{"\x00", 0}, {"\x7f", 127}, {"\xff", -1}, {"\xe0", -32}, {"\xcc\x80", 128}, {"\xcc\xff", 255}, {"\xcd\x01\x00", 256},
		{"\xce\x00\x01\x00\x00", 65536}, {"\xcf\x00\x00\x00\x01\x00\x00\x00\x00", 1 << 32}, {"\xd0\x80", -128}, {"\xd0\x05", 5},
		{"\xd1\x80\x00", -32768}, {"\xd2\x80\x00\x00\x00", math.MinInt32}, {"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", math.MinInt64}, {"\xd3\x00\x00\x00\x00\x00\x00\x00\x09", 9},
	} {
		r := reader{b: []byte(c.code)}
		n, negative, ok := r.integer()
		require.True(t, ok)
		require.Equal(t, c.want, int64(n), "%q", c.code)
		require.Equal(t, c.want < 0, negative, "%q", c.code)
		require.Equal(t, len(c.code), r.i)
		r = reader{b: []byte(c.code)}
		small, ok := r.small()
		require.Equal(t, c.want >= 0 && c.want <= math.MaxInt32, ok, "%q", c.code)
		if ok {
			require.Equal(t, c.want, int64(small))
		} else {
			require.Zero(t, r.i)
		}
		r = reader{b: []byte(c.code)[:len(c.code)-1]}
		_, _, ok = r.integer()
		require.False(t, ok)
		require.Zero(t, r.i)
	}
	for code, want := range map[string]float64{"\xca\x3f\xc0\x00\x00": 1.5, "\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00": -1.5, "\x07": 7, "\xf9": -7} {
		r := reader{b: []byte(code)}
		got, ok := r.float()
		require.True(t, ok)
		require.Equal(t, want, got)
		require.Equal(t, len(code), r.i)
	}
}

// Any value of another implementation is skipped to its end, unless it is
// incomplete.
func TestSkip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var value func(depth int) any
	value = func(depth int) any {
		n := []int{0, 3, 20, 40, 300}[r.IntN(5)]
		switch k := r.IntN(12); {
		case k < 2 && depth < 4:
			list := make([]any, min(n, 20))
			for i := range list {
				list[i] = value(depth + 1)
			}
			return list
		case k < 4 && depth < 4:
			m := map[string]any{}
			for range min(n, 20) {
				m[strings.Repeat("k", r.IntN(50))] = value(depth + 1)
			}
			return m
		case k == 4:
			return strings.Repeat("s", n*r.IntN(300))
		case k == 5:
			return make([]byte, n*r.IntN(300))
		case k == 6:
			return r.Float32()
		case k == 7:
			return r.Float64()
		case k == 8:
			return nil
		case k == 9:
			return r.IntN(2) == 0
		}
		return int64(r.Uint64()) >> r.IntN(64)
	}
	for range 300 {
		b, err := msgpack.Marshal(value(0))
		require.NoError(t, err)
		s := reader{b: append(b, "rest"...)}
		require.True(t, s.skip())
		require.Equal(t, len(b), s.i)
		cut := reader{b: b[:r.IntN(len(b))]}
		require.False(t, cut.skip())
	}
	for _, extension := range []string{"\xd4\x01a", "\xd5\x01ab", "\xd6\x01abcd", "\xd7\x01abcdefgh", "\xd8\x01abcdefghijklmnop", "\xc7\x03\x01abc", "\xc8\x00\x03\x01abc", "\xc9\x00\x00\x00\x03\x01abc", "\xc7\x00\x01"} {
		s := reader{b: []byte(extension + "rest")}
		require.True(t, s.skip(), "%q", extension)
		require.Equal(t, len(extension), s.i, "%q", extension)
		cut := reader{b: []byte(extension[:len(extension)-1])}
		require.False(t, cut.skip(), "%q", extension)
	}
}

// Impossible lengths are noticed before anything is read for them.
func TestLengthsAreChecked(t *testing.T) {
	for _, code := range []string{"\xdd\xff\xff\xff\xff\x01", "\xdc\xff\xff\x01", "\x92\x01"} {
		r := reader{b: []byte(code)}
		_, ok := r.array()
		require.False(t, ok, "%q", code)
		require.Zero(t, r.i)
	}
	for _, code := range []string{"\xdf\xff\xff\xff\xff\x01", "\x82\x01\x01\x01", "\xde\x00\x02\x01\x02\x03"} {
		r := reader{b: []byte(code)}
		_, ok := r.mapping()
		require.False(t, ok, "%q", code)
	}
	deep := reader{b: []byte(strings.Repeat("\x91", maxDepth) + "\x01")}
	require.True(t, deep.skip())
	deep = reader{b: []byte(strings.Repeat("\x91", maxDepth+1) + "\x01")}
	require.False(t, deep.skip())
	deep = reader{b: []byte(strings.Repeat("\x91", 100_000) + "\x01")}
	require.False(t, deep.skip())
}
