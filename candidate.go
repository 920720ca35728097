package endpick

import "time"

// Candidate is an endpoint as one request sees it. The router fills it;
// Matcher and Predictor add their part, Filter, Scorer and Picker read it. No
// stage changes anything else: the router goes on with what has not changed when
// the next request comes. It is valid until the stage returns; a copy of the
// struct may be kept, Endpoint and Report point to values that never change.
type Candidate struct {
	Endpoint *Endpoint
	Ref      Ref
	// IDHash is the hash of the endpoint's ID, by which chance is drawn.
	IDHash uint64

	// PrefixTokens, H, is the length of the contiguous head of the prompt that
	// the endpoint is expected to hold: at most InputTokens − 1, because
	// engines compute the last token again.
	PrefixTokens int

	// Waiting and Running, W and R, are the engine's report corrected by what
	// this router has routed there since it was asked. An endpoint without a
	// report takes the mean of those that have one, and never less than the
	// router's own count.
	Waiting float64
	Running float64
	// InFlight is the router's own account.
	InFlight InFlight
	// KVUsage, K, is the engine's report, in [0, 1]; without one the mean of
	// the others, and 0.5 if there are none.
	KVUsage float64
	// Reported are the signals that come from a current report of this
	// endpoint.
	Reported Signals
	// Report is that report as the engine gave it, or nil.
	Report *Load

	// Prediction is what the Predictor expects; see its Has field.
	Prediction Prediction
}

// BatchSize is BS = W + R, the requests that wait or run there.
func (c *Candidate) BatchSize() float64 { return c.Waiting + c.Running }

// NewTokens is F = L − H, the prompt tokens that would have to be prefilled.
func (c *Candidate) NewTokens(req *Request) int {
	return max(req.InputTokens-max(c.PrefixTokens, 0), 0)
}

// MatchShare is H/L in [0, 1]; 0 for an empty prompt. A prompt that is held
// whole, up to the token which engines compute again, has share 1.
func (c *Candidate) MatchShare(req *Request) float64 {
	if req.InputTokens <= 0 || c.PrefixTokens <= 0 {
		return 0
	}
	if c.PrefixTokens >= req.InputTokens-1 {
		return 1
	}
	return float64(c.PrefixTokens) / float64(req.InputTokens)
}

// Latencies is a set of latencies.
type Latencies uint8

// The latencies of a [Prediction].
const (
	TTFT Latencies = 1 << iota // time to first token
	TPOT                       // time per output token after the first
	E2E                        // whole request
)

// Prediction is what is expected of a request on one endpoint. Latencies
// outside Has are unknown, not zero.
type Prediction struct {
	Has Latencies

	TTFT, TPOT, E2E time.Duration
	// The upper bounds hold for nine requests in ten. Never below the
	// expected value.
	TTFTUpper, TPOTUpper, E2EUpper time.Duration
}
