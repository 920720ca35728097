package transport

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"io"
	"strings"
)

// decoders are those of codings that the standard library lacks.
type decoders map[string]func(io.Reader) (io.Reader, error)

// of returns the decoder of what a header says; nil if there is none.
func (d decoders) of(header string) func(io.Reader) (io.Reader, error) {
	coding := strings.ToLower(strings.TrimSpace(header))
	switch coding {
	case "gzip", "x-gzip":
		return func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }
	case "deflate":
		return func(r io.Reader) (io.Reader, error) {
			// The standard says zlib (RFC 9110, 8.4.1.2), but some send raw deflate.
			in := bufio.NewReader(r)
			if head, err := in.Peek(2); err == nil && head[0]&0x0f == 8 && (uint(head[0])<<8|uint(head[1]))%31 == 0 {
				return zlib.NewReader(in)
			}
			return flate.NewReader(in), nil
		}
	}
	return d[coding]
}

// decoding opens a decoder when it is first read: opening reads.
type decoding struct {
	src  io.Reader
	open func(io.Reader) (io.Reader, error)
	r    io.Reader
	err  error
}

func (d *decoding) Read(p []byte) (int, error) {
	if d.r == nil && d.err == nil {
		d.r, d.err = d.open(d.src)
	}
	if d.err != nil {
		return 0, d.err
	}
	return d.r.Read(p)
}

// A compressed body may expand to this multiple of its size plus so many bytes:
// otherwise decompressing it would cost more than sending it. JSON compresses to a
// fifth, repetitive text to a thirtieth.
const maxInflation, freeInflation = 64, 64 << 10

// unpackedLimit is how many bytes a body of n compressed bytes may expand to, but at most most.
func unpackedLimit(n int, most int64) int64 { return min(most, freeInflation+maxInflation*int64(n)) }
