package endpick

import (
	"cmp"
	"math"
	"time"

	"github.com/cespare/xxhash/v2"
)

// DefaultBlockTokens is the default number of tokens in a prefix block, the
// block size of vLLM.
const DefaultBlockTokens = 16

// Request describes one LLM request to the router. It is passed by value to
// [Router.Route]; stages see a pointer to the router's copy, which they must
// not keep after they return.
//
// The zero value is a request of unknown length for any model.
type Request struct {
	// Model is the model asked for. Candidates are the endpoints that serve
	// it, as a model or as an adapter. Empty: every endpoint.
	Model string
	// Adapter, if not empty, is the name of an adapter (LoRA) that an
	// endpoint must serve instead of Model.
	Adapter string

	// Named is the name that the caller was asked for, if that stands for Model among others; see
	// transport.Name. Receipts show it, and nothing else reads it.
	Named string

	// Context is the length of context, in tokens, with which the model has to be loaded, as a client of
	// Ollama may set it (num_ctx): a server that has it in memory with another one loads it anew.
	// Zero: any.
	Context int

	// InputTokens is the length of the prompt, L, below 2^31. Zero: the length of
	// its blocks; unknown if there are none.
	InputTokens int
	// Blocks are the chained hashes of the prompt's full blocks, from the
	// beginning, as package prefix makes them; blocks beyond its length are
	// ignored. The caller owns the slice and may reuse it as soon as Route has
	// returned; no stage keeps it.
	Blocks []uint64
	// BlockTokens is the number of tokens that one block stands for; a
	// fraction where blocks are cut from text. Zero: DefaultBlockTokens.
	BlockTokens float64
	// Exact says that Blocks are cut from the engine's own token ids, not from text or
	// from the ids of a tokenizer that may differ, so that package prefix/precise can
	// compare them with what engines report about their caches. Nothing else reads it.
	Exact bool
	// ExpectedOutputTokens is the caller's guess of the response's length
	// (max_tokens, or a mean it has learned), of all Responses together. Zero:
	// unknown; for an embedding, 1. The presets marginal-delay, which learns how
	// far such guesses are off, and predicted-latency read it, and so do slo/quota
	// and slo/queue.
	ExpectedOutputTokens int
	// Responses is the number of responses that the engine computes in parallel, as
	// when a client asks for several choices. Zero: one.
	Responses int
	// Stream says that the response is streamed and that its first token will be
	// reported, by Lease.Tokens or Lease.FirstToken. A caller that can't report it
	// leaves Stream unset; Config.Warn gets ErrNoFirstTokens if it forgets to.
	Stream bool

	// Priority orders requests when capacity is short: higher is more important. A
	// request with a priority below zero is sheddable.
	Priority int
	// SLO holds the latency targets of the request. The zero SLO has none.
	SLO SLO
	// Tenant is the customer or user that the request counts for. Empty:
	// none.
	Tenant string
	// Session ties the turns of one conversation together, for scorer.SessionAffinity
	// and for diagnoses. The presets ignore it: they go by what of the prompt is
	// cached. Empty: none.
	Session string

	// Exclude lists the IDs of endpoints that must not be chosen, such as the
	// one that has just failed this request. Owned by the caller.
	Exclude []string
	// Avoid lists the IDs of endpoints that are chosen only if there are no
	// others, such as those that fail many requests. Owned by the caller.
	Avoid []string

	// Adopted, if not nil, says that the request has been sent already: its lease counts on
	// the endpoint that has it, and nothing is chosen. It is for hosts that share their fleet
	// with others. Owned by the caller, who leaves it alone until Done but for its times.
	Adopted *Adopted

	// Receipt, if not nil, is filled with an explanation of the decision.
	Receipt *Receipt

	now    time.Time
	number uint64
	seed   uint64
}

// Adopted describes a request that was sent before it was routed: by this host, to an
// endpoint that somebody else has chosen (as package transport/extproc does), or by another
// router in front of the same fleet (see package transport/replica). It is matched and
// predicted like any other, so that observers see what they would have seen, and its lease
// counts like any other. Admit is not called, because it has been admitted elsewhere.
type Adopted struct {
	// Endpoint is the ID of the endpoint that has the request. It may be drained, or
	// listed for other models.
	Endpoint string
	// Mirrored says that another router has sent the request and measures it. If it is
	// not set, this host reports its progress; how long it takes to its first token is not
	// measured, because nobody here knows when it was sent.
	Mirrored bool

	// ExpectedCached is how many prompt tokens the other router expects in that endpoint's
	// cache; it is used instead of this router's own match. Only for a mirrored request.
	ExpectedCached int
	// Took is how long the other router has measured from Route to Done, and TTFT to the
	// first token. They are set before Done is called, whose observers learn from them; zero:
	// not known. Only for a mirrored request.
	Took, TTFT time.Duration
}

