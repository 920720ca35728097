package engine

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// MaxTime is the end of an engine's time, about 106 days after the driver's epoch.
const MaxTime = time.Duration(math.MaxInt64 / 1000)

// The defaults of a Config.
const (
	DefaultProfile          = "llama-3.1-8b-h100"
	DefaultBlockTokens      = 16
	DefaultBlocks           = 32_000 // of the first paper's appendix: 512,000 tokens
	DefaultMaxSequences     = 256
	DefaultMaxBatchedTokens = 2_048
)

// Config describes a model server. The zero value is a Llama-3.1-8B on one H100
// with the documented defaults.
type Config struct {
	// Profile is the step time. The zero Profile is the one named [DefaultProfile].
	Profile Profile
	// BlockTokens is the number of tokens in a KV block. 0 is 16; at most 4,096.
	BlockTokens int
	// Blocks is the size of the KV cache in blocks. 0 is 32,000.
	Blocks int
	// MaxSequences limits the sequences that run together. 0 is 256.
	MaxSequences int
	// MaxBatchedTokens is the token budget of a step, for decodes and prompt chunks
	// together. 0 is 2,048, or MaxSequences if that is more. It must not be below
	// MaxSequences, so that every running sequence decodes in every step.
	MaxBatchedTokens int
	// PrefillFirst computes prompts in steps of their own, while decoding pauses, as
	// vLLM's first engine and SGLang do; the token budget is then only for them.
	PrefillFirst bool
	// CacheEvents records changes of the cache for [Engine.CacheEvents].
	CacheEvents bool
}

func (c *Config) validate() error {
	if c.Profile == (Profile{}) {
		c.Profile, _ = ProfileByName(DefaultProfile)
	}
	c.BlockTokens = cmp.Or(c.BlockTokens, DefaultBlockTokens)
	c.Blocks = cmp.Or(c.Blocks, DefaultBlocks)
	c.MaxSequences = cmp.Or(c.MaxSequences, DefaultMaxSequences)
	c.MaxBatchedTokens = cmp.Or(c.MaxBatchedTokens, max(DefaultMaxBatchedTokens, c.MaxSequences))

	const limit = 1 << 24 // keeps all products of counts and picoseconds within 64 bits
	for _, f := range []struct {
		name       string
		value, max int
	}{
		{"BlockTokens", c.BlockTokens, 4096}, {"Blocks", c.Blocks, limit},
		{"MaxSequences", c.MaxSequences, limit}, {"MaxBatchedTokens", c.MaxBatchedTokens, limit},
	} {
		if f.value < 1 || f.value > f.max {
			return fmt.Errorf("engine: config: %s %d is not within [1, %d]", f.name, f.value, f.max)
		}
	}
	if c.MaxBatchedTokens < c.MaxSequences {
		return fmt.Errorf("engine: config: MaxBatchedTokens %d is below MaxSequences %d", c.MaxBatchedTokens, c.MaxSequences)
	}
	return c.Profile.validate()
}

// Request is one prompt and the number of tokens that will be generated for it.
type Request struct {
	// ID is the caller's ID of the request, unique among those that have not ended.
	ID uint64
	// PromptTokens is the length of the prompt, at least 1.
	PromptTokens int
	// OutputTokens is the number of tokens to generate, at least 1.
	OutputTokens int
	// Blocks are the chained hashes of the full blocks of the prompt, followed by
	// those of the output: equal hashes mean equal tokens from the head on. If it is
	// shorter than the sequence, the blocks after it are never cached. Hashes after
	// the prompt are those of generated blocks, which the next turn of a
	// conversation can hit. The engine keeps the slice and never writes to it;
	// neither must the caller. Turns of a conversation can share one array.
	Blocks []uint64
}

// TooLongError says that a request can never fit the KV cache.
type TooLongError struct {
	ID            uint64
	Tokens, Limit int64 // the request's final length in the cache, and the size of the cache
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("engine: request %d: %d tokens never fit a KV cache of %d", e.ID, e.Tokens, e.Limit)
}

func (c *Config) check(r *Request) error {
	switch {
	case r.PromptTokens < 1:
		return fmt.Errorf("engine: request %d: PromptTokens %d is below 1", r.ID, r.PromptTokens)
	case r.OutputTokens < 1:
		return fmt.Errorf("engine: request %d: OutputTokens %d is below 1", r.ID, r.OutputTokens)
	}
	// The last generated token is never fed back, so it takes no space.
	tokens, limit := int64(r.PromptTokens)+int64(r.OutputTokens)-1, int64(c.Blocks)*int64(c.BlockTokens)
	if tokens > limit {
		return &TooLongError{r.ID, tokens, limit}
	}
	return nil
}
