package learn

import (
	"github.com/endpick/endpick/predict/boost"
)

// Target is a latency that is learned, and a number to keep it by.
type Target int

// The latencies.
const (
	TTFT Target = iota // time to first token
	TPOT               // time per output token after the first
	E2E                // whole request
	// Targets is how many there are.
	Targets
)

// Features are what is known of a request and an endpoint when the request is dispatched. NaN stands for what is not
// known.
type Features struct {
	// KVUsage is the share of the KV cache in use, in [0, 1].
	KVUsage float64
	// InputTokens is the length of the prompt.
	InputTokens float64
	// Waiting and Running are the requests in the engine's queue and batch.
	Waiting, Running float64
	// PrefixShare is the share of the prompt that the endpoint holds, in [0, 1].
	PrefixShare float64
	// PrefillTokens are the new tokens of the requests that were routed there and have no first token yet.
	PrefillTokens float64
	// ResidentTokens are the prompt tokens of all requests that were routed there and are not done.
	ResidentTokens float64
	// PrefillRate is how many new tokens a second the endpoint has prefilled of late.
	PrefillRate float64
	// ExpectedOutputTokens is the guess of the response's length.
	ExpectedOutputTokens float64
	// Variant is a number for the kind of the endpoint.
	Variant float64
}

// The columns of a row.
const (
	columnKV = iota
	columnInput
	columnWaiting
	columnRunning
	columnShare
	columnPrefill
	columnResident
	columnRate
	columnOutput
	// Variant is the column of Features.Variant, for Learner.Forget.
	Variant
	columnNew      // uncached tokens of this request, F
	columnAhead    // F + Q: what has to be prefilled before its first token
	columnPressure // F + Q over the free share of the KV cache: a limit on it is one test

	// FeatureCount is the number of values that Features.Row writes.
	FeatureCount
)

// fullMargin keeps the pressure finite when the cache is full.
const fullMargin = 0.01

// Row writes the features, and those derived from them, into dst, which has FeatureCount values.
func (f *Features) Row(dst []float64) {
	row := (*[FeatureCount]float64)(dst)
	fresh := f.InputTokens * (1 - f.PrefixShare)
	ahead := fresh + f.PrefillTokens
	*row = [FeatureCount]float64{
		columnKV:       f.KVUsage,
		columnInput:    f.InputTokens,
		columnWaiting:  f.Waiting,
		columnRunning:  f.Running,
		columnShare:    f.PrefixShare,
		columnPrefill:  f.PrefillTokens,
		columnResident: f.ResidentTokens,
		columnRate:     f.PrefillRate,
		columnOutput:   f.ExpectedOutputTokens,
		Variant:        f.Variant,
		columnNew:      fresh,
		columnAhead:    ahead,
		columnPressure: ahead / (1 + fullMargin - f.KVUsage),
	}
}

// Latency returns the configuration of a learner of one latency, in milliseconds, from rows of Features. Its
// window is stratified by KV usage, prefix share, queue and variant. Its prior is, for the time to first token, the work ahead
// and the load; for the time per output token, the cost of a decoding step: weights, the batch, and the cache it
// reads; for the whole request, both.
func Latency(target Target) Config {
	first := []int{columnKV, columnInput, columnWaiting, columnRunning, columnPrefill, columnNew, columnAhead}
	c := Config{
		Boost: boost.Config{Features: FeatureCount},
		Window: WindowConfig{
			Features: FeatureCount,
			Strata: []Stratum{
				{Feature: columnKV, Edges: []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}},
				{Feature: columnShare, Edges: []float64{0.25, 0.5, 0.75}},
				{Feature: columnWaiting, Edges: []float64{1, 3, 6, 11}},
				{Feature: Variant, Edges: []float64{1, 2, 3, 4, 5, 6, 7}},
			},
		},
	}
	switch target {
	case TPOT:
		c.Boost.Prior = []int{columnKV, columnRunning, columnResident}
	case E2E:
		c.Boost.Prior = append(first, columnOutput)
	default:
		c.Boost.Prior = first
	}
	return c
}
