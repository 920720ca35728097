package transport

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/endpick/endpick/internal/coding"
)

// firstRead is how much of a body's announced length is believed before any of it
// has come.
const firstRead = 1 << 20

// readBody reads the body once, and closes it. If the standard library knows its
// coding, it comes unpacked, which unpacked tells: engines don't take others.
func readBody(req *http.Request, limit int64) (body []byte, unpacked bool, err error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, false, nil
	}
	defer req.Body.Close()
	if req.ContentLength > limit {
		return nil, false, &BodyError{Limit: limit, Length: req.ContentLength}
	}
	if body, err = readAll(req, req.Body, req.ContentLength, limit); err != nil {
		return nil, false, err
	}
	open := coding.Decoder(strings.TrimSpace(strings.Join(req.Header["Content-Encoding"], ",")))
	if open == nil || len(body) == 0 {
		return body, false, nil
	}
	limit = coding.Limit(len(body), limit)
	body, err = readAll(req, &coding.Reader{Src: bytes.NewReader(body), Open: open}, -1, limit)
	return body, true, err
}

// readAll reads to the end and returns a slice with little to spare, since it is
// kept while the request waits. length is what may be expected; below 0: unknown.
func readAll(req *http.Request, r io.Reader, length, limit int64) ([]byte, error) {
	ctx := req.Context()
	// One byte more than is announced, to see the end without growing.
	b := make([]byte, 0, min(max(length, 511), firstRead)+1)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case int64(len(b)) > limit:
			return nil, &BodyError{Limit: limit, Length: -1}
		case err == io.EOF:
			if cap(b)-len(b) > len(b)/8 {
				b = slices.Clone(b)
			}
			return b, nil
		case err != nil:
			if gone := ctx.Err(); gone != nil {
				return nil, gone
			}
			return nil, &ReadError{Err: err}
		}
		if len(b) == cap(b) {
			most := limit
			if length >= int64(len(b)) {
				most = length // as announced, since much of it has come
			}
			grown := make([]byte, len(b), min(2*int64(len(b)), most+1))
			copy(grown, b)
			b = grown
		}
	}
}
