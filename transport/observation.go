package transport

import (
	"net/http"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/health"
	"github.com/endpick/endpick/transport/recording"
)

// Observation says how one request went; Config.Observe gets it. Metrics and traces
// (transport/prometheus, transport/otel) and the debug page of examples/gateway are
// made from it. It never changes, so it may be kept, at the cost of its memory.
type Observation struct {
	// Request is the record of the request, without its blocks. Its times count from its arrival.
	// Its Status says how it ended, for logs, metrics and pages alike: refused if the client got a
	// status from 400 to 499, whoever gave it, failed if it got one from 500 on or a response that
	// broke off, canceled if it left, or a deadline of its context has passed.
	recording.Request
	// In is the request as the transport got it; its context identifies it. The
	// body has been read.
	In *http.Request
	// Tenant is the tenant, as Config.Describe has set it. Empty: none.
	Tenant string
	// Named is the name of Config.Names that the client has asked for; Model is then the model that
	// was chosen, or if there was none, the name. Empty: it has asked for a model.
	Named string
	// Passed says of the models before it behind that name why they were passed over, if they were.
	Passed []error
	// Receipt is what Config.Describe has set as Request.Receipt, with the last decision. Nil: nothing.
	Receipt *endpick.Receipt
	// Err is the error of RoundTrip. Nil: there was a response, whatever its
	// status.
	Err error
	// Held is how long the request waited in the gateway queue.
	Held time.Duration
	// Attempts are the endpoints that it was sent to, in order. Empty: it was not
	// valid, was refused, or no endpoint could take it.
	Attempts []ObservedAttempt
	// Serving is the index in Attempts of the attempt that gave the response, or
	// of the last one; −1: there is none.
	Serving int
}

// ObservedAttempt is one endpoint that a request was sent to.
type ObservedAttempt struct {
	// Candidate is the endpoint as it was when it was chosen, with its match and
	// its prediction.
	Candidate endpick.Candidate
	// At is when the router was asked, and Decision how long it took to choose.
	At       time.Time
	Decision time.Duration
	// HTTP is the status of the response. 0: there was none.
	HTTP   int
	Result Result
	// Resumes says that it was asked for the rest of what an earlier attempt had begun.
	Resumes bool
	// Err says what went wrong, if anything did.
	Err error
}

// Result is how an attempt ended.
type Result = health.Result

// The results of attempts.
const (
	Served      = health.Served
	Unreachable = health.NotSent  // the endpoint has not seen the request
	Broken      = health.Broken   // no answer, a late answer, or half of one
	Erred       = health.Erred    // 5xx, or a stream that is an error
	Full        = health.Full     // 429, or 503 or an error event with a word for being full
	Refused     = health.Refused  // any other status from 400 on, usually the client's fault
	Canceled    = health.Canceled // the client went away
)

// Last returns the attempt at index Serving; nil if there is none.
func (o *Observation) Last() *ObservedAttempt {
	if o.Serving < 0 || o.Serving >= len(o.Attempts) {
		return nil
	}
	return &o.Attempts[o.Serving]
}

// Code is the HTTP status that the client got, or would have got.
func (o *Observation) Code() int {
	if o.Err != nil {
		return StatusOf(o.Err)
	}
	return o.HTTP
}

// Completed reports whether the client got the whole of a response that is not
// an error.
func (o *Observation) Completed() bool {
	return o.Status == endpick.Completed.String() && o.HTTP > 0 && o.HTTP < http.StatusBadRequest
}

// Latency is a latency as predicted when the endpoint was chosen, and as
// measured from then on. Zero: not known.
type Latency struct{ Predicted, Actual time.Duration }

// Latencies returns those of the attempt that gave the response. A response
// that does not stream has neither TTFT nor TPOT, one that was resumed none.
func (o *Observation) Latencies() (ttft, tpot, e2e Latency) {
	a := o.Last()
	if a == nil || a.Resumes {
		return ttft, tpot, e2e
	}
	p := &a.Candidate.Prediction
	routed := a.At.Sub(o.Time)
	if o.Stream {
		ttft.Predicted = predicted(p, endpick.TTFT, p.TTFT)
		tpot.Predicted = predicted(p, endpick.TPOT, p.TPOT)
	}
	e2e.Predicted = predicted(p, endpick.E2E, p.E2E)
	if first, ok := o.firstToken(); ok {
		ttft.Actual = max(first-routed, 1)
		if n := o.outputTokens(); n > 1 {
			tpot.Actual = max((o.end()-first)/time.Duration(n-1), 1)
		}
	}
	if o.Completed() {
		e2e.Actual = max(o.end()-routed, 1)
	}
	return ttft, tpot, e2e
}

func predicted(p *endpick.Prediction, which endpick.Latencies, d time.Duration) time.Duration {
	if p.Has&which == 0 {
		return 0
	}
	return max(d, 1)
}

// outputTokens is the mean per response, if there are several in parallel.
func (o *Observation) outputTokens() int { return o.OutputTokens / max(o.Responses, 1) }

func (o *Observation) end() time.Duration { return millis(o.E2EMillis) }

func (o *Observation) firstToken() (time.Duration, bool) {
	if !o.Stream || o.TTFTMillis == nil {
		return 0, false
	}
	return millis(*o.TTFTMillis), true
}

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// Target reports whether there was a target for TTFT or TPOT that can be compared,
// and whether it was met. Time counts from the arrival of the request, and so
// includes waiting in the gateway queue. A request that is refused or fails
// misses its targets. A request whose client leaves does not count, and neither does
// the TPOT of a response of one token. For a response that does not stream, the whole
// latency is compared with the target for TTFT, as in package slo.
func (o *Observation) Target(which endpick.Latencies) (asked, met bool) {
	if o.Status == endpick.Canceled.String() {
		return false, false
	}
	first, streamed := o.firstToken()
	switch which {
	case endpick.TTFT:
		asked = o.SLOTTFTMillis > 0
		if !o.Stream {
			first, streamed = o.end(), true
		}
		met = streamed && first <= millis(o.SLOTTFTMillis)
	case endpick.TPOT:
		asked = o.SLOTPOTMillis > 0 && o.Stream && !(o.Completed() && (o.outputTokens() < 2 || !streamed))
		if n := o.outputTokens(); streamed && n > 1 {
			met = (o.end()-first)/time.Duration(n-1) <= millis(o.SLOTPOTMillis)
		}
	}
	return asked, asked && met && o.Completed()
}
