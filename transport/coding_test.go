package transport

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// packed is a text in a coding.
func packed(t testing.TB, text string, w func(io.Writer) io.WriteCloser) []byte {
	var b bytes.Buffer
	c := w(&b)
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	return b.Bytes()
}

func gzipped(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }
func zlibbed(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }

func deflated(level int) func(io.Writer) io.WriteCloser {
	return func(w io.Writer) io.WriteCloser {
		c, _ := flate.NewWriter(w, level)
		return c
	}
}

func TestCodings(t *testing.T) {
	texts := []string{"", "a", strings.Repeat("some text that repeats itself ", 1000)}
	random := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 10_000)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	for _, text := range append(texts, string(noise)) {
		for _, tc := range []struct {
			coding string
			packed []byte
		}{
			{"gzip", packed(t, text, gzipped)},
			{"X-GZIP", packed(t, text, gzipped)},
			{"gzip", append(packed(t, text[:len(text)/2], gzipped), packed(t, text[len(text)/2:], gzipped)...)}, // two members
			{"deflate", packed(t, text, zlibbed)},
			{"Deflate", packed(t, text, deflated(flate.BestCompression))},
			{"deflate", packed(t, text, deflated(flate.NoCompression))},
			{"deflate", packed(t, text, deflated(flate.HuffmanOnly))},
		} {
			open := decoders(nil).of(tc.coding)
			require.NotNil(t, open, tc.coding)
			got, err := io.ReadAll(&decoding{src: iotest.OneByteReader(bytes.NewReader(tc.packed)), open: open})
			require.NoError(t, err, tc.coding)
			assert.Equal(t, text, string(got), tc.coding)
		}
	}
	got, err := io.ReadAll(&decoding{src: strings.NewReader(""), open: decoders(nil).of("gzip")})
	require.NoError(t, err, "nothing was packed, and is nothing")
	assert.Empty(t, got)
	for _, unknown := range []string{"", "identity", " , ", "br", "zstd", "gzip, br", "br, gzip", "compress", "gzip,gzip"} {
		assert.Nil(t, decoders(nil).of(unknown), unknown)
	}
}

// Deflate data that begins almost like zlib is still deflate.
func TestDeflateThatLooksLikeZlib(t *testing.T) {
	checked := packed(t, strings.Repeat("x", 31), deflated(flate.NoCompression))
	require.Equal(t, []byte{0, 31}, checked[:2], "a multiple of 31, of another method")
	named := packed(t, strings.Repeat("x", 30), deflated(flate.NoCompression))
	named[0] |= 8 // of the bits that a stored block does not use
	require.NotZero(t, (8<<8|int(named[1]))%31, "the method, without its check")
	for length, body := range map[int][]byte{31: checked, 30: named} {
		got, err := io.ReadAll(&decoding{src: bytes.NewReader(body), open: decoders(nil).of("deflate")})
		require.NoError(t, err)
		assert.Equal(t, strings.Repeat("x", length), string(got))
	}
}

// Broken data is an error, the same at each read, and no panic.
func TestWhatIsBroken(t *testing.T) {
	whole := packed(t, strings.Repeat("text ", 100), gzipped)
	for name, tc := range map[string]struct {
		coding string
		src    io.Reader
	}{
		"no gzip":           {"gzip", strings.NewReader(`{"model":"m"}`)},
		"nothing, deflate":  {"deflate", strings.NewReader("")},
		"cut":               {"gzip", bytes.NewReader(whole[:len(whole)/2])},
		"cut checksum":      {"gzip", bytes.NewReader(whole[:len(whole)-1])},
		"wrong checksum":    {"gzip", bytes.NewReader(append(bytes.Clone(whole[:len(whole)-5]), 1, 2, 3, 4, 5))},
		"no deflate":        {"deflate", strings.NewReader("\xff\xff\xff")},
		"zlib with no body": {"deflate", strings.NewReader("\x78\x9c")},
		"a source breaks":   {"gzip", iotest.ErrReader(errors.New("reset"))},
	} {
		r := &decoding{src: tc.src, open: decoders(nil).of(tc.coding)}
		_, err := io.ReadAll(r)
		require.Error(t, err, name)
		n, again := r.Read(make([]byte, 10))
		assert.Zero(t, n, name)
		assert.Equal(t, err, again, name)
	}
}

// Nothing is read or decoded before the first Read.
func TestOpenedWhenRead(t *testing.T) {
	opened := 0
	r := &decoding{src: strings.NewReader("text"), open: func(src io.Reader) (io.Reader, error) {
		opened++
		return src, nil
	}}
	assert.Zero(t, opened)
	got, err := io.ReadAll(iotest.OneByteReader(r))
	require.NoError(t, err)
	assert.Equal(t, "text", string(got))
	assert.Equal(t, 1, opened)

	refused := errors.New("refused")
	r = &decoding{open: func(io.Reader) (io.Reader, error) {
		opened++
		return nil, refused
	}}
	for range 2 {
		_, err = r.Read(nil)
		require.ErrorIs(t, err, refused)
	}
	assert.Equal(t, 2, opened, "once more, not at each read")
}

func TestUnpackedLimit(t *testing.T) {
	for _, tc := range []struct {
		n    int
		most int64
		want int64
	}{
		{0, 1 << 20, 64 << 10},
		{1, 1 << 20, 64<<10 + 64},
		{1000, 1 << 30, 64<<10 + 64_000},
		{1 << 20, 32 << 20, 32 << 20},
		{0, 10, 10},
		{1 << 30, 1 << 50, 64<<10 + 64<<30},
	} {
		assert.Equal(t, tc.want, unpackedLimit(tc.n, tc.most))
	}
}

// Any bytes yield a text or an error, and a packed text comes back.
func FuzzDecoder(f *testing.F) {
	f.Add("gzip", packed(f, "text", gzipped))
	f.Add("deflate", packed(f, "text", zlibbed))
	f.Add("deflate", packed(f, "text", deflated(flate.DefaultCompression)))
	f.Add("x-gzip", []byte{0x1f, 0x8b})
	f.Fuzz(func(t *testing.T, coding string, body []byte) {
		if open := decoders(nil).of(coding); open != nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(&decoding{src: bytes.NewReader(body), open: open}, unpackedLimit(len(body), 1<<20)))
			got, err := io.ReadAll(&decoding{src: bytes.NewReader(packed(t, string(body), gzipped)), open: decoders(nil).of("gzip")})
			if err != nil || !bytes.Equal(got, body) {
				t.Fatalf("%q came back as %q, %v", body, got, err)
			}
		}
	})
}
