package recording

import (
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Request is the record of one request.
type Request struct {
	// Version is the version of the format; see [Version]. Zero: 1.
	Version int `json:"v,omitempty"`
	// Time is when the request arrived; the durations count from there, in
	// milliseconds.
	Time time.Time `json:"time"`
	// TTFTMillis is nil for a response without a first token: one that did not
	// stream, or failed before it.
	TTFTMillis *float64 `json:"ttft_ms,omitempty"`
	E2EMillis  float64  `json:"e2e_ms"`

	Model    string `json:"model,omitempty"`
	Endpoint string `json:"endpoint,omitempty"` // the last one that it was sent to; empty: never sent
	Status   string `json:"status"`             // as endpick.Status spells it
	HTTP     int    `json:"http,omitempty"`     // status of the response; 0: there was none
	Attempts int    `json:"attempts"`

	Stream bool `json:"stream,omitempty"`
	// InputTokens and OutputTokens are the engine's figures, or estimates if
	// Estimated is set.
	InputTokens  int  `json:"input_tokens"`
	OutputTokens int  `json:"output_tokens"`
	Estimated    bool `json:"estimated,omitempty"`
	// Responses is the number of responses that share OutputTokens. 0: one.
	Responses int `json:"responses,omitempty"`
	// CachedTokens is nil if the engine did not report them.
	CachedTokens *int `json:"cached_tokens,omitempty"`
	MaxTokens    int  `json:"max_tokens,omitempty"` // the client's limit; 0: none

	// Blocks are the chained hashes of the prompt, each standing for
	// BlockTokens tokens. Recordings made with the same
	// transport.Config.HashKey can be compared; otherwise only requests within
	// one recording can.
	Blocks      []Hash  `json:"blocks,omitempty"`
	BlockTokens float64 `json:"block_tokens,omitempty"`
	// Tenant and Session are hashes of their names.
	Tenant  Hash `json:"tenant,omitzero"`
	Session Hash `json:"session,omitzero"`
	// Adapter, and a hash of the cache_salt: prompts share blocks only if both are
	// the same, as well as model and tenant.
	Adapter string `json:"adapter,omitempty"`
	Salt    Hash   `json:"salt,omitzero"`
	// Prompt describes the prompt. Nil: not recorded, or not read.
	Prompt *Prompt `json:"prompt,omitempty"`

	Priority int `json:"priority,omitempty"`
	// The latency targets; 0: none.
	SLOTTFTMillis float64 `json:"slo_ttft_ms,omitempty"`
	SLOTPOTMillis float64 `json:"slo_tpot_ms,omitempty"`
}

// check returns an impossible field, and why; empty if there is none.
func (r *Request) check() (field, reason string) {
	if r.Version < 0 || r.Version > Version {
		return "v", "is not a known version of the format"
	}
	if r.Time.IsZero() {
		return "time", "is missing"
	}
	if r.Prompt != nil {
		if field, reason := r.Prompt.check(); field != "" {
			return field, reason
		}
	}
	for _, f := range [...]struct {
		name     string
		negative bool
	}{
		{"ttft_ms", r.TTFTMillis != nil && *r.TTFTMillis < 0},
		{"e2e_ms", r.E2EMillis < 0},
		{"attempts", r.Attempts < 0},
		{"input_tokens", r.InputTokens < 0},
		{"output_tokens", r.OutputTokens < 0},
		{"responses", r.Responses < 0},
		{"cached_tokens", r.CachedTokens != nil && *r.CachedTokens < 0},
		{"max_tokens", r.MaxTokens < 0},
		{"block_tokens", r.BlockTokens < 0},
		{"slo_ttft_ms", r.SLOTTFTMillis < 0},
		{"slo_tpot_ms", r.SLOTPOTMillis < 0},
	} {
		if f.negative {
			return f.name, "is negative"
		}
	}
	return "", ""
}

// Hash is a hash of 64 bits, in JSON a string of hexadecimal digits, because
// numbers of that size do not survive every reader. Zero: none.
type Hash uint64

// NameHash is the hash of the name of a tenant or a session in a recording. It
// can be recognized by anybody who can guess the name. Zero: no name.
func NameHash(name string) Hash {
	if name == "" {
		return 0
	}
	return Hash(xxhash.Sum64String(name))
}

// MarshalText writes hexadecimal digits.
func (h Hash) MarshalText() ([]byte, error) {
	return strconv.AppendUint(make([]byte, 0, 16), uint64(h), 16), nil
}

// UnmarshalText reads hexadecimal digits.
func (h *Hash) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 16, 64)
	*h = Hash(v)
	return err
}
