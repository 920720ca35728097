package transport

import (
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
)

// payload is the body of a request as it is sent, perhaps several times. net/http keeps a
// request until its response has ended, which may take minutes, so the payload lets go of
// its bytes once no other attempt will need them, and each reader once it has read them.
type payload struct {
	size int64

	mu     sync.Mutex
	pieces net.Buffers // nil: released, or empty
}

func newPayload(pieces [][]byte) *payload {
	p := new(payload)
	for _, piece := range pieces {
		if len(piece) > 0 {
			p.pieces = append(p.pieces, piece)
			p.size += int64(len(piece))
		}
	}
	return p
}

// open returns a new reader of the body; it suits http.Request.GetBody.
func (p *payload) open() (io.ReadCloser, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pieces == nil && p.size > 0 {
		return nil, http.ErrBodyReadAfterClose
	}
	return &payloadReader{left: slices.Clone(p.pieces)}, nil
}

// release says that the body won't be opened again.
func (p *payload) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pieces = nil
}

// payloadReader reads a payload. net/http may close it while it is read.
type payloadReader struct {
	mu   sync.Mutex
	left net.Buffers // it lets go of what it has read
}

func (r *payloadReader) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left.Read(b)
}

func (r *payloadReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = nil
	return nil
}
