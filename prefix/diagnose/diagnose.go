package diagnose

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/endpick/endpick/internal/check"
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
	// BlockTokens returns how many tokens a block of an endpoint's cache has: engines find whole
	// blocks only (vLLM's have 128 tokens on CPUs). Nil, or less than 16: 16.
	BlockTokens func(endpoint string) int
}

func (c *Config) validate() error {
	switch {
	case !(c.Price >= 0) || math.IsInf(c.Price, 1):
		return check.Bad("diagnose.Config.Price", "is negative or not finite")
	case !(c.CachedMultiplier >= 0 && c.CachedMultiplier <= 1):
		return check.Bad("diagnose.Config.CachedMultiplier", "is not within 0 and 1")
	}
	return cmp.Or(
		check.Default("diagnose.Config.Window", &c.Window, time.Hour),
		check.Default("diagnose.Config.MinTokens", &c.MinTokens, 32),
	)
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
	history := history{map[recording.Hash][]*prompt{}, map[clue][]*prompt{}}
	x := &explainer{config: config, history: history, groups: map[Finding]int{}}
	var arriving []*prompt
	for _, r := range requests {
		if p := newPrompt(r); p != nil {
			arriving = append(arriving, p)
		}
	}
	slices.SortStableFunc(arriving, func(a, b *prompt) int { return a.r.Time.Compare(b.r.Time) })
	computed := slices.Clone(arriving)
	slices.SortStableFunc(computed, func(a, b *prompt) int { return a.ready.Compare(b.ready) })
	for _, p := range arriving {
		for !computed[0].ready.After(p.r.Time) { // p itself is ready later
			x.history.add(computed[0])
			computed = computed[1:]
		}
		x.explain(p)
	}
	slices.SortStableFunc(x.report.Findings, func(a, b Finding) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return &x.report, nil
}

// blockTokens is the usual length of the blocks of engines' caches.
const blockTokens = 16

type explainer struct {
	config  Config
	history history
	report  Report
	groups  map[Finding]int // indexes of findings, by what they are about
}

// explain finds what has kept a prompt from the cache, if anything has.
func (x *explainer) explain(p *prompt) {
	x.report.Requests++
	x.report.InputTokens += p.r.InputTokens
	grain := blockTokens
	if f := x.config.BlockTokens; f != nil {
		grain = max(grain, f(p.r.Endpoint))
	}
	// An engine can find whole blocks of a prompt, without its last token.
	whole := func(tokens float64) int { return max(min(int(tokens), p.r.InputTokens-1), 0) / grain * grain }
	since := p.r.Time.Add(-x.config.Window)
	here := x.history.held(p, since, p.r.Endpoint)
	anywhere := x.history.held(p, since, "")
	had := whole(here.tokens) // if the engine does not say
	if p.r.CachedTokens != nil {
		had = *p.r.CachedTokens
		x.report.CachedTokens += had
	} else {
		x.report.Silent++
	}
	// What should be cached is an estimate: less than an eighth of it missing says nothing, nor does
	// one block.
	if lost := whole(here.tokens) - had; lost >= max(x.config.MinTokens, whole(here.tokens)/8, grain+1) {
		x.blame(p, here.by, elsewhere(Evicted), lost)
	}
	had = max(had, whole(here.tokens))
	if lost := whole(anywhere.tokens) - had; lost >= x.config.MinTokens {
		x.blame(p, anywhere.by, elsewhere(OtherServer), lost)
	}
	had = max(had, whole(p.blockTokens(anywhere.blocks)))
	var worst breach
	var before *prompt
	most := x.config.MinTokens - 1
	for _, q := range x.history.candidates(p, since) {
		b, ok := compare(q, p)
		if lost := whole(b.end) - had - int(math.Ceil(b.fresh)); ok && lost > most {
			worst, before, most = b, q, lost
		}
	}
	if before != nil {
		x.blame(p, before, worst.Finding, most)
	}
}

// blame adds a loss to the finding that it belongs to.
func (x *explainer) blame(p, before *prompt, f Finding, tokens int) {
	f.Tenant, f.Model = p.r.Tenant, p.r.Model
	about := f
	if about.Offset = 0; f.Cause == Inserted || f.Cause == Dropped { // wherever the window is
		about.Message, about.Role = 0, ""
	}
	i, known := x.groups[about]
	if !known {
		i = len(x.report.Findings)
		x.groups[about] = i
		f.Before, f.After = before.r, p.r
		if n := f.Message; f.Cause <= Dropped && f.Offset >= 0 && n < len(before.messages) && before.messages[n].Text != "" {
			f.Old, f.New = quote(before.messages[n].Text, &f), quote(p.messages[n].Text, &f)
		}
		x.report.Findings = append(x.report.Findings, f)
	}
	cost := float64(tokens) / 1e6 * x.config.Price * (1 - x.config.CachedMultiplier)
	at := &x.report.Findings[i]
	at.Requests, at.Tokens, at.Cost = at.Requests+1, at.Tokens+tokens, at.Cost+cost
	x.report.LostTokens, x.report.Cost = x.report.LostTokens+tokens, x.report.Cost+cost
}
