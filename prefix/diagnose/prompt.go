package diagnose

import (
	"math"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix/internal/blockhash"
	"github.com/endpick/endpick/transport/recording"
)

// prompt is a request that an engine has answered.
type prompt struct {
	r     *recording.Request
	ready time.Time // by then, the prompt had been computed
	scope scope

	tools, messages []recording.Piece // none: not recorded
	scale           scale
	chains          []uint64 // of the messages up to each, including tools and scope
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
	switch {
	case r.TTFTMillis != nil:
		p.ready = after(r.Time, *r.TTFTMillis)
	case r.Status == endpick.Completed.String():
		p.ready = after(r.Time, r.E2EMillis)
	default:
		return nil
	}
	if r.Prompt != nil && !r.Prompt.Partial {
		p.tools, p.messages = r.Prompt.Tools, r.Prompt.Messages
	}
	p.scale = newScale(p)
	chain := uint64(len(p.tools))
	for _, h := range [...]recording.Hash{recording.NameHash(r.Model), recording.NameHash(r.Adapter), r.Tenant, r.Salt} {
		chain = blockhash.Mix(chain ^ uint64(h))
	}
	for i := range p.tools {
		chain = blockhash.Mix(chain ^ uint64(p.tools[i].Hash))
	}
	for i := range p.messages {
		chain = blockhash.Mix(chain ^ uint64(p.messages[i].Hash))
		p.chains = append(p.chains, chain)
	}
	return p
}

func after(t time.Time, millis float64) time.Time {
	return t.Add(time.Duration(min(millis, 1e9) * float64(time.Millisecond)))
}

// What chat templates add to a message, in tokens: two and the role at its start, one
// at its end. The last start is that of the answer.
const (
	headTokens = 2
	endTokens  = 1
	answerRole = "assistant"
)

// scale converts places in a prompt into tokens, so that the whole is as long as
// the engine says.
type scale struct {
	perByte float64
	chat    bool
}

func roleTokens(role string) float64 { return float64((len(role) + 3) / 4) }

func newScale(p *prompt) scale {
	bytes, around := 0, 0.0
	s := scale{chat: len(p.tools) > 0}
	for i := range p.messages {
		bytes += p.messages[i].Bytes
		s.chat = s.chat || p.messages[i].Role != ""
		around += headTokens + endTokens + roleTokens(p.messages[i].Role)
	}
	around += headTokens + roleTokens(answerRole)
	for i := range p.tools {
		bytes += p.tools[i].Bytes + 1 // with a comma or a bracket
	}
	if len(p.tools) > 0 {
		bytes++
		around += headTokens
	}
	if !s.chat {
		around = 0
	}
	if bytes > 0 {
		s.perByte = max(float64(p.r.InputTokens)-around, 0) / float64(bytes)
	}
	return s
}

// toolTokens is the length of the first n tools.
func (p *prompt) toolTokens(n int) float64 {
	if len(p.tools) == 0 {
		return 0
	}
	bytes := 1
	for i := range n {
		bytes += p.tools[i].Bytes + 1
	}
	around := 1.0
	if n == len(p.tools) {
		around = headTokens
	}
	return around + p.scale.perByte*float64(bytes)
}

// pieceTokens is the length of a message.
func (p *prompt) pieceTokens(i int) float64 {
	m := &p.messages[i]
	n := p.scale.perByte * float64(m.Bytes)
	if p.scale.chat {
		n += headTokens + endTokens + roleTokens(m.Role)
	}
	return n
}

// tokensAt is the length of the prompt up to a byte of a message's text or, if
// offset is negative, up to the message itself or the answer after the last one.
func (p *prompt) tokensAt(message, offset int) float64 {
	n := p.toolTokens(len(p.tools))
	for i := range message {
		n += p.pieceTokens(i)
	}
	if offset < 0 {
		return n
	}
	m := &p.messages[message]
	if p.scale.chat {
		n += headTokens + roleTokens(m.Role)
	}
	return n + p.scale.perByte*float64(min(offset, m.Bytes))
}

// blockBytes is the length of a block of text: see prefix.BlockBytes.
const blockBytes = 64

// fieldBytes are the bytes around a message's role and text where it is cut into
// blocks.
const fieldBytes = 4

// place is the message and the byte in its text where so many blocks end; a negative
// offset is before the text.
func (p *prompt) place(blocks int) (message, offset int) {
	at := blocks * blockBytes
	start := 0
	if n := len(p.tools); n > 0 {
		start = p.tools[n-1].End
	}
	for i := range p.messages {
		m := &p.messages[i]
		if at < m.End {
			around := 0
			if p.scale.chat {
				around = fieldBytes + len(m.Role)
			}
			offset = at - start - around
			// Texts in JSON are cut with their escapes, but offsets are without.
			if inside := m.End - start - around; inside > m.Bytes && offset > 0 {
				offset = int(int64(offset) * int64(m.Bytes) / int64(inside))
			}
			return i, min(offset, m.Bytes)
		}
		start = m.End
	}
	return len(p.messages), -1
}

// blockTokens is how many tokens so many blocks stand for.
func (p *prompt) blockTokens(blocks int) int {
	if blocks == 0 {
		return 0
	}
	if len(p.messages) == 0 {
		return int(math.Min(float64(blocks)*p.r.BlockTokens+rounding, float64(p.r.InputTokens)))
	}
	if n := len(p.tools); n > 0 && blocks*blockBytes < p.tools[n-1].End {
		return int(p.toolTokens(n) * float64(blocks*blockBytes) / float64(p.tools[n-1].End))
	}
	return int(p.tokensAt(p.place(blocks)) + rounding)
}
