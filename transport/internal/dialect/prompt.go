package dialect

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// mediaTokens is the assumed cost of an image, or another part that is not
// text: about an image of 900 × 900 pixels in patches of 28 × 28.
const mediaTokens = 1024

// readPrompt sets the length and the blocks of the prompt unless the host has. It
// returns the bytes of text from which the length was estimated: 0 if it is
// exact, or includes more than text. A prompt of unknown form has the length of the body. The
// error is that of ctx, or an [endpick.RequestError].
func (c *request) readPrompt(ctx context.Context, req *endpick.Request, scope prefix.Scope, learned rates) (int, error) {
	p := promptReader{ctx: ctx, request: c, known: req.InputTokens > 0 || len(req.Blocks) > 0, seed: scope.Seed()}
	c.unread = c.api.prompt == nil || !c.api.prompt(&p)
	// Malformed prompts are read as far as possible; the engine will refuse them.
	if err := cmp.Or(c.failed, ctx.Err()); err != nil {
		return 0, err
	}
	if !c.unread && !p.known && c.api.whole != nil && !p.rough && c.responses() == 1 {
		h := p.h.Fork() // a copy, because the reader refers to the body
		c.hasher = &h
	}
	if n := c.responses(); n > 1 && c.api.event != nil {
		req.Responses = n
	}
	if req.Session == "" && p.head != 0 {
		req.Session = "head-" + strconv.FormatUint(p.head, 16)
	}
	req.Context = cmp.Or(req.Context, c.context)
	req.ExpectedOutputTokens = cmp.Or(req.ExpectedOutputTokens, c.expectedOutput(learned))
	perByte := learned.prompts.perByte()
	switch {
	case p.known:
		return 0, nil
	case c.unread:
		// Without blocks no endpoint looks nearer than another; a length keeps
		// policies that weigh tokens from taking the request as free.
		req.InputTokens = max(toTokens(len(c.body), perByte), 1)
		return 0, nil
	case p.tokens > 0:
		req.InputTokens, req.Exact = p.tokens, true
		req.Blocks, req.BlockTokens = p.blocks, prefix.BlockTokens
		return 0, nil
	}
	req.InputTokens = max(toTokens(p.size, perByte)+p.media*mediaTokens, 1)
	req.Blocks, req.BlockTokens = p.blocks, prefix.BlockBytes*perByte
	if p.media > 0 || p.rough {
		return 0, nil
	}
	return p.size, nil
}

func toTokens(bytes int, perByte float64) int { return int(math.Round(float64(bytes) * perByte)) }

// promptReader hashes a prompt while it reads it: no more than one message of it
// is in memory.
type promptReader struct {
	ctx context.Context
	*request
	known bool // the host has set length and blocks: nothing needs hashing
	seed  prefix.Seed

	h     prefix.Hasher
	media int    // parts that are not text
	head  uint64 // identifies everything up to the first message from a user; 0: none

	m     prefix.Message // reused memory
	texts []byte         // likewise, of texts that are not in the body as they are to be hashed

	blocks []uint64
	size   int // bytes of text
	tokens int // if the client sends token ids
	// rough says that the length is a guess not based on bytes of text, from which
	// nothing can be learned.
	rough bool
}

// shortest is the content of a string value in its shortest JSON encoding, which nearly all
// bodies use. Texts are hashed in this form, because decoding would cost more than hashing. It
// shares memory with the value, or with texts.
func (p *promptReader) shortest(v []byte) string {
	s := inQuotes(v)
	if isShortest(s) {
		return viewString(s)
	}
	n := len(p.texts)
	p.texts = appendShortest(p.texts, s)
	return viewString(p.texts[n:])
}

// next goes to the next element of a list, unless there were too many or the client has left.
func (p *promptReader) next(c *cursor) bool {
	if p.failed != nil || !c.element() {
		return false
	}
	switch p.items--; {
	case p.items < 0:
		p.failed = tooManyItems
	case p.items%64 == 0:
		p.failed = p.ctx.Err()
	}
	return p.failed == nil
}

// begin starts a conversation with its tools.
func (p *promptReader) begin() {
	const room = 1 << 15 // not for a picture of many megabytes, which is one block
	p.h.Reset(p.seed, make([]uint64, 0, min(len(p.parts[messagesPart])/prefix.BlockBytes+1, room)))
	for c := elementsOf(p.parts[toolsPart]); p.next(&c); {
		definition := viewString(c.value())
		p.h.WriteTool(definition)
		if p.sketcher != nil {
			p.sketcher.Tool(definition, p.h.Len())
		}
	}
}

// message is a new message, in memory that is reused.
func (p *promptReader) message(role string) *prefix.Message {
	p.m = prefix.Message{Role: role, Parts: p.m.Parts[:0], ToolCalls: p.m.ToolCalls[:0]}
	return &p.m
}

// attribution begins a line, different in each request, that a coding agent puts before its
// instructions, and that engines drop.
const attribution = "x-anthropic-billing-header:"

// withoutAttribution removes that line from the texts of a message, which are as in JSON.
func withoutAttribution(m *prefix.Message) {
	for i := range m.Parts {
		if p := &m.Parts[i]; strings.HasPrefix(p.Content, attribution) {
			_, p.Content, _ = strings.Cut(p.Content, `\n`)
			if p.Content == "" {
				m.Parts = slices.Delete(m.Parts, i, i+1)
			}
			return
		}
	}
}

func (p *promptReader) write(m *prefix.Message) {
	if m.Role == "system" || m.Role == "developer" {
		withoutAttribution(m)
	}
	if len(m.ToolCalls) > 0 && len(m.Parts) == 1 && m.Parts[0] == (prefix.Part{}) {
		m.Parts = m.Parts[:0] // an empty text next to tool calls means the same as none
	}
	for i := range m.Parts {
		if m.Parts[i].Type != "" {
			p.media++
		}
	}
	p.h.WriteMessage(m)
	if p.sketcher != nil {
		p.sketcher.Message(m, p.h.Len())
	}
	if p.head == 0 && m.Role == "user" {
		p.head = headOf(p.h)
	}
}

// unquoted decodes the content of a string.
func unquoted(s string) string { return viewString(appendUnquoted(nil, []byte(s))) }

func (p *promptReader) end() { p.blocks, p.size = p.h.Blocks(), p.size+p.h.Len() }

// headOf is a hash of everything written, including a partial block. The copy
// is flushed, not the original.
func headOf(h prefix.Hasher) uint64 {
	var filler [prefix.BlockBytes]byte
	h.WriteString(viewString(filler[:]))
	b := h.Blocks()
	return b[len(b)-1]
}
