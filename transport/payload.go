package transport

import (
	"io"
	"net/http"
	"sync"
)

// payload is the body of a request as it is sent, perhaps several times. The
// HTTP client below keeps a request until its response has ended, which may take
// minutes; the bytes are let go once they are sent and no other attempt will
// need them.
type payload struct {
	mu       sync.Mutex
	bytes    []byte
	reading  int // bodies that are not read to their end or closed
	released bool
}

// open returns the body anew; it suits http.Request.GetBody.
func (p *payload) open() (io.ReadCloser, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.released {
		return nil, http.ErrBodyReadAfterClose
	}
	p.reading++
	return &payloadReader{p: p}, nil
}

// release says that the body won't be opened again.
func (p *payload) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
	p.letGo()
}

func (p *payload) letGo() {
	if p.released && p.reading == 0 {
		p.bytes = nil
	}
}

type payloadReader struct {
	p    *payload
	at   int
	done bool
}

func (r *payloadReader) Read(b []byte) (int, error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.done {
		return 0, io.EOF
	}
	n := copy(b, r.p.bytes[r.at:])
	if r.at += n; r.at == len(r.p.bytes) {
		r.end()
	}
	return n, nil
}

func (r *payloadReader) Close() error {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if !r.done {
		r.end()
	}
	return nil
}

// end lets the bytes go; r.p.mu is held.
func (r *payloadReader) end() {
	r.done = true
	r.p.reading--
	r.p.letGo()
}
