package transport

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"io"
	"strings"
)

// decoder opens a content coding; nil if the standard library has none.
func decoder(coding string) func(io.Reader) (io.Reader, error) {
	switch strings.ToLower(coding) {
	case "gzip", "x-gzip":
		return func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }
	case "deflate":
		return func(r io.Reader) (io.Reader, error) {
			// Meant is zlib (RFC 9110, 8.4.1.2); some send deflate without it.
			in := bufio.NewReader(r)
			if head, err := in.Peek(2); err == nil && head[0]&0x0f == 8 && (uint(head[0])<<8|uint(head[1]))%31 == 0 {
				return zlib.NewReader(in)
			}
			return flate.NewReader(in), nil
		}
	}
	return nil
}

// lazyReader opens a decoder when it is first read: opening reads.
type lazyReader struct {
	src  io.Reader
	open func(io.Reader) (io.Reader, error)
	r    io.Reader
	err  error
}

func (l *lazyReader) Read(p []byte) (int, error) {
	if l.r == nil && l.err == nil {
		l.r, l.err = l.open(l.src)
	}
	if l.err != nil {
		return 0, l.err
	}
	return l.r.Read(p)
}
