package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/endpick/endpick/transport/internal/dialect"
)

// Incoming is a request as it arrived.
type Incoming struct {
	Method, Path string      // as in the request line, with its escapes, without a query
	Query        string      // raw query of the URL; /v1/realtime?model= names the model there
	Header       http.Header // keys in their canonical form
	// Body is the whole body, decompressed if it was in gzip or deflate, because
	// engines take no others. The [Call] refers to it until an endpoint has
	// answered: it must not change before the call is closed.
	Body []byte
}

// Read reads a request, except for its prompt. The error is an [endpick.RequestError], a
// [BodyError], or matches [ErrRead], [ErrCoding] or [ErrUnknownPath].
func (d *Dispatcher) Read(in Incoming) (*Call, error) {
	path, err := d.reader.Allow(in.Method, in.Path)
	if err != nil {
		return nil, err
	}
	in.Path = path
	if n := int64(len(in.Body)); n > d.config.MaxBodyBytes {
		return nil, &BodyError{Limit: d.config.MaxBodyBytes, Length: n}
	}
	body, unpacked, err := d.unpack(context.Background(), in.Header, in.Body)
	if err != nil {
		return nil, err
	}
	in.Body = body
	c := &Call{d: d, single: true, unpacked: unpacked}
	if err := c.read(in); err != nil {
		return nil, err
	}
	d.budget.Request(d.now())
	return c, nil
}

// read reads all but the prompt.
func (c *Call) read(in Incoming) error {
	parsed, err := c.d.reader.Read(dialect.Incoming(in))
	if err == dialect.ErrMalformed && !c.unpacked && in.Header.Get("Content-Encoding") != "" {
		err = ErrCoding
	}
	c.method = in.Method
	if parsed != nil {
		c.parsed, c.Request, c.Warnings = parsed, parsed.Request, parsed.Warnings
		c.metered = parsed.Metered()
		c.named(in)
	}
	return err
}

// prompt reads the prompt; the host has set what it knows. The error is that of
// [dialect.Call.Prompt].
func (c *Call) prompt(ctx context.Context) error {
	if c.alias != nil {
		return c.resolve(ctx)
	}
	return c.readPrompt(ctx)
}

func (c *Call) readPrompt(ctx context.Context) error {
	c.parsed.Request = c.Request
	err := c.parsed.Prompt(ctx)
	if err != nil {
		c.harmless, c.Request = c.parsed.Inert(), c.parsed.Request
		return err
	}
	c.take()
	return nil
}

// take takes over what the parsed call says.
func (c *Call) take() {
	c.harmless, c.Request = c.parsed.Inert(), c.parsed.Request
	if c.alias == nil {
		c.parsed.Request.Blocks = nil // c has its own, which are dropped when the response arrives
	}
	c.exclude = slices.Clone(c.Request.Exclude)
	if id := c.parsed.Endpoint(); id != "" {
		if others, found := c.allBut(id); found { // if it is gone, any endpoint can answer that there is no such thing
			c.exclude = append(c.exclude, others...)
		}
	}
	c.exclude = append(c.exclude, c.failed...)
	c.body, c.ready, c.metered = c.parsed.Body(true), true, c.parsed.Metered()
}

// allBut returns all endpoints but one, and whether that one exists.
func (c *Call) allBut(id string) (others []string, found bool) {
	for _, e := range c.d.config.Router.Endpoints() {
		if other := e.Candidate.Endpoint.ID; other != id {
			others = append(others, other)
		} else {
			found = found || !e.Removed // one that is removed may be listed beside its successor
		}
	}
	return others, found
}

func (t *Transport) read(c *Call, path string) error {
	in := c.in
	body, unpacked, err := t.d.readBody(in)
	if err != nil {
		return err
	}
	c.unpacked = unpacked
	err = c.read(Incoming{Method: in.Method, Path: path, Query: in.URL.RawQuery, Header: in.Header, Body: body})
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
	return nil
}

func (t *Transport) describe(c *Call, body []byte) (err error) {
	if t.config.Describe == nil {
		return nil
	}
	defer t.d.rescue(c.in, "Config.Describe", &err)
	t.config.Describe(c.in, body, &c.Request)
	return nil
}

// firstRead is how much is allocated, trusting the announced length, before any
// of the body has arrived. Most bodies are not longer, and need not be moved.
const firstRead = 2 << 20

// readBody reads the body once, and closes it; see unpack.
func (d *Dispatcher) readBody(req *http.Request) (body []byte, unpacked bool, err error) {
	limit := d.config.MaxBodyBytes
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
	return d.unpack(req.Context(), req.Header, body)
}

// unpack returns a body uncompressed, because engines take no others, and whether it was
// compressed, in codings that are known.
func (d *Dispatcher) unpack(ctx context.Context, header http.Header, body []byte) (plain []byte, unpacked bool, err error) {
	most := unpackedLimit(len(body), d.config.MaxBodyBytes)
	open := decoders(d.config.Decoders).of(strings.Join(header["Content-Encoding"], ","))
	if open == nil || len(body) == 0 {
		return body, false, nil
	}
	defer d.rescue(nil, "Config.Decoders", &err)
	plain, err = readAll(ctx, &decoding{src: bytes.NewReader(body), open: open}, -1, most)
	return plain, true, err
}

// readAll reads to the end and returns a slice with little spare capacity, since
// it is kept while the request waits. length is the announced one; negative:
// unknown.
func readAll(ctx context.Context, r io.Reader, length, limit int64) ([]byte, error) {
	b := make([]byte, 0, min(max(length+1, 512), firstRead)) // one more, to see the end
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(b) == cap(b) {
			most := max(limit, limit+1)
			if length >= int64(len(b)) {
				most = max(length, length+1) // trust the announced length, since much of it has arrived
			}
			b = append(make([]byte, 0, min(2*int64(len(b)), most)), b...)
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case int64(len(b)) > limit:
			return nil, &BodyError{Limit: limit, Length: -1}
		case err == io.EOF:
			if cap(b)-len(b) > len(b)/8+1 {
				b = bytes.Clone(b)
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
