package transport

import (
	"io"
	"net/http"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
)

// body passes a response on while it is read, and feeds it to its attempt.
type body struct {
	a    *Attempt
	src  io.Reader
	from io.Closer
	// owns says that the call ends with the response, and the connection with the call.
	owns bool

	// closed says that nobody reads any more; Call.mu guards it, and a and from against Close.
	closed bool

	out []byte // what is passed on of a response that the meter filters
	at  int    // in out
	err error  // to be returned after it
}

// Reader returns a reader of the response's body that feeds it as it is read, for
// programs that have a reader, as in httputil.ReverseProxy.ModifyResponse. Call Header
// before. The attempt ends at the end of the body; a body that breaks off has failed.
// Closing it only closes body: Call.Close is still necessary.
func (a *Attempt) Reader(from io.ReadCloser) io.ReadCloser { return &body{a: a, src: from, from: from} }

func (b *body) Read(p []byte) (int, error) {
	if !b.a.filters {
		n, err := b.src.Read(p)
		b.a.Feed(p[:0], p[:n])
		if err != nil {
			_, err = b.end(nil, err)
		}
		return n, err
	}
	for len(p) > 0 && b.at == len(b.out) {
		if b.err != nil {
			return 0, b.err
		}
		n, err := b.src.Read(p)
		b.out, b.at = b.a.Feed(b.out[:0], p[:n]), 0
		if (err == nil || err == io.EOF) && b.a.meter.Faulty() {
			err = errInStream
		}
		if err != nil {
			b.out, b.err = b.end(b.out, err)
		}
	}
	n := copy(p, b.out[b.at:])
	b.at += n
	return n, nil
}

// end ends the attempt, and appends to dst what was held back, or that it has failed, unless the
// response goes on. The error is what to return after that.
func (b *body) end(dst []byte, err error) ([]byte, error) {
	a := b.a
	var failure error
	if err == io.EOF {
		dst, failure = a.ended(dst)
	} else if failure = a.Fail(err); b.owns && a.ctx.Err() != nil {
		failure = err // the client has left
	}
	if b.owns {
		a.release()
	}
	if a.unended {
		if b.resume() {
			return dst, nil
		}
		a.call.answer(a)
	}
	switch {
	case failure == nil:
		return dst, err
	case err == errInStream: // of the engine, which ends the response
		failure = io.EOF
	}
	return a.broken(dst), failure
}

// Close ends the attempt as canceled, unless the response was complete.
func (b *body) Close() error {
	if !b.owns {
		return b.from.Close()
	}
	c := b.a.call
	c.mu.Lock()
	b.closed = true
	from, a := b.from, b.a
	if a.unended {
		a = c.latest // at the rest
	}
	a.leave()
	a.wait.stop()
	a.wait.cancel()
	c.unlock()
	return from.Close()
}

// release lets go of what a Transport has used for the attempt.
func (a *Attempt) release() {
	a.call.mu.Lock()
	defer a.call.unlock()
	a.wait.stop()
	a.wait.cancel()
}

// pass makes a response one for the client, after Header; its body is decoded by open, unless that
// is nil.
func (a *Attempt) pass(response *http.Response, open func(io.Reader) (io.Reader, error)) {
	config := a.call.t.config
	a.call.mu.Lock()
	defer a.call.unlock()
	if conn, ok := response.Body.(io.ReadWriteCloser); ok && response.StatusCode == http.StatusSwitchingProtocols {
		a.wait.conn = conn
		a.wait.resume()
		a.wait.set(config.UpgradeTimeout, false)
		response.Body = &upgraded{conn, a}
		return
	}
	a.limit(dialect.IsStream(dialect.ContentType(response.Header)))
	b := &body{a: a, src: response.Body, from: response.Body, owns: true}
	if open != nil {
		b.src = &decoding{src: b.src, open: open}
	}
	response.Body = b
}

// limit sets how long to wait for what follows the first piece.
func (a *Attempt) limit(stream bool) {
	if config := &a.call.d.config; stream {
		a.wait.set(max(config.StallTimeout, config.FirstByteTimeout), false)
	} else {
		a.wait.set(config.ResponseTimeout, true)
	}
}

// upgraded is a connection after an upgrade, such as a WebSocket.
type upgraded struct {
	io.ReadWriteCloser
	a *Attempt
}

func (u *upgraded) Read(p []byte) (int, error) {
	n, err := u.ReadWriteCloser.Read(p)
	u.moved()
	return n, err
}

func (u *upgraded) Write(p []byte) (int, error) {
	n, err := u.ReadWriteCloser.Write(p)
	u.moved()
	return n, err
}

func (u *upgraded) moved() {
	u.a.call.mu.Lock()
	defer u.a.call.unlock()
	u.a.wait.resume()
}

// CloseWrite passes on that the client has closed its direction: the endpoint may
// still answer.
func (u *upgraded) CloseWrite() error {
	half, ok := u.ReadWriteCloser.(interface{ CloseWrite() error })
	if !ok {
		return http.ErrNotSupported
	}
	return half.CloseWrite()
}

func (u *upgraded) Close() error {
	u.a.call.mu.Lock()
	u.a.end(endpick.Completed)
	u.a.call.unlock()
	err := u.ReadWriteCloser.Close()
	u.a.release()
	return err
}
