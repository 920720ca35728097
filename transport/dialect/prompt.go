package dialect

import (
	"context"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// mediaTokens is what an image, or another part that is no text, is taken to
// cost: about an image of 900 × 900 pixels in patches of 28 × 28.
const mediaTokens = 1024

// readPrompt fills in the length and the blocks of the prompt, as far as the host
// has not done so, and returns the bytes of text from which the length was
// guessed: 0 if it is exact, or includes more than text. A body that turns out to
// have no prompt becomes one of another API. The error is that of ctx, or an
// [endpick.RequestError].
func (c *call) readPrompt(ctx context.Context, req *endpick.Request, scope prefix.Scope, learned rates) (int, error) {
	p := promptReader{ctx: ctx, call: c, known: req.InputTokens > 0 || len(req.Blocks) > 0, seed: scope.Seed()}
	if c.api != other && !dialects[c.api].prompt(&p) {
		c.api, c.stream = other, false
	}
	if c.failed == malformed {
		c.failed = noFault // read as far as it goes; the engine will refuse it
	}
	if err := c.refused(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if req.ExpectedOutputTokens == 0 {
		req.ExpectedOutputTokens = c.expectedOutput(learned)
	}
	perByte := learned.prompt()
	switch {
	case p.known:
		return 0, nil
	case c.api == other:
		// Without blocks no endpoint looks nearer than another; a length keeps
		// policies that weigh tokens from taking the request for free.
		req.InputTokens = max(toTokens(len(c.body), perByte), 1)
		return 0, nil
	case p.tokens > 0:
		req.InputTokens, req.Blocks, req.BlockTokens = p.tokens, p.blocks, prefix.BlockTokens
		return 0, nil
	}
	req.InputTokens = max(toTokens(p.size, perByte)+p.media*mediaTokens, 1)
	req.Blocks, req.BlockTokens = p.blocks, prefix.BlockBytes*perByte
	if p.media > 0 {
		return 0, nil
	}
	return p.size, nil
}

// promptReader hashes a prompt while it reads it: never more than one message of
// it is in memory.
type promptReader struct {
	ctx context.Context
	*call
	known bool // to the host: nothing needs hashing
	seed  prefix.Seed

	blocks []uint64
	size   int // bytes of text
	tokens int // where the client gives token ids
	media  int // parts that are no text
}

// goOn reports whether there is still somebody to read for.
func (p *promptReader) goOn() bool { return p.ctx.Err() == nil }
