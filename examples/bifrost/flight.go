package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/endpick/endpick/transport"
	bifrost "github.com/maximhq/bifrost/core"
	"github.com/maximhq/bifrost/core/schemas"
)

// flight is a request on its way through Bifrost, over all attempts for one model.
// Bifrost calls hooks one after the other, but from several goroutines.
//
// Its lease is always closed: by the last hook or, if Bifrost calls none because nobody
// waits any more, by the end of the context.
type flight struct {
	model  string
	path   string // of the API
	stream bool

	mu      sync.Mutex
	call    *transport.Call
	attempt *transport.Attempt // nil: none is open
	served  bool               // the response has begun
	landed  bool               // there will be no further attempt
	// over is the error of a request that has failed for good.
	over *schemas.BifrostError
	out  []byte // output of Feed, which is discarded, because Bifrost passes on its own
}

type flightKey struct{}

// flightOf is the flight of a context, or nil.
func flightOf(ctx *schemas.BifrostContext) *flight {
	f, _ := ctx.Value(flightKey{}).(*flight)
	return f
}

var errLanded = errors.New("adapter: the request is over")

// continues reports whether an attempt for this model belongs to the flight.
func (f *flight) continues(model string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.model == model && f.attempt == nil && (!f.landed || f.over != nil) {
		return true
	}
	f.close()
	return false
}

// refusal is the error for an attempt that should not be made, or nil. Bifrost
// modifies it.
func (f *flight) refusal() *schemas.BifrostError {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over == nil {
		return nil
	}
	e := *f.over
	if e.Error != nil {
		field := *e.Error
		e.Error = &field
	}
	return &e
}

// refuse ends the flight with an error of the dispatcher. The caller holds the lock, or
// nobody else knows the flight.
func (f *flight) refuse(err error) {
	status, _, _ := transport.ErrorResponse(f.path, err)
	f.over = &schemas.BifrostError{StatusCode: &status, Error: &schemas.ErrorField{Message: err.Error(), Error: err}}
	f.close()
}

// route opens an attempt at a server other than those.
func (f *flight) route(ctx context.Context, without []string) (*transport.Attempt, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.landed {
		return nil, errLanded
	}
	if f.attempt != nil { // Bifrost has dropped the key, so nothing more will come of the attempt
		_ = f.attempt.Header(http.StatusTooManyRequests, nil, nil)
		f.attempt = nil
	}
	f.call.Request.Exclude = append(f.call.Request.Exclude, without...)
	attempt, err := f.call.Route(ctx)
	if err != nil {
		f.refuse(err)
		return nil, err
	}
	f.attempt = attempt
	return attempt, nil
}

func (f *flight) land() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.close()
}

func (f *flight) close() {
	f.attempt, f.landed, f.out = nil, true, nil
	if f.call != nil {
		f.call.Close()
	}
}

// heard handles the arguments of a hook after the attempt.
func (f *flight) heard(ctx *schemas.BifrostContext, resp *schemas.BifrostResponse, failure *schemas.BifrostError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.attempt == nil:
		// Not sent with a key of ours; or the second hook for one failure.
		if failure != nil && failure.StatusCode == nil && f.over != nil && failure.Error != nil && failure.Error.Message == f.over.Error.Message {
			failure.StatusCode = f.over.StatusCode
		}
	case failure != nil:
		f.failed(failure)
	case resp != nil:
		f.feed(resp, !f.stream || bifrost.IsFinalChunk(ctx))
	}
}

// feed meters a response, or a chunk of one.
func (f *flight) feed(resp *schemas.BifrostResponse, last bool) {
	if !f.served {
		f.served = true
		_ = f.attempt.Header(http.StatusOK, http.Header{"Content-Type": {f.contentType()}}, nil)
	}
	data, whole := said(resp)
	if f.stream && data != nil {
		data = append(append([]byte("data: "), data...), "\n\n"...)
	}
	f.out = f.attempt.Feed(f.out[:0], data)
	if !last {
		return
	}
	if f.stream && whole { // Bifrost has swallowed the end
		f.out = f.attempt.Feed(f.out[:0], []byte("data: [DONE]\n\n"))
	}
	f.out, _ = f.attempt.End(f.out[:0]) // if it was cut off, Bifrost has not noticed, but health does
	f.close()
}

func (f *flight) contentType() string {
	if f.stream {
		return "text/event-stream"
	}
	return "application/json"
}

// failed records that an attempt has failed, and decides whether to try another
// server.
func (f *flight) failed(failure *schemas.BifrostError) {
	a := f.attempt
	f.attempt = nil
	switch {
	case f.served || unanswered(failure):
		_ = a.Fail(cause(failure))
	case failure.IsBifrostError:
		// Bifrost's own error: the server is not to blame, and another would not help.
	case failure.StatusCode != nil && *failure.StatusCode >= http.StatusBadRequest:
		_ = a.Header(*failure.StatusCode, nil, nil)
	case f.stream: // it began with an error
		_ = a.Header(http.StatusOK, http.Header{"Content-Type": {f.contentType()}}, []byte("data: {\"error\":{}}\n\n"))
	}
	if !a.Again() {
		f.over = failure
		f.close()
	}
}

// unanswered reports whether the server sent no response, or something else. It goes by
// Bifrost's texts, because nothing else distinguishes these failures.
func unanswered(failure *schemas.BifrostError) bool {
	if failure.Error == nil {
		return false
	}
	switch m := failure.Error.Message; m {
	case schemas.ErrProviderDoRequest, schemas.ErrProviderNetworkError, schemas.ErrProviderRequestTimedOut,
		schemas.ErrProviderResponseDecode, schemas.ErrProviderResponseUnmarshal, schemas.ErrProviderResponseEmpty,
		schemas.ErrProviderResponseHTML, schemas.ErrProviderResponseDecompress:
		return true
	default:
		return strings.HasPrefix(m, "Error reading stream: ")
	}
}

// cause is the error wrapped by Bifrost's.
func cause(failure *schemas.BifrostError) error {
	switch {
	case failure.Error == nil:
		return errors.New("bifrost: failed")
	case failure.Error.Error != nil:
		return failure.Error.Error
	}
	return errors.New(failure.Error.Message)
}
