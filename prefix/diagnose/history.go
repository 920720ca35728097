package diagnose

import (
	"slices"
	"time"

	"github.com/endpick/endpick/transport/recording"
)

// history indexes prompts that have been computed.
type history struct {
	blocks map[recording.Hash][]*prompt // each server's newest with this block, and so with all before it
	like   map[clue][]*prompt           // the newest few, oldest first
}

// clue is something in common of prompts that may have been meant to share a head.
type clue struct {
	kind   string
	hash   recording.Hash
	client scope // without a salt
}

const (
	// maxHolders limits the servers that are distinguished for one block, and newest the
	// prompts that are remembered for one clue.
	maxHolders = 64
	newest     = 16
	// lookBack is how many of a prompt's last messages may be new since the previous
	// one: tool calls and their results are messages of their own.
	lookBack = 8
)

// clues are those by which a prompt is found: that it ends with one of so many last messages,
// begins like another, or comes from the same session or client.
func (p *prompt) clues(last int) (all []clue) {
	n := len(p.messages)
	if n == 0 {
		return nil
	}
	for i := n - 1; i >= max(0, n-last); i-- {
		all = append(all, clue{kind: "last message", hash: p.messages[i].Hash})
	}
	if p.r.Session != 0 {
		all = append(all, clue{kind: "session", hash: p.r.Session})
	}
	client := p.scope
	client.salt = 0
	return append(all, clue{kind: "first message", hash: p.messages[0].Hash},
		clue{kind: "template", hash: p.messages[0].Template}, clue{kind: "client", client: client})
}

// add adds a prompt that is computed later than all others.
func (h *history) add(p *prompt) {
	for _, b := range p.r.Blocks {
		all := h.blocks[b]
		if i := slices.IndexFunc(all, func(q *prompt) bool { return q.r.Endpoint == p.r.Endpoint }); i >= 0 {
			all[i] = p
		} else if len(all) < maxHolders {
			h.blocks[b] = append(all, p)
		}
	}
	for _, c := range p.clues(1) {
		all := h.like[c]
		if len(all) == newest {
			all = all[:copy(all, all[1:])]
		}
		h.like[c] = append(all, p)
	}
}

// holding is how much of the head of a prompt was computed before, and for whom.
type holding struct {
	blocks int
	tokens float64
	by     *prompt
}

// held is what a server, or any if endpoint is empty, has computed since.
func (h *history) held(p *prompt, since time.Time, endpoint string) (found holding) {
	for n, b := range p.r.Blocks {
		i := slices.IndexFunc(h.blocks[b], func(q *prompt) bool {
			return (endpoint == "" || q.r.Endpoint == endpoint) && !q.ready.Before(since)
		})
		if i < 0 {
			break
		}
		found.blocks, found.by = n+1, h.blocks[b][i]
	}
	switch n, by := found.blocks, found.by; {
	case by == nil:
	case n == len(by.r.Blocks):
		found.tokens = float64(by.r.InputTokens) // all of it, as the engine has counted
	default:
		found.tokens = min(p.blockTokens(n), by.blockTokens(n))
	}
	return found
}

// candidates are prompts computed since that p may have been meant to share a head with, each once.
func (h *history) candidates(p *prompt, since time.Time) (all []*prompt) {
	seen := map[*prompt]bool{}
	for _, c := range p.clues(lookBack) {
		for _, q := range slices.Backward(h.like[c]) {
			if !seen[q] && !q.ready.Before(since) {
				seen[q] = true
				all = append(all, q)
			}
		}
	}
	return all
}
