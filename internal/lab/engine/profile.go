package engine

import (
	"fmt"
	"math"
)

// Profile says how long a step of a model on some hardware takes:
//
//	step = StepMicros
//	     + max(WeightMicros, TokenMicros·tokens)       reading the weights, or computing with them
//	     + SequenceMicros·sequences                    sampling, scheduling, small kernels
//	     + ContextNanos·Σ context of decoding sequences  reading their KV cache
//	     + PairNanos·Σ query-key pairs of prompt chunks  attention of prefill, quadratic
//
// where tokens are all tokens of the batch (one per decoding sequence, and the
// prompt chunks) and a chunk of c tokens at position p has c·p + c(c+1)/2 pairs.
//
// The peak fields bound the others from below: TokenMicros and PairNanos may not
// be faster than the hardware's peak allows. A peak of zero is unknown and bounds
// nothing. Values are finite and not negative, and a step of one token takes time.
type Profile struct {
	Name           string  `json:"name"`
	StepMicros     float64 `json:"step_us"`     // fixed cost of a step, in microseconds
	WeightMicros   float64 `json:"weight_us"`   // floor of a step: one read of the weights, in microseconds
	TokenMicros    float64 `json:"token_us"`    // compute per token above the knee, in microseconds
	SequenceMicros float64 `json:"sequence_us"` // per sequence in the step, in microseconds
	ContextNanos   float64 `json:"context_ns"`  // per token of context that a decoding sequence reads, in nanoseconds
	PairNanos      float64 `json:"pair_ns"`     // per query-key pair of a prompt chunk, in nanoseconds

	PeakTFLOPS     float64 `json:"peak_tflops"`      // dense peak of all devices together, in 10¹² operations per second
	GFLOPsPerToken float64 `json:"gflops_per_token"` // forward pass of one token without attention, in 10⁹ operations
	MFLOPsPerPair  float64 `json:"mflops_per_pair"`  // attention of one query-key pair over all layers, in 10⁶ operations
}

// AtPeak returns p with TokenMicros and PairNanos raised, if necessary, to what
// the peak allows. Fits use it to stay physical.
func (p Profile) AtPeak() Profile {
	if p.PeakTFLOPS > 0 {
		p.TokenMicros = max(p.TokenMicros, p.leastTokenMicros())
		p.PairNanos = max(p.PairNanos, p.leastPairNanos())
	}
	return p
}

func (p Profile) leastTokenMicros() float64 { return p.GFLOPsPerToken / p.PeakTFLOPS * 1e3 }
func (p Profile) leastPairNanos() float64   { return p.MFLOPsPerPair / p.PeakTFLOPS * 1e3 }

func (p Profile) validate() error {
	fields := []struct {
		name  string
		value float64
	}{
		{"StepMicros", p.StepMicros}, {"WeightMicros", p.WeightMicros}, {"TokenMicros", p.TokenMicros},
		{"SequenceMicros", p.SequenceMicros}, {"ContextNanos", p.ContextNanos}, {"PairNanos", p.PairNanos},
		{"PeakTFLOPS", p.PeakTFLOPS}, {"GFLOPsPerToken", p.GFLOPsPerToken}, {"MFLOPsPerPair", p.MFLOPsPerPair},
	}
	for _, f := range fields {
		if !(f.value >= 0 && f.value <= maxCoefficient) {
			return fmt.Errorf("engine: profile %q: %s %v is not within [0, %v]", p.Name, f.name, f.value, float64(maxCoefficient))
		}
	}
	if newCosts(p).step(1, 1, 0, 0) <= 0 {
		return fmt.Errorf("engine: profile %q: a step takes no time", p.Name)
	}
	if p.PeakTFLOPS > 0 {
		if least := p.leastTokenMicros(); p.TokenMicros < least*(1-roundingSlack) {
			return fmt.Errorf("engine: profile %q: TokenMicros %v is faster than the peak allows (%v)", p.Name, p.TokenMicros, least)
		}
		if least := p.leastPairNanos(); p.PairNanos < least*(1-roundingSlack) {
			return fmt.Errorf("engine: profile %q: PairNanos %v is faster than the peak allows (%v)", p.Name, p.PairNanos, least)
		}
	}
	return nil
}

const (
	maxCoefficient = 60e6 // a minute in microseconds: anything above is in wrong units; keeps sums far from overflow
	roundingSlack  = 1e-9 // for the rounding of AtPeak
)

// picos is a time or a duration in picoseconds: fine enough for one query-key
// pair, wide enough for 106 days.
type picos int64

// costs are the coefficients of a Profile in whole picoseconds.
type costs struct {
	fixed, weight, token, sequence, context, pair picos
}

func newCosts(p Profile) costs {
	return costs{
		fixed:    picos(math.Round(p.StepMicros * 1e6)),
		weight:   picos(math.Round(p.WeightMicros * 1e6)),
		token:    picos(math.Ceil(p.TokenMicros * 1e6)), // rounded up, so that the peak holds
		sequence: picos(math.Round(p.SequenceMicros * 1e6)),
		context:  picos(math.Round(p.ContextNanos * 1e3)),
		pair:     picos(math.Ceil(p.PairNanos * 1e3)),
	}
}

// times returns the costs multiplied by factor.
func (c costs) times(factor float64) costs {
	f := func(p picos) picos { return picos(math.Round(float64(p) * factor)) }
	return costs{f(c.fixed), f(c.weight), f(c.token), f(c.sequence), f(c.context), f(c.pair)}
}

// step is the time of one step, from these sums over its batch.
func (c costs) step(tokens, sequences, context, pairs int64) picos {
	return c.fixed + max(c.weight, c.token*picos(tokens)) + c.sequence*picos(sequences) +
		c.context*picos(context) + c.pair*picos(pairs)
}

// chunkPairs counts the query-key pairs of a chunk of tokens at position start
// under a causal mask: start+1, start+2, … keys.
func chunkPairs(start, tokens int64) int64 { return tokens*start + tokens*(tokens+1)/2 }
