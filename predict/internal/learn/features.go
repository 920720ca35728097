package learn

import "github.com/endpick/endpick/predict/boost"

// Target is a latency that is learned.
type Target int

// The latencies.
const (
	TTFT Target = iota // time to first token
	TPOT               // time per output token after the first
	E2E                // whole request
	// Targets is their number.
	Targets
)

// Features are what is known about a request and an endpoint when the request is routed. NaN means
// not known.
type Features struct {
	// KVUsage is the share of the KV cache in use, in [0, 1].
	KVUsage float64
	// InputTokens is the length of the prompt.
	InputTokens float64
	// Waiting and Running are the requests in the engine's queue and batch.
	Waiting, Running float64
	// PrefixShare is the share of the prompt that the endpoint holds, in [0, 1].
	PrefixShare float64
	// PrefillTokens are the new tokens of requests routed there that have no first token yet.
	PrefillTokens float64
	// ResidentTokens are the prompt tokens of all requests in flight there.
	ResidentTokens float64
	// PrefillRate is how many new tokens per second the endpoint has recently prefilled.
	PrefillRate float64
	// ExpectedOutputTokens is the expected length of the response.
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
	columnAhead    // F + Q: to be prefilled before its first token
	columnPressure // F + Q over the free share of the KV cache: a threshold on it is a single test

	// FeatureCount is the number of values that Features.Row writes.
	FeatureCount
)

// fullMargin keeps the pressure finite when the cache is full.
const fullMargin = 0.01

// Row writes the features, and those derived from them, to dst, which has FeatureCount values.
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

// Latency returns the configuration of a learner of one latency, in milliseconds, from rows of
// Features. Its window is stratified by KV usage, prefix share, queue and variant. Its prior is,
// for the time to first token, the work ahead and the load; for the time per output token, the cost
// of a decoding step: weights, batch, and the cache it reads; for the whole request, both.
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
