package kvevents

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// skips reports whether a message begins with a value.
func skips(message string) bool {
	r := readerOf(message)
	r.skip()
	return !r.bad
}

func readerOf(message string) *reader {
	r := new(reader)
	r.reset([]byte(message))
	return r
}

// Any value is skipped to its end, unless it is incomplete.
func TestSkip(t *testing.T) {
	long := strings.Repeat("s", 70_000)
	value := []any{
		nil, true, 1, -1, 1 << 20, 1.5, float32(2.5), "a", long, []byte("b"), []byte(long), []any{}, []any{1, []any{"x", nil}},
		map[string]any{"k": map[string]any{"l": []int{1, 2, 3}}, long: "v"}, make([]int, 300), msgpack.RawMessage("\xd6\x01abcd"), msgpack.RawMessage("\xc7\x03\x01abc"),
		msgpack.RawMessage("\xde\x00\x01\x01\x02"), msgpack.RawMessage("\xdf\x00\x00\x00\x01\x01\x02"),
		msgpack.RawMessage("\xdd\x00\x00\x00\x01\x01"),
	}
	b, err := msgpack.Marshal(value)
	require.NoError(t, err)
	r := readerOf(string(b) + "rest")
	r.skip()
	require.False(t, r.bad)
	require.Equal(t, len(b), r.at())
	for n := 0; n < len(b); n += 1 + n/50 {
		require.False(t, skips(string(b[:n])), "%d bytes", n)
	}
}

// Impossible lengths and depths are noticed before anything is read for them.
func TestLengthsAreChecked(t *testing.T) {
	for _, code := range []string{
		"\xdd\xff\xff\xff\xff\x01", "\xdc\xff\xff\x01", "\x92\x01", "\xdf\xff\xff\xff\xff\x01", "\x82\x01\x01\x01", "\xde\x00\x02\x01\x02\x03",
		"\xdb\xff\xff\xff\xffx", "\xc6\x00\x00\x00\x02x", "\xa2x", "\xc9\xff\xff\xff\xff\x01x", "\xc1", "",
	} {
		for _, read := range []func(*reader){func(r *reader) { r.array() }, func(r *reader) { r.mapping() }, func(r *reader) { r.text() }} {
			r := readerOf(code)
			read(r)
			require.True(t, r.bad, "%q", code)
		}
		require.False(t, skips(code), "%q", code)
	}
	require.True(t, skips(strings.Repeat("\x91", maxDepth)+"\x01"))
	for _, depth := range []int{maxDepth + 1, 1 << 20} {
		require.False(t, skips(strings.Repeat("\x91", depth)+"\x01"))
	}
}

// Numbers that are too large or negative are no small ones.
func TestSmallNumbers(t *testing.T) {
	for code, want := range map[string]int{
		"\x00": 0, "\x7f": 127, "\xcc\xff": 255, "\xce\x7f\xff\xff\xff": 1<<31 - 1, "\xd3\x00\x00\x00\x00\x00\x00\x00\x09": 9,
		"\xff": -1, "\xd1\x80\x00": -1, "\xce\x80\x00\x00\x00": -1, "\xcf\x80\x00\x00\x00\x00\x00\x00\x01": -1, "\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00": -1,
	} {
		r := readerOf(code)
		require.Equal(t, max(want, 0), r.small())
		require.Equal(t, want < 0, r.bad, "%q", code)
	}
}
