package transport

import (
	"io"
	"net/http"
	"strings"
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
		p := newPayload(nil, pieces)
		assert.EqualValues(t, len(want), p.size)
		for range 2 {
			r, err := p.open()
			require.NoError(t, err)
			require.NoError(t, iotest.TestReader(r, []byte(want)))
			require.NoError(t, r.Close())
		}
	}
}

// The bytes go when the last byte has been read, or the reader closed, and nobody
// will open the payload again: readers need not come to the end.
func TestPayloadLetsItsBytesGo(t *testing.T) {
	open := func() (*payload, io.ReadCloser) {
		body := []byte("abcdef")
		p := newPayload(body, [][]byte{body[:3], body[3:]})
		r, err := p.open()
		require.NoError(t, err)
		return p, r
	}
	p, r := open()
	p.release()
	_, err := io.ReadFull(r, make([]byte, 5))
	require.NoError(t, err)
	assert.NotNil(t, p.pieces, "one is not read yet")
	assert.NotNil(t, p.body, "and may not be used again")
	_, err = io.ReadFull(r, make([]byte, 1))
	require.NoError(t, err)
	assert.Nil(t, p.pieces)
	assert.Nil(t, p.body)
	require.NoError(t, r.Close())
	_, err = p.open()
	assert.ErrorIs(t, err, http.ErrBodyReadAfterClose)

	p, r = open()
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	assert.NotNil(t, p.pieces, "another attempt may come")
	again, err := p.open()
	require.NoError(t, err)
	p.release()
	var b strings.Builder
	_, err = io.Copy(&b, again)
	require.NoError(t, err)
	assert.Equal(t, "abcdef", b.String())
	assert.Nil(t, p.pieces)
}
