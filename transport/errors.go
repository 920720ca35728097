package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/host"
)

// The kinds of error that have no type, for errors.Is.
var (
	// ErrRead: the client's body could not be read to its end. The error matches the cause,
	// too.
	ErrRead = errors.New("transport: reading the request body")
	// ErrTimeout: the endpoint took longer than Config.FirstByteTimeout,
	// StallTimeout or ResponseTimeout.
	ErrTimeout = errors.New("transport: the endpoint did not answer in time")
	// ErrUnknownPath: the request belongs to none of the APIs of docs/apis.md, and
	// Config.Pass does not have it; or its path has a part that not every server reads in the
	// same way: a control character, an escaped slash, dot or percent, one of ;\?#, or an empty
	// segment, "." or "..".
	ErrUnknownPath = dialect.ErrUnknownPath
	// ErrCoding: the body is in a Content-Encoding that is not read here.
	ErrCoding = errors.New("transport: the request body has a content coding that is not supported")
	// ErrAddress: the address of an endpoint is neither a host nor a URL.
	ErrAddress = host.ErrAddress
)

// BodyError says by how much a request body was too large: longer than
// Config.MaxBodyBytes, or packed too tightly.
type BodyError struct {
	Limit  int64 // bytes
	Length int64 // bytes, as announced by the client; negative: unknown
}

func (e *BodyError) Error() string {
	if e.Length < 0 {
		return fmt.Sprintf("transport: request body is longer than %d bytes", e.Limit)
	}
	return fmt.Sprintf("transport: request body of %d bytes is longer than %d", e.Length, e.Limit)
}

// UpstreamError says which endpoint was the last to fail a request, and after
// how many attempts. It matches the cause.
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

// clientClosedRequest is the status of a request whose client went away. It only appears
// in logs; nginx introduced it.
const clientClosedRequest = 499

// StatusOf returns the HTTP status that tells a client of an error of
// [Transport.RoundTrip]:
//
//	413  the body is longer than Config.MaxBodyBytes, or the prompt than the queue
//	408  the body did not arrive within the host server's time limit
//	400  the body broke off, or the request is not valid, or its prompt too long for any endpoint
//	404  no endpoint serves the model, though there are endpoints; or [ErrUnknownPath]
//	415  [ErrCoding]
//	429  an Admitter refused the request, or the queue is full
//	503  all endpoints that serve the model are drained, excluded or down, there are
//	     none at all, or the request has waited in the queue as long as it may
//	504  the endpoint did not answer in time
//	499  the client went away
//	500  Config.Describe or one of Config.Decoders panicked
//	502  everything else: the endpoint broke off before it answered
func StatusOf(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, new(*BodyError)), errors.As(err, new(*http.MaxBytesError)), errors.Is(err, queue.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, new(*endpick.RejectedError)), errors.Is(err, queue.ErrFull), errors.Is(err, queue.ErrShed):
		return http.StatusTooManyRequests
	case unknownModel(err), errors.Is(err, ErrUnknownPath):
		return http.StatusNotFound
	case errors.As(err, new(*endpick.NoEndpointError)), errors.Is(err, queue.ErrTimeout):
		return http.StatusServiceUnavailable
	case errors.Is(err, ErrRead) && errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case errors.Is(err, context.Canceled):
		return clientClosedRequest
	case errors.Is(err, ErrCoding):
		return http.StatusUnsupportedMediaType
	case errors.Is(err, ErrRead), errors.As(err, new(*endpick.RequestError)), errors.As(err, new(*endpick.ContextError)):
		return http.StatusBadRequest
	case errors.As(err, new(*endpick.PanicError)):
		return http.StatusInternalServerError
	case host.IsDial(err):
		return http.StatusServiceUnavailable
	}
	return http.StatusBadGateway
}

// unknownModel reports whether err means that nobody serves the model. If there
// are no endpoints at all, the model is not at fault.
func unknownModel(err error) bool {
	var none *endpick.NoEndpointError
	return errors.As(err, &none) && none.Model != "" && none.Serving == 0 && none.Endpoints > 0
}