// SLO holds latency targets. Zero or less: there is no target.
type SLO struct {
	TTFT time.Duration // time to first token
	TPOT time.Duration // time per output token after the first
}

// Asked reports whether any target is set.
func (s SLO) Asked() bool { return s.TTFT > 0 || s.TPOT > 0 }

// complete refuses impossible values, and sets the defaults of fields that depend on others.
func (r *Request) complete() error {
	bad := func(field, reason string) error { return &RequestError{Field: field, Reason: reason} }
	switch {
	case r.InputTokens < 0:
		return bad("InputTokens", "is negative")
	case r.InputTokens > math.MaxInt32:
		return bad("InputTokens", "is above 2^31 - 1")
	case r.Responses < 0:
		return bad("Responses", "is negative")
	case r.ExpectedOutputTokens < 0:
		return bad("ExpectedOutputTokens", "is negative")
	case !(r.BlockTokens >= 0 && r.BlockTokens <= math.MaxInt32):
		return bad("BlockTokens", "is negative, or above 2^31 - 1")
	}
	if r.InputTokens == 0 && len(r.Blocks) > 0 {
		r.InputTokens = int(min(math.Ceil(float64(len(r.Blocks))*r.TokensPerBlock()), math.MaxInt32))
	}
	return nil
}

// serving is the model or adapter that an endpoint has to serve.
func (r *Request) serving() string { return cmp.Or(r.Adapter, r.Model) }

// Now is the time at which the request is being routed, by the router's
// clock. Stages use it instead of a clock of their own.
func (r *Request) Now() time.Time { return r.now }

// Number is the request's position in the router's sequence, starting at 1.
func (r *Request) Number() uint64 { return r.number }

// TokensPerBlock is BlockTokens, or its default.
func (r *Request) TokensPerBlock() float64 { return cmp.Or(r.BlockTokens, DefaultBlockTokens) }

// ExpectedPerResponse is the share of ExpectedOutputTokens of one of the parallel
// responses. Zero: unknown.
func (r *Request) ExpectedPerResponse() float64 {
	return float64(r.ExpectedOutputTokens) / float64(max(r.Responses, 1))
}

// Chance returns a number in (0, 1) that is a pure function of the router's
// seed, the request's number and salt. A stage that randomizes uses it, with a
// salt of its own from [Salt].
func (r *Request) Chance(salt uint64) float64 { return unit(uint64(r.draws(salt))) }

// ChanceOf is Chance for one candidate. It also depends on the endpoint's ID,
// and never on its position among the candidates, so that the order in which
// endpoints were added changes no choice.
func (r *Request) ChanceOf(salt uint64, c *Candidate) float64 { return unit(r.draws(salt).of(c)) }

// draws is the part of ChanceOf that is the same for all candidates of a
// request. A loop over candidates computes it once.
type draws uint64

func (r *Request) draws(salt uint64) draws { return draws(mix(mix(r.seed^salt) ^ r.number)) }

// of returns 64 random bits for the candidate.
func (d draws) of(c *Candidate) uint64 { return mix(uint64(d) ^ c.ChanceKey) }

// At returns the request with the time, seed and number that a router would
// give it. It is for tests that call a stage directly; the router does this
// itself.
func (r Request) At(now time.Time, seed, number uint64) Request {
	r.now, r.seed, r.number = now, seed, number
	return r
}

// Salt turns a name into a salt for [Request.Chance]. It is a constant of the
// name: compute it once.
func Salt(name string) uint64 { return xxhash.Sum64String(name) }

// mix is one step of splitmix64: every bit of x changes every bit of the result
// with a probability of about one half.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// unit maps the upper 52 bits of x to the open interval (0, 1). With one bit
// more, adding the half would round and could give 1.
func unit(x uint64) float64 { return (float64(x>>12) + 0.5) / (1 << 52) }
