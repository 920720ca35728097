package transport

import (
	"bytes"
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

// The bytes are released once the last one has been read, or the reader closed,
// and the payload will not be opened again: readers need not read to the end.
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

// WriteTo writes the same from any position, however much was read before, and
// no more than asked for.
func TestPayloadWritesItsPieces(t *testing.T) {
	const whole = "abcdefghi"
	for read := range len(whole) + 1 {
		for most := range len(whole) + 3 {
			p := newPayload(nil, [][]byte{[]byte("abc"), nil, []byte("d"), []byte("efghi")})
			body, err := p.open()
			require.NoError(t, err)
			p.release()
			head, err := io.ReadAll(io.LimitReader(body, int64(read)))
			require.NoError(t, err)
			var tail strings.Builder
			n, err := body.(*payloadReader).writeTo(&tail, int64(most))
			require.NoError(t, err)
			assert.EqualValues(t, tail.Len(), n)
			assert.Equal(t, whole[:min(read+most, len(whole))], string(head)+tail.String())
			assert.Equal(t, read+most >= len(whole), p.pieces == nil, "%d, %d", read, most)
			require.NoError(t, body.Close())
			assert.Nil(t, p.pieces)
		}
	}
}

// A connection may fail in the middle of a piece; the next attempt starts over.
func TestPayloadIsWrittenAgain(t *testing.T) {
	p := newPayload(nil, [][]byte{[]byte("abc"), []byte("defghi")})
	body, err := p.open()
	require.NoError(t, err)
	var got bytes.Buffer
	n, err := body.(*payloadReader).writeTo(iotest.TruncateWriter(&got, 5), 100)
	require.NoError(t, err, "a TruncateWriter takes all, and drops it")
	assert.EqualValues(t, 9, n)
	require.NoError(t, body.Close())

	body, err = p.open()
	require.NoError(t, err)
	n, err = body.(*payloadReader).writeTo(failing{5}, 100)
	assert.ErrorIs(t, err, io.ErrClosedPipe)
	assert.EqualValues(t, 3+2, n)
	require.NoError(t, body.Close())
	assert.NotNil(t, p.pieces, "another attempt may come")

	body, err = p.open()
	require.NoError(t, err)
	p.release()
	got.Reset()
	_, err = body.(*payloadReader).writeTo(&got, 100)
	require.NoError(t, err)
	assert.Equal(t, "abcdefghi", got.String())
	assert.Nil(t, p.pieces)
}

// failing is a connection that breaks after a number of bytes.
type failing struct{ after int }

func (w failing) Write(b []byte) (int, error) {
	if len(b) < w.after {
		return len(b), nil
	}
	return 2, io.ErrClosedPipe
}

// Bytes that the system is still reading are not reused, even if the body is
// closed meanwhile.
func TestPayloadStaysWhileItIsWritten(t *testing.T) {
	body := []byte("abcdef")
	p := newPayload(body, [][]byte{body})
	r, err := p.open()
	require.NoError(t, err)
	p.release()
	reading, writer := io.Pipe()
	done := make(chan error)
	go func() {
		_, err := r.(*payloadReader).writeTo(writer, 6)
		done <- err
	}()
	_, err = io.ReadFull(reading, make([]byte, 3)) // it has begun
	require.NoError(t, err)
	require.NoError(t, r.Close())
	p.mu.Lock()
	assert.NotNil(t, p.body)
	p.mu.Unlock()
	reading.Close()
	assert.ErrorIs(t, <-done, io.ErrClosedPipe)
	assert.Nil(t, p.body)
	n, err := r.Read(make([]byte, 1))
	assert.Zero(t, n)
	assert.Equal(t, io.EOF, err)
}
