package transport

import (
	"io"
	"net/http"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPayloadReadsItsPiecesAsOne(t *testing.T) {
	for want, pieces := range map[string][][]byte{
		"":          nil,
		"abc":       {[]byte("abc")},
		"abcdefghi": {[]byte("abc"), nil, []byte("d"), {}, []byte("efghi"), nil},
	} {
		p := newPayload(pieces)
		assert.EqualValues(t, len(want), p.size)
		for range 2 {
			r, err := p.open()
			require.NoError(t, err)
			require.NoError(t, iotest.TestReader(r, []byte(want)))
			require.NoError(t, r.Close())
		}
	}
}

// A reader lets go of the bytes with the last of them, or when it is closed, because
// net/http keeps it; what is released can't be opened again.
func TestPayloadLetsItsBytesGo(t *testing.T) {
	p := newPayload([][]byte{[]byte("abc"), []byte("def")})
	open := func() *payloadReader {
		r, err := p.open()
		require.NoError(t, err)
		return r.(*payloadReader)
	}
	whole, closed := open(), open()
	_, err := io.ReadFull(closed, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	require.NoError(t, closed.Close())
	assert.Nil(t, closed.left)
	_, err = closed.Read(make([]byte, 1))
	assert.Equal(t, io.EOF, err)
	p.release()
	assert.Nil(t, p.pieces)
	_, err = p.open()
	require.ErrorIs(t, err, http.ErrBodyReadAfterClose)
	got := make([]byte, 6)
	_, err = io.ReadFull(whole, got)
	require.NoError(t, err)
	assert.Equal(t, "abcdef", string(got), "who has opened it reads on")
	assert.Empty(t, whole.left)
}