// ErrorHandler answers with the [ErrorResponse]. Use it as
// httputil.ReverseProxy.ErrorHandler.
func ErrorHandler(w http.ResponseWriter, in *http.Request, err error) {
	path := ""
	if in != nil && in.URL != nil {
		path = in.URL.Path
	}
	status, header, body := ErrorResponse(path, err)
	h := w.Header()
	h.Del("Content-Encoding")
	maps.Copy(h, header)
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// ErrorBody returns an error object in the format of the API at this path, for errors of the
// host's own. An empty code stands for the status.
func ErrorBody(path string, status int, code, message string) []byte {
	return dialect.Problem{Status: status, Message: message, Code: code}.Body(path)
}

// ErrorResponse returns what to answer to a client after an error of
// [Transport.RoundTrip]: the status of [StatusOf], and an error object in the
// format of the API at the path of the request. It is for hosts that write
// responses themselves. The client does not learn what went wrong inside the fleet;
// log err for that.
//
//	status  OpenAI's type, and code              Anthropic's type
//	400     invalid_request_error, context_length_exceeded
//	                                             invalid_request_error
//	408     invalid_request_error                invalid_request_error
//	404     invalid_request_error, model_not_found or not_found
//	                                             not_found_error
//	413     invalid_request_error                request_too_large
//	415     invalid_request_error                invalid_request_error
//	429     rate_limit_error, rate_limit_exceeded
//	                                             rate_limit_error
//	503     api_error                            overloaded_error
//	504     api_error                            timeout_error
//	other   api_error                            api_error
//
// The code is the status unless the table says otherwise. All APIs except
// Anthropic's and Ollama's use OpenAI's format.
//
// If the queue has dropped the request, Retry-After is the time that it has
// waited, from a second to a minute; if an [endpick.Admitter] has refused it, what
// its reason's Refusal says, as for the time until a bucket holds enough. If no server is
// available, it is two seconds, the usual time between two health checks: SDKs try again
// sooner if nothing is said, and give up after one or two seconds.
func ErrorResponse(path string, err error) (status int, header http.Header, body []byte) {
	p := problemFor(err)
	status, body = p.Status, p.Body(path)
	header = http.Header{"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(body))}}
	_, wait := refused(err)
	if wait == 0 && status == http.StatusServiceUnavailable {
		wait = 2 * time.Second // until the next check: the default of health.Config.Interval
	}
	if wait > 0 {
		header.Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	return status, header, body
}

// problemFor is what a client learns of an error.
func problemFor(err error) dialect.Problem {
	status := StatusOf(err)
	p := dialect.Problem{Status: status, Message: cmp.Or(messages[status], http.StatusText(status))}
	var bad *endpick.RequestError
	var none *endpick.NoEndpointError
	var long *BodyError
	var short *endpick.ContextError
	switch {
	case errors.As(err, &short):
		p.Code = "context_length_exceeded"
		p.Message = fmt.Sprintf("the prompt has about %d tokens, and the longest context of a server for this model is %d", short.InputTokens, short.MaxContext)
	case status == http.StatusBadRequest && errors.As(err, &bad):
		p.Param, p.Message = bad.Field, bad.Field+" "+bad.Reason
	case status == http.StatusTooManyRequests:
		reason, _ := refused(err)
		p.Message, p.Code = cmp.Or(reason, p.Message), "rate_limit_exceeded"
	case errors.As(err, &long):
		p.Message = fmt.Sprintf("the request body is longer than %d bytes", long.Limit)
	case status == http.StatusNotFound && errors.As(err, &none):
		p.Param, p.Message, p.Code = "model", "the model `"+none.Model+"` does not exist", "model_not_found"
		if len(none.Others) > 0 {
			p.Message += "; there are `" + strings.Join(none.Others, "`, `") + "`"
		}
	case status == http.StatusNotFound:
		p.Code = "not_found"
	case waits(err):
		p.Message = "all servers for this model are busy"
	case errors.Is(err, queue.ErrTimeout):
		p.Message = "no server had room for the request in time"
	}
	return p
}

// refused says to a client why it gets 429, and when to try again; 0: not known, or never. An
// Admitter's reason without a Refusal is passed on as it is.
func refused(err error) (message string, retryAfter time.Duration) {
	var reason interface {
		Refusal() (string, time.Duration)
	}
	var rejected *endpick.RejectedError
	var dropped *queue.Error
	switch {
	case errors.As(err, &reason):
		return reason.Refusal()
	case errors.As(err, &rejected):
		return rejected.Reason.Error(), 0
	case errors.As(err, &dropped) && !errors.Is(err, queue.ErrTooLarge):
		retryAfter = min(max(dropped.Waited, time.Second), time.Minute)
	}
	return "all servers are busy, and too many requests wait already", retryAfter
}

var messages = map[int]string{
	http.StatusBadRequest:            "the request body broke off, or is not in its Content-Encoding",
	http.StatusRequestEntityTooLarge: "the request is too long",
	http.StatusRequestTimeout:        "the request body did not come in time",
	http.StatusNotFound:              "there is nothing here, or not for this method",
	http.StatusUnsupportedMediaType:  "the body has a content coding that is not supported: send it in gzip, or as it is",
	http.StatusServiceUnavailable:    "no server is available",
	http.StatusBadGateway:            "the model server failed before it answered",
	http.StatusGatewayTimeout:        "the model server did not answer in time",
	clientClosedRequest:              "the client closed the request",
}
