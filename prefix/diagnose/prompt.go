package diagnose

import (
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/recording"
)

// prompt is a request that an engine has answered.
type prompt struct {
	r     *recording.Request
	ready time.Time // by then, after it arrived, the prompt had been computed
	scope scope

	tools, messages, all []recording.Piece // none: not recorded
}

// scope is what must be equal for blocks to be shared.
type scope struct {
	model, adapter string
	tenant, salt   recording.Hash
}

// newPrompt returns nil for a request that left nothing in a cache.
func newPrompt(r *recording.Request) *prompt {
	if r.InputTokens < 1 || r.Endpoint == "" || r.HTTP >= 400 || len(r.Blocks) == 0 && r.Prompt == nil {
		return nil
	}
	p := &prompt{r: r, scope: scope{r.Model, r.Adapter, r.Tenant, r.Salt}}
	took := r.E2EMillis
	if r.TTFTMillis != nil {
		took = *r.TTFTMillis
	} else if r.Status != endpick.Completed.String() {
		return nil
	}
	p.ready = r.Time.Add(max(time.Duration(min(took, 1e9)*float64(time.Millisecond)), 1))
	if r.Prompt != nil && !r.Prompt.Partial {
		p.tools, p.messages = r.Prompt.Tools, r.Prompt.Messages
		p.all = slices.Concat(p.tools, p.messages)
	}
	return p
}

// start is where a message begins in the text that blocks are cut from, or that text ends.
func (p *prompt) start(message int) int {
	if at := len(p.tools) + message; at > 0 {
		return p.all[at-1].End
	}
	return 0
}

// tokens is how many tokens the first bytes of that text stand for, in proportion.
func (p *prompt) tokens(bytes int) float64 {
	all := p.start(len(p.messages))
	return float64(p.r.InputTokens) * float64(min(bytes, all)) / float64(max(all, 1))
}

// blockTokens is how many tokens the first blocks stand for.
func (p *prompt) blockTokens(blocks int) float64 {
	if p.start(len(p.messages))/prefix.BlockBytes != len(p.r.Blocks) { // not cut from that text
		return min(float64(blocks)*p.r.BlockTokens, float64(p.r.InputTokens))
	}
	return p.tokens(blocks * prefix.BlockBytes)
}

// offsetOf is the byte in a message's text where so many blocks end, or nearly: blocks are cut
// from text with its escapes, and with the role.
func (p *prompt) offsetOf(message, blocks int) int {
	m, from := &p.messages[message], p.start(message)
	into := float64(blocks*prefix.BlockBytes-from) / float64(max(m.End-from, 1))
	return int(float64(m.Bytes) * min(max(into, 0), 1))
}
