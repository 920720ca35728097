package extproctest

import (
	"io"
	"net/http"
	"sync"
)

// tunnel is a connection that has left HTTP, through the picker: Envoy treats the data
// of each direction as the body of request and response.
type tunnel struct {
	x        *exchange
	upstream io.ReadWriteCloser
	*io.PipeReader
	sending sync.Mutex // locked to send on the stream, from either direction
}

// passUpgraded passes both directions through the picker.
func (x *exchange) passUpgraded(response *http.Response) error {
	upstream, ok := response.Body.(io.ReadWriteCloser)
	if !ok {
		response.Body.Close()
		return broken("there is no connection under a response of %d", response.StatusCode)
	}
	out, in := io.Pipe()
	t := &tunnel{x: x, upstream: upstream, PipeReader: out}
	response.Body = t
	go t.toPicker()
	go t.fromPicker(in)
	return nil
}

// toPicker sends the server's data.
func (t *tunnel) toPicker() {
	piece := make([]byte, 16<<10)
	for {
		n, err := t.upstream.Read(piece)
		t.sending.Lock()
		failed := t.x.stream.Send(responseBody(piece[:n], err != nil))
		t.sending.Unlock()
		if err != nil || failed != nil {
			return
		}
	}
}

// fromPicker passes on what the picker returns of both directions.
func (t *tunnel) fromPicker(in *io.PipeWriter) {
	defer t.upstream.Close()
	for {
		m, err := t.x.recv()
		if err != nil {
			in.CloseWithError(err)
			return
		}
		to, common := io.Writer(in), m.GetResponseBody().GetResponse()
		if m.GetRequestBody() != nil {
			to, common = t.upstream, m.GetRequestBody().GetResponse()
		}
		piece, err := streamedPiece(common, m)
		if err == nil {
			_, err = to.Write(piece.GetBody())
		}
		switch {
		case err != nil:
			in.CloseWithError(err)
			return
		case piece.GetEndOfStream():
			in.Close()
			return
		}
	}
}

// Write sends the client's data.
func (t *tunnel) Write(p []byte) (int, error) {
	t.sending.Lock()
	defer t.sending.Unlock()
	if err := t.x.stream.Send(requestBody(p, false)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close ends both directions.
func (t *tunnel) Close() error {
	t.x.cancel()
	t.upstream.Close()
	return t.PipeReader.CloseWithError(errClosed)
}
