package transport

import (
	"io"
	"net/http"
	"sync"
)

// payload is the body of a request as it is sent, perhaps several times. net/http
// keeps a request until its response has ended, which may take minutes; the bytes
// are released once they are sent and no other attempt will need them. A body
// that is never closed only prevents their reuse.
type payload struct {
	size int64

	mu       sync.Mutex
	body     []byte // backing of the pieces; recycled with them
	pieces   [][]byte
	reading  int // bodies not read to the end or closed
	released bool
}

func newPayload(body []byte, pieces [][]byte) *payload {
	p := &payload{body: body}
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
	if p.released {
		return nil, http.ErrBodyReadAfterClose
	}
	p.reading++
	return &payloadReader{p: p}, nil
}

// release says that the body won't be opened again, and that nothing else refers
// to its bytes.
func (p *payload) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
	p.letGo()
}

func (p *payload) letGo() {
	if p.released && p.reading == 0 {
		recycle(p.body)
		p.pieces, p.body = nil, nil
	}
}

type payloadReader struct {
	p         *payload
	piece, at int
	done      bool
	writing   bool // directly from the pieces, which must stay
	closed    bool // while writing
}

func (r *payloadReader) Read(b []byte) (n int, err error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.done {
		return 0, io.EOF
	}
	for r.piece < len(r.p.pieces) && n < len(b) {
		piece := r.p.pieces[r.piece]
		k := copy(b[n:], piece[r.at:])
		n += k
		if r.at += k; r.at == len(piece) {
			r.piece, r.at = r.piece+1, 0
		}
	}
	if r.piece == len(r.p.pieces) { // nobody may read on to the end, so release now
		r.end()
	}
	return n, nil
}

// writeTo writes up to most of the remaining bytes, without copying them.
func (r *payloadReader) writeTo(w io.Writer, most int64) (n int64, err error) {
	for err == nil && most > n {
		next := r.next(most - n)
		if next == nil {
			break
		}
		var k int
		k, err = w.Write(next)
		n += int64(k)
		r.wrote(k)
	}
	return n, err
}

// next returns up to most of the next bytes, or nil at the end. They remain valid
// until wrote is called.
func (r *payloadReader) next(most int64) []byte {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.done {
		return nil
	}
	r.writing = true
	rest := r.p.pieces[r.piece][r.at:]
	return rest[:min(int64(len(rest)), most)]
}

func (r *payloadReader) wrote(n int) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.writing = false
	if r.at += n; r.at == len(r.p.pieces[r.piece]) {
		r.piece, r.at = r.piece+1, 0
	}
	if r.closed || r.piece == len(r.p.pieces) {
		r.end()
	}
}

func (r *payloadReader) Close() error {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.closed = true; !r.done && !r.writing {
		r.end()
	}
	return nil
}

// end releases the bytes; r.p.mu is held.
func (r *payloadReader) end() {
	r.done = true
	r.p.reading--
	r.p.letGo()
}
