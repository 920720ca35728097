package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/endpick/endpick/transport/internal/host"
)

// read reads the request.
func (t *Transport) read(c *Call) error {
	in := c.in
	if err := host.CheckPath(in.URL); err != nil {
		if in.Body != nil {
			in.Body.Close()
		}
		return err
	}
	body, unpacked, err := readBody(in, t.config.MaxBodyBytes)
	if err != nil {
		return err
	}
	c.unpacked = unpacked
	err = c.read(Incoming{Method: in.Method, Path: in.URL.Path, Query: in.URL.RawQuery, Header: in.Header, Body: body})
	for _, w := range c.Warnings {
		t.d.warn(in, w)
	}
	if err != nil {
		return err
	}
	if err := t.describe(c, body); err != nil {
		return err
	}
	s := &c.story
	s.slo, s.model, s.maxTokens = c.Request.SLO, c.parsed.Model(), c.parsed.MaxTokens()
	if err := c.prompt(in.Context()); err != nil {
		return err
	}
	s.sketch, s.salt = c.parsed.Sketch()
	if c.observes() && t.queue != nil {
		s.ready = t.d.now()
	}
	return nil
}

// describe calls Config.Describe.
func (t *Transport) describe(c *Call, body []byte) (err error) {
	if t.config.Describe == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = t.d.panicked(c.in, "Config.Describe", v)
		}
	}()
	t.config.Describe(c.in, body, &c.Request)
	return nil
}

// firstRead is how much is allocated, trusting the announced length, before any
// of the body has arrived.
const firstRead = 1 << 20

// readBody reads the body once, and closes it; see unpack.
func readBody(req *http.Request, limit int64) (body []byte, unpacked bool, err error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, false, nil
	}
	defer req.Body.Close()
	if req.ContentLength > limit {
		return nil, false, &BodyError{Limit: limit, Length: req.ContentLength}
	}
	if body, err = readAll(req.Context(), req.Body, req.ContentLength, limit); err != nil {
		return nil, false, err
	}
	return unpack(req.Context(), req.Header, body, limit)
}

// unpack returns a body uncompressed, because engines take no others, and whether it was
// compressed, in gzip or deflate.
func unpack(ctx context.Context, header http.Header, body []byte, limit int64) (plain []byte, unpacked bool, err error) {
	open := decoder(strings.TrimSpace(strings.Join(header["Content-Encoding"], ",")))
	if open == nil || len(body) == 0 {
		return body, false, nil
	}
	plain, err = readAll(ctx, &decoding{src: bytes.NewReader(body), open: open}, -1, unpackedLimit(len(body), limit))
	return plain, true, err
}

// readAll reads to the end and returns a slice with little spare capacity, since
// it is kept while the request waits. length is the announced one; negative:
// unknown.
func readAll(ctx context.Context, r io.Reader, length, limit int64) ([]byte, error) {
	b := make([]byte, 0, min(max(length, 512), firstRead))
	var more [1]byte // reads beyond the announced length without growing
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		room := b[len(b):cap(b)]
		if len(room) == 0 {
			room = more[:]
		}
		n, err := r.Read(room)
		if len(b) < cap(b) {
			b = b[:len(b)+n]
		} else if n > 0 {
			most := limit + 1
			if length > int64(len(b)) {
				most = length // trust the announced length, since much of it has arrived
			}
			b = append(moved(b, int(min(2*int64(len(b)), max(most, int64(len(b))+1)))), more[0])
		}
		switch {
		case int64(len(b)) > limit:
			return nil, &BodyError{Limit: limit, Length: -1}
		case err == io.EOF:
			if cap(b)-len(b) > len(b)/8+1 {
				b = moved(b, len(b))
			}
			return b, nil
		case err != nil:
			// A server also cancels the request of a client that was too slow.
			if gone := ctx.Err(); gone != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, gone
			}
			return nil, fmt.Errorf("%w: %w", ErrRead, err)
		}
	}
}

// moved copies b to a slice with room for n bytes.
func moved(b []byte, n int) []byte { return append(make([]byte, 0, n), b...) }
