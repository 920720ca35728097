package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

func request(t testing.TB, r io.Reader, length int64, coding string) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway/v1/completions", r)
	require.NoError(t, err)
	req.ContentLength = length
	if coding != "" {
		req.Header.Set("Content-Encoding", coding)
	}
	return req
}

// However long a body is, in whatever pieces it comes and whatever length was
// announced, it is read whole and takes hardly more memory than its length.
func TestReadBody(t *testing.T) {
	const limit = 3 * firstRead
	for _, size := range []int{0, 1, 511, 512, 513, firstRead - 1, firstRead, firstRead + 1, 2*firstRead + 2, limit - 1, limit} {
		text := strings.Repeat("x", size)
		for name, length := range map[string]int64{"as announced": int64(size), "unknown": -1, "more than announced": int64(size / 2), "less than announced": limit} {
			for how, r := range map[string]io.Reader{
				"at once": strings.NewReader(text), "with its end": iotest.DataErrReader(strings.NewReader(text)), "in halves": iotest.HalfReader(strings.NewReader(text)),
			} {
				body, unpacked, err := reading(limit).readBody(request(t, r, length, ""))
				require.NoError(t, err)
				assert.False(t, unpacked)
				require.Equal(t, size, len(body), "%s, %s", name, how)
				require.True(t, string(body) == text)
				assert.LessOrEqual(t, cap(body), size+size/8+1024, "%d, %s, %s", size, name, how)
			}
		}
	}
	for name, length := range map[string]int64{"announced": limit + 1, "unknown": -1, "lied about": 5} {
		_, _, err := reading(limit).readBody(request(t, strings.NewReader(strings.Repeat("x", limit+1)), length, ""))
		var tooLarge *BodyError
		require.ErrorAs(t, err, &tooLarge, name)
		assert.EqualValues(t, limit, tooLarge.Limit)
	}
}

// An announced body is copied no more often than growing requires: all in all,
// twice its length is allocated.
func TestAnnouncedBodiesAreReadIntoPlace(t *testing.T) {
	for _, size := range []int{firstRead / 2, 3 * firstRead, 9 * firstRead} {
		req := request(t, strings.NewReader(strings.Repeat("x", size)), int64(size), "")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := reading(32 << 20).readBody(req)
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		assert.Less(t, int(after.TotalAlloc-before.TotalAlloc), 3*size)
	}
}

// An announced length costs the gateway nothing: memory grows with what has arrived.
func TestAnnouncedLengthsAreNotBelieved(t *testing.T) {
	for sent := 1; sent <= 4<<20; sent *= 4 {
		broke := errors.New("broke")
		req := request(t, io.MultiReader(strings.NewReader(strings.Repeat("x", sent)), iotest.ErrReader(broke)), 32<<20, "")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := reading(32 << 20).readBody(req)
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, broke)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4*sent+2*firstRead), "%d bytes sent", sent)
	}
}

func TestReadBodyLooksAtItsClient(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reads := 0
	r := readerFunc(func(p []byte) (int, error) {
		if reads++; reads == 3 {
			cancel()
		}
		return copy(p, "more"), nil
	})
	_, _, err := reading(1 << 30).readBody(request(t, r, -1, "").WithContext(ctx))
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 3, reads)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// reading is a dispatcher whose bodies have at most so many bytes.
func reading(most int64) *Dispatcher {
	enlarge := func(io.Reader) (io.Reader, error) { return strings.NewReader("large"), nil }
	return &Dispatcher{config: Config{MaxBodyBytes: most, Decoders: map[string]func(io.Reader) (io.Reader, error){
		"x": enlarge, "mad": func(io.Reader) (io.Reader, error) { panic("mad") },
	}}}
}

func TestCompressedBodies(t *testing.T) {
	const text = `{"model":"m","prompt":"x"}`
	for _, tc := range []struct{ coding, body, want string }{
		{"gzip", string(packed(t, text, gzipped)), text}, {"x-gzip", string(packed(t, text, gzipped)), text}, {" GZIP ", string(packed(t, text, gzipped)), text},
		{"deflate", string(packed(t, text, zlibbed)), text}, {"deflate", string(packed(t, text, deflated(6))), text},
		{"identity", text, ""}, {"br", text, ""}, {"zstd", text, ""}, {"gzip, br", text, ""}, {"gzip, gzip", text, ""}, {"X", "small", "large"}, {"", text, ""}, {"gzip", "", ""},
	} {
		body, unpacked, err := reading(1 << 20).readBody(request(t, strings.NewReader(tc.body), -1, tc.coding))
		require.NoError(t, err, tc.coding)
		assert.Equal(t, tc.want != "", unpacked, tc.coding)
		if tc.want == "" {
			tc.want = tc.body // unchanged
		}
		assert.Equal(t, tc.want, string(body), tc.coding)
	}
	_, _, err := reading(1 << 20).readBody(request(t, strings.NewReader("x"), -1, "mad"))
	require.ErrorAs(t, err, new(*endpick.PanicError))
	whole := string(packed(t, text, gzipped))
	for n := 1; n < len(whole); n++ {
		_, _, err := reading(1 << 20).readBody(request(t, strings.NewReader(whole[:n]), -1, "gzip"))
		require.ErrorIs(t, err, ErrRead, "%d bytes", n)
		require.Equal(t, 400, StatusOf(err))
	}
}

// A body packed more tightly than any human text costs no more than its sender
// has sent.
func TestBombsAreRefused(t *testing.T) {
	const freeInflation, maxInflation = 64 << 10, 64
	for _, size := range []int{freeInflation, 1 << 20, 16 << 20} {
		bomb := string(packed(t, strings.Repeat("x", size), gzipped))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		body, _, err := reading(32 << 20).readBody(request(t, strings.NewReader(bomb), -1, "gzip"))
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4*(freeInflation+maxInflation*len(bomb))+(1<<20)))
		if size == freeInflation {
			require.NoError(t, err)
			assert.Len(t, body, size)
			continue
		}
		require.ErrorAs(t, err, new(*BodyError))
		assert.Equal(t, 413, StatusOf(err))
	}
	// The limit on bodies also applies after unpacking.
	_, _, err := reading(1000).readBody(request(t, bytes.NewReader(packed(t, strings.Repeat("x", 1001), gzipped)), -1, "gzip"))
	var tooLarge *BodyError
	require.ErrorAs(t, err, &tooLarge)
	assert.EqualValues(t, 1000, tooLarge.Limit)
}
