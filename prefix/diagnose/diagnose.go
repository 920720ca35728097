package diagnose

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/recording"
)

// Config configures [Explain]. The zero value is valid and counts no money.
type Config struct {
	// Price is what a million tokens of prompt cost, in any currency.
	Price float64
	// CachedMultiplier is the share of the price that cached tokens cost, within 0
	// and 1.
	CachedMultiplier float64
	// Window is how long after its last use a prompt could still have been in a
	// cache. Zero: an hour.
	Window time.Duration
	// MinTokens is how many tokens one request has to lose for it to count. Zero: 32.
	MinTokens int
}

func (c *Config) validate() error {
	bad := func(field, reason string) error {
		return &endpick.ConfigError{Field: "diagnose.Config." + field, Reason: reason}
	}
	switch {
	case !(c.Price >= 0) || math.IsInf(c.Price, 1):
		return bad("Price", "is negative or not finite")
	case !(c.CachedMultiplier >= 0 && c.CachedMultiplier <= 1):
		return bad("CachedMultiplier", "is not within 0 and 1")
	case c.Window < 0:
		return bad("Window", "is negative")
	case c.MinTokens < 0:
		return bad("MinTokens", "is negative")
	}
	c.Window = cmp.Or(c.Window, time.Hour)
	c.MinTokens = cmp.Or(c.MinTokens, 32)
	return nil
}

// Report is the result of [Explain].
type Report struct {
	// Requests counts the requests with a prompt that an engine has answered;
	// InputTokens and CachedTokens are their sums. Silent is how many of them
	// reported no cached tokens, so that evictions can't be seen.
	Requests, Silent          int
	InputTokens, CachedTokens int
	// LostTokens and Cost are the sums of all findings.
	LostTokens int
	Cost       float64
	Findings   []Finding // the most expensive first
}

// Finding is one cause, for the requests of one tenant for one model.
type Finding struct {
	Tenant recording.Hash // zero: none
	Model  string
	Cause  Cause
	// Message is the index of the message to blame, or of the tool if Tool is set;
	// -1: none. Role is its role. Offset is roughly the first byte of its text that
	// differs; -1: not known.
	Message int
	Tool    bool
	Role    string
	Offset  int
	// Old and New are the words that differ, for one pair of requests; empty if
	// the recording has no text.
	Old, New string
	// Requests is how many requests lost Tokens, in total; Cost is their price.
	Requests int
	Tokens   int
	Cost     float64
	// Before and After are that pair.
	Before, After *recording.Request
}

// Explain examines requests, which may be in any order. It keeps only those in the
// report. The error is an [endpick.ConfigError]. It takes time in proportion to the
// number of requests and the length of their prompts.
func Explain(requests []*recording.Request, config Config) (*Report, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	x := &explainer{config: config, grain: grains(requests), groups: map[group]*Finding{}}
	x.history.init()
	ordered := slices.Clone(requests)
	slices.SortStableFunc(ordered, func(a, b *recording.Request) int { return a.Time.Compare(b.Time) })
	var prompts []*prompt
	for _, r := range ordered {
		if p := newPrompt(r); p != nil {
			prompts = append(prompts, p)
		}
	}
	x.salts = saltsOf(prompts)
	for _, p := range prompts {
		x.explain(p)
		x.history.add(p)
	}
	return x.report(), nil
}

// grains are the block sizes of the engines' caches, by model: 16 tokens, or
// another divisor of all reported cached tokens.
func grains(requests []*recording.Request) map[string]int {
	all := map[string]int{}
	for _, r := range requests {
		grain := cmp.Or(all[r.Model], defaultGrain)
		if r.CachedTokens != nil {
			for n := *r.CachedTokens; n > 0; {
				grain, n = n, grain%n
			}
		}
		all[r.Model] = grain
	}
	return all
}

const defaultGrain = 16

type explainer struct {
	config   Config
	grain    map[string]int
	history  history
	salts    salts
	totals   Report
	groups   map[group]*Finding
	findings []*Finding
}

// group is what a finding is about.
type group struct {
	tenant  recording.Hash
	model   string
	cause   Cause
	message int
	tool    bool
	role    string
}

// explain finds what has kept a prompt from the cache, if anything has.
func (x *explainer) explain(p *prompt) {
	x.totals.Requests++
	x.totals.InputTokens += p.r.InputTokens
	grain := x.grain[p.r.Model]
	// An engine can find whole blocks of a prompt, without its last token.
	whole := func(tokens int) int {
		tokens = max(min(tokens, p.r.InputTokens-1), 0)
		return tokens - tokens%grain
	}
	since := p.r.Time.Add(-x.config.Window)
	anywhere, here := x.history.held(p, since)
	cached := 0
	if p.r.CachedTokens != nil {
		cached = *p.r.CachedTokens
		x.totals.CachedTokens += cached
	} else {
		x.totals.Silent++
		cached = whole(here.tokens)
	}
	had := cached
	if lost := whole(here.tokens) - had; lost >= x.config.MinTokens {
		x.blame(p, here.by, breach{cause: Evicted, message: -1, offset: -1}, lost)
		had += lost
	}
	if lost := whole(anywhere.tokens) - had; lost >= x.config.MinTokens {
		x.blame(p, anywhere.by, breach{cause: OtherServer, message: -1, offset: -1}, lost)
	}
	had = max(had, whole(anywhere.tokens))
	if whole(p.r.InputTokens)-had < x.config.MinTokens {
		return
	}
	var worst breach
	var before *prompt
	for _, q := range x.history.candidates(p, since) {
		b, ok := x.part(q, p)
		if !ok || b.end-b.at < float64(x.config.MinTokens) {
			continue
		}
		b.lost = whole(int(b.end+rounding)) - had - int(math.Ceil(b.fresh))
		if b.lost >= x.config.MinTokens && b.lost > worst.lost {
			worst, before = b, q
		}
	}
	if before != nil {
		x.blame(p, before, worst, worst.lost)
	}
}

// rounding absorbs floating-point errors.
const rounding = 1e-6

func (x *explainer) blame(p, before *prompt, b breach, tokens int) {
	g := group{p.r.Tenant, p.r.Model, b.cause, b.message, b.tool, b.role}
	if b.cause == Inserted || b.cause == Dropped { // wherever the sliding window is
		g.message, g.role = 0, ""
	}
	f := x.groups[g]
	if f == nil {
		f = &Finding{
			Tenant: p.r.Tenant, Model: p.r.Model, Cause: b.cause, Message: b.message, Tool: b.tool, Role: b.role, Offset: b.offset,
			Before: before.r, After: p.r,
		}
		f.Old, f.New = quote(before, p, b)
		x.groups[g] = f
		x.findings = append(x.findings, f)
	}
	f.Requests++
	f.Tokens += tokens
}

func (x *explainer) report() *Report {
	r := x.totals
	for _, f := range x.findings {
		f.Cost = float64(f.Tokens) / 1e6 * x.config.Price * (1 - x.config.CachedMultiplier)
		r.LostTokens += f.Tokens
		r.Findings = append(r.Findings, *f)
	}
	r.Cost = float64(r.LostTokens) / 1e6 * x.config.Price * (1 - x.config.CachedMultiplier)
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return &r
}
