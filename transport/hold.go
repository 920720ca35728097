package transport

import (
	"bufio"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick/transport/internal/dialect"
)

// What a client would not miss is held back, so that another endpoint can be asked if this one fails:
// a stream, until it says something, and JSON that does not stream, until it is whole.

const (
	// maxHeld is how many bytes of one response are held, and maxHeldInAll of all of a Transport.
	maxHeld, maxHeldInAll = 1 << 20, 64 << 20
	// holdFor is how long a stream is held that keeps sending signs of life: some client may be
	// waiting for them.
	holdFor = 5 * time.Second
	// firstHeld is the memory for the beginning of each response, which counts for nothing.
	firstHeld = 512
)

// held is a body whose beginning has been read. Whoever reads on waits for the endpoint.
type held struct {
	io.ReadCloser
	a     *Attempt
	first []byte
	err   error // to be returned after them

	opening *dialect.Opening // nil: nothing is held but the first piece
	toEnd   bool             // its length was announced, and it is no stream
	counted atomic.Int64     // bytes of first, in Transport.held
}

// awaitBody waits for as much of the body as must be there before the client may see anything of
// it: the first byte, or what is held. It returns what has arrived, which the body still has; whole:
// that is all. After an upgrade there is no body.
func (a *Attempt) awaitBody(response *http.Response) (first []byte, whole bool, err error) {
	c := a.call
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil, false, nil
	}
	c.findEvents(response)
	b := &held{ReadCloser: response.Body, a: a, first: make([]byte, 0, firstHeld)}
	kind := dialect.ContentType(response.Header)
	if c.repeatable() && response.StatusCode < http.StatusBadRequest && readable(response.Header) {
		b.opening, b.toEnd = c.parsed.Opening(kind), !dialect.IsStream(kind) && response.ContentLength >= 0
	}
	begun := b.fill()
	n := len(b.first)
	switch {
	case b.err != io.EOF:
		if !begun {
			err = b.err
		}
	case n == 0 && (c.Request.Stream || b.opening != nil) && response.StatusCode == http.StatusOK, // nothing is no response
		b.opening != nil && (dialect.IsStream(kind) || closes(response)) && b.opening.Ends():
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		b.Close()
		return nil, false, err
	}
	response.Body = b
	return b.first, n == 0, nil
}

// findEvents waits for the beginning of a response that should be a stream and is said to be something
// else, as by proxies that give all responses one type, and mends that. Otherwise the client would see
// usage that it has not asked for.
func (c *Call) findEvents(response *http.Response) {
	if !c.parsed.HasEvents() || response.StatusCode != http.StatusOK ||
		!readable(response.Header) || dialect.IsStream(dialect.ContentType(response.Header)) {
		return
	}
	r := bufio.NewReaderSize(response.Body, firstHeld)
	start, _ := r.Peek(1)
	if c := string(start); c == "d" || c == "e" { // an object may stop after its first byte for long
		start, _ = r.Peek(len("data:"))
	}
	if string(start) == "data:" || string(start) == "event" || string(start) == ":" {
		response.Header.Set("Content-Type", dialect.EventStream)
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{r, response.Body}
}

// closes reports whether a body ends with its connection, as it does when its server dies.
func closes(response *http.Response) bool {
	return response.ProtoMajor == 1 && response.ContentLength < 0 && !slices.Contains(response.TransferEncoding, "chunked")
}

// fill reads for as long as the client should see nothing, and reports whether it may now.
func (b *held) fill() bool {
	var since time.Time // of the first piece
	for {
		n, err := b.ReadCloser.Read(b.first[len(b.first):cap(b.first)])
		piece := b.first[len(b.first):][:n]
		b.first, b.err = b.first[:len(b.first)+n], err
		decided := n > 0
		if n > 0 && b.opening != nil {
			b.a.begins(b.opening)
			now := time.Now()
			if since.IsZero() {
				since = now
			}
			decided = b.opening.Feed(piece) && !b.toEnd || now.Sub(since) > holdFor && b.opening.Idles()
		}
		switch {
		case decided || err != nil:
			return decided
		case len(b.first) == cap(b.first) && !b.grow():
			return true
		}
	}
}

// begins says that a piece of a response has come that is still held: its waits are as long as those
// for what follows.
func (a *Attempt) begins(o *dialect.Opening) {
	c := a.call
	c.mu.Lock()
	defer c.unlock()
	a.arrives()
	a.wait.pause()
	a.wait.resume()
	a.limit(o.IsStream())
}

// grow makes room for more, unless that is too much to be held.
func (b *held) grow() bool {
	n, all := cap(b.first), &b.a.call.t.held
	if 2*n > maxHeld {
		return false
	}
	if all.Add(int64(n)) > maxHeldInAll {
		all.Add(int64(-n))
		return false
	}
	b.counted.Add(int64(n))
	b.first = append(make([]byte, 0, 2*n), b.first...)
	return true
}

// forget lets go of what was held.
func (b *held) forget() { b.a.call.t.held.Add(-b.counted.Swap(0)) }

func (b *held) Close() error {
	b.forget()
	return b.ReadCloser.Close()
}

func (b *held) Read(p []byte) (int, error) {
	if len(b.first) > 0 {
		n := copy(p, b.first)
		if b.first = b.first[n:]; len(b.first) > 0 {
			return n, nil
		}
		b.first = nil
		b.forget()
		return n, b.err // together, for readers that stop when they have what they need
	}
	if b.err != nil {
		return 0, b.err
	}
	c := b.a.call
	c.mu.Lock()
	b.a.wait.resume()
	c.unlock()
	n, err := b.ReadCloser.Read(p)
	c.mu.Lock()
	b.a.wait.pause()
	c.unlock()
	return n, err
}
