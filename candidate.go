package endpick

import "time"

// Candidate is an endpoint as one request sees it. The router fills it in;
// Matcher and Predictor add their part; Filter, Scorer and Picker read it.
// Stages must not change anything else, because the router reuses candidates for
// the next request. A Candidate is valid until the stage returns. A copy of the
// struct may be kept; Endpoint and Report point to values that never change.
type Candidate struct {
	Endpoint *Endpoint
	Ref      EndpointRef
	// ChanceKey is a hash of the endpoint's ID, on which random choices depend.
	ChanceKey uint64

	// PrefixTokens, H, is the number of tokens from the beginning of the
	// prompt, without gaps, that the endpoint is expected to hold: at most
	// InputTokens − 1, because engines compute the last token again.
	PrefixTokens int

	// Waiting and Running, W and R, are the engine's report, corrected for what
	// this router has routed there since the engine was asked. An endpoint without
	// a report has the router's own count plus the mean of what reporting
	// endpoints have from elsewhere.
	Waiting float64
	Running float64
	// InFlight is the router's own count.
	InFlight InFlight
	// KVUsage, K, is the engine's report ([Load.KVUsage]), in [0, 1]; without a
	// report, the mean of the others, or 0.5 if there are none.
	KVUsage float64
	// Reported is the set of signals that come from a current report of this
	// endpoint.
	Reported Signals
	// Report is that report as the engine gave it, or nil.
	Report *Load

	// Prediction is what the Predictor expects; its Has field says which latencies are known.
	Prediction Prediction
}

// BatchSize is BS = W + R, the requests that wait or run there.
func (c *Candidate) BatchSize() float64 { return c.Waiting + c.Running }

// NewTokens is F = L − H, the prompt tokens that would have to be prefilled.
func (c *Candidate) NewTokens(req *Request) int {
	return max(req.InputTokens-max(c.PrefixTokens, 0), 0)
}

// MatchShare is H/L in [0, 1]; 0 for an empty prompt. It is 1 for a prompt
// that is held completely, except for the last token, which engines compute
// again.
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

// Prediction holds the expected latencies of a request on one endpoint.
// Latencies that are not in Has are unknown, not zero.
type Prediction struct {
	Has Latencies

	TTFT, TPOT, E2E time.Duration
	// The upper bounds hold for nine requests in ten. They are never below the
	// expected value.
	TTFTUpper, TPOTUpper, E2EUpper time.Duration
}
