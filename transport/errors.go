package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
)

// The kinds of error, for errors.Is.
var (
	// ErrBodyTooLarge: the body is longer than Config.MaxBodyBytes.
	ErrBodyTooLarge = errors.New("transport: request body too large")
	// ErrBody: the client's body could not be read to its end.
	ErrBody = errors.New("transport: request body broke off")
	// ErrTimeout: the endpoint took longer than Config.FirstByteTimeout,
	// StallTimeout or ResponseTimeout.
	ErrTimeout = errors.New("transport: the endpoint did not answer in time")
	// ErrAddress: the address of an endpoint is no host and no URL.
	ErrAddress = errors.New("transport: bad endpoint address")
)

// BodyError says by how much a request was too large. It matches
// ErrBodyTooLarge.
type BodyError struct {
	Limit  int64
	Length int64 // as the client gave it; below 0: unknown
}

func (e *BodyError) Error() string {
	if e.Length < 0 {
		return fmt.Sprintf("transport: request body is longer than %d bytes", e.Limit)
	}
	return fmt.Sprintf("transport: request body of %d bytes is longer than %d", e.Length, e.Limit)
}

// Unwrap returns ErrBodyTooLarge.
func (e *BodyError) Unwrap() error { return ErrBodyTooLarge }

// ReadError carries what went wrong when the client's body was read. It matches
// ErrBody and the cause.
type ReadError struct{ Err error }

func (e *ReadError) Error() string { return "transport: reading the request body: " + e.Err.Error() }

// Unwrap returns ErrBody and the cause.
func (e *ReadError) Unwrap() []error { return []error{ErrBody, e.Err} }

// UpstreamError says which endpoint failed a request last, after how many
// attempts. It matches the cause.
type UpstreamError struct {
	Endpoint string // its ID
	Attempts int
	Err      error
}

func (e *UpstreamError) Error() string {
	return fmt.Sprintf("transport: endpoint %q (attempt %d): %v", e.Endpoint, e.Attempts, e.Err)
}

// Unwrap returns the cause.
func (e *UpstreamError) Unwrap() error { return e.Err }

// StatusClientClosedRequest is what [StatusOf] gives for a request whose client
// went away. Nobody gets to see it but logs; nginx has coined it.
const StatusClientClosedRequest = 499

// StatusOf returns the HTTP status that tells a client of an error of
// [Transport.RoundTrip]:
//
//	413  the body is longer than Config.MaxBodyBytes, or the prompt than the queue
//	400  the body broke off, or the request is not valid
//	404  no endpoint serves the model, though there are endpoints
//	429  an Admitter refused the request, or the queue is full
//	503  all endpoints that serve the model are drained or excluded, there are
//	     none at all, or the request has waited in the queue as long as it may
//	504  the endpoint did not answer in time
//	499  the client went away
//	500  Config.Describe panicked
//	502  everything else: the endpoint could not be reached or broke off
func StatusOf(err error) int {
	var tooLarge *http.MaxBytesError
	var panicked *endpick.PanicError
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, ErrBodyTooLarge), errors.As(err, &tooLarge), errors.Is(err, queue.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, endpick.ErrRejected), errors.Is(err, queue.ErrFull), errors.Is(err, queue.ErrShed):
		return http.StatusTooManyRequests
	case unknownModel(err):
		return http.StatusNotFound
	case errors.Is(err, endpick.ErrNoEndpoints), errors.Is(err, queue.ErrTimeout):
		return http.StatusServiceUnavailable
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case errors.Is(err, context.Canceled):
		return StatusClientClosedRequest
	case errors.Is(err, ErrBody), errors.Is(err, endpick.ErrBadRequest):
		return http.StatusBadRequest
	case errors.As(err, &panicked):
		return http.StatusInternalServerError
	}
	return http.StatusBadGateway
}

// unknownModel reports whether err says that nobody serves the model. Where there
// are no endpoints at all, nothing is said of the model.
func unknownModel(err error) bool {
	var none *endpick.NoEndpointsError
	return errors.As(err, &none) && none.Model != "" && none.Serving == 0 && none.Endpoints > 0
}

// ErrorHandler answers with the status of [StatusOf] and an error object as
// OpenAI's API has it. It suits httputil.ReverseProxy.ErrorHandler. What went
// wrong inside the fleet is not told to the client; log err for that.
//
// A request that the queue has dropped gets a Retry-After of as long as it has
// waited, from a second to a minute, and one that an queue.TokenBucket has refused
// of as long as the bucket needs.
func ErrorHandler(w http.ResponseWriter, _ *http.Request, err error) {
	status := StatusOf(err)
	kind, message, code := "api_error", http.StatusText(status), strconv.Itoa(status)
	var param *string
	switch status {
	case http.StatusRequestEntityTooLarge, http.StatusBadRequest:
		kind, message = "invalid_request_error", err.Error()
		var bad *endpick.RequestError
		if errors.As(err, &bad) {
			param, message = &bad.Field, bad.Field+" "+bad.Reason
		}
	case http.StatusNotFound:
		kind, message, code = "invalid_request_error", "the model does not exist", "model_not_found"
		var none *endpick.NoEndpointsError
		if field := "model"; errors.As(err, &none) {
			param, message = &field, "the model `"+none.Model+"` does not exist"
		}
	case http.StatusTooManyRequests:
		kind, message = "rate_limit_error", err.Error()
	case http.StatusServiceUnavailable:
		message = "no server is available for this model"
		if errors.Is(err, queue.ErrTimeout) {
			message = "no server had room for the request in time"
		}
	case http.StatusBadGateway:
		message = "the model server failed before it answered"
	case http.StatusGatewayTimeout:
		message = "the model server did not answer in time"
	case StatusClientClosedRequest:
		message = "the client closed the request"
	}
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	body, _ := json.Marshal(map[string]object{"error": {message, kind, param, code}})
	h := w.Header()
	if wait := retryAfter(err); wait > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	h.Del("Content-Encoding")
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// retryAfter is when a request may fare better; 0: not known, or never.
func retryAfter(err error) time.Duration {
	var dropped *queue.Error
	var limited *queue.RateLimitError
	switch {
	case errors.As(err, &limited):
		return limited.RetryAfter
	case errors.Is(err, queue.ErrTooLarge) || !errors.As(err, &dropped):
		return 0
	}
	return min(max(dropped.Waited, time.Second), time.Minute)
}
