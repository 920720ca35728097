package diagnose

import (
	"time"

	"github.com/endpick/endpick/transport/recording"
)

// history indexes earlier prompts.
type history struct {
	blocks map[recording.Hash]places // prompts that hold a block and everything before it
	wholes map[uint64]places         // prompts that consist of exactly these messages

	// Prompts that one may continue, or that were made from the same template: the
	// newest few of each.
	firsts, templates, lasts, sessions map[recording.Hash][]*prompt
	recent                             map[scope][]*prompt // without the salt
}

func (h *history) init() {
	h.blocks, h.wholes = map[recording.Hash]places{}, map[uint64]places{}
	h.firsts, h.templates, h.lasts = map[recording.Hash][]*prompt{}, map[recording.Hash][]*prompt{}, map[recording.Hash][]*prompt{}
	h.sessions, h.recent = map[recording.Hash][]*prompt{}, map[scope][]*prompt{}
}

// places are where a head was computed, each server once.
type places []place

type place struct {
	first, last *prompt // by the time when they were ready
}

// maxPlaces limits the servers that are distinguished for one head.
const maxPlaces = 64

func (ps places) add(p *prompt) places {
	for i := range ps {
		if ps[i].first.r.Endpoint != p.r.Endpoint {
			continue
		}
		if p.ready.Before(ps[i].first.ready) {
			ps[i].first = p
		}
		if p.ready.After(ps[i].last.ready) {
			ps[i].last = p
		}
		return ps
	}
	if len(ps) == maxPlaces {
		return ps
	}
	return append(ps, place{p, p})
}

// find returns a prompt that was ready then and has been used since, on the given
// server or, if endpoint is empty, on any; nil if there is none.
func (ps places) find(then, since time.Time, endpoint string) *prompt {
	for _, at := range ps {
		if (endpoint == "" || at.first.r.Endpoint == endpoint) && !at.first.ready.After(then) && !at.last.ready.Before(since) {
			if at.last.ready.After(then) {
				return at.first
			}
			return at.last
		}
	}
	return nil
}

// found is how much of a prompt some server has computed before, and for whom.
type found struct {
	tokens int
	by     *prompt
}

// held is how much of a prompt was computed anywhere, and by the server that the
// prompt went to.
func (h *history) held(p *prompt, since time.Time) (anywhere, here found) {
	for _, f := range [...]struct {
		dst      *found
		endpoint string
	}{{&anywhere, ""}, {&here, p.r.Endpoint}} {
		blocks := 0
		for _, b := range p.r.Blocks {
			q := h.blocks[b].find(p.r.Time, since, f.endpoint)
			if q == nil {
				break
			}
			blocks++
			f.dst.by = q
		}
		f.dst.tokens = p.blockTokens(blocks)
		for i := range p.chains {
			if q := h.wholes[p.chains[i]].find(p.r.Time, since, f.endpoint); q != nil {
				if tokens := int(q.reach(p, i+1) + rounding); tokens >= f.dst.tokens-defaultGrain {
					*f.dst = found{tokens, q}
				}
			}
		}
	}
	return anywhere, here
}

// reach is how much of p the server of q has computed, if q is the first n messages of p: the
// tokens of q and, if its answer comes next, those of the answer but the last.
func (q *prompt) reach(p *prompt, n int) float64 {
	tokens := float64(q.r.InputTokens)
	if n >= len(p.messages) || p.messages[n].Role != answerRole || q.r.Estimated {
		return tokens
	}
	said := p.scale.perByte * float64(p.messages[n].Bytes)
	answer := float64(q.r.OutputTokens)
	if more := answer - said; more > 8+answer/5 || more < -8-answer/5 {
		return tokens // other words, or reasoning that was left out
	}
	return tokens + answer - 1 // the last one was never computed
}

// newest is how many prompts are kept per key.
const newest = 16

func keep[K comparable](m map[K][]*prompt, key K, p *prompt) {
	all := m[key]
	if len(all) == newest {
		copy(all, all[1:])
		all = all[:newest-1]
	}
	m[key] = append(all, p)
}

// add adds a prompt.
func (h *history) add(p *prompt) {
	for _, b := range p.r.Blocks {
		h.blocks[b] = h.blocks[b].add(p)
	}
	if p.r.Session != 0 {
		keep(h.sessions, p.r.Session, p)
	}
	n := len(p.messages)
	if n == 0 {
		return
	}
	h.wholes[p.chains[n-1]] = h.wholes[p.chains[n-1]].add(p)
	keep(h.firsts, p.messages[0].Hash, p)
	keep(h.templates, p.messages[0].Template, p)
	keep(h.lasts, p.messages[n-1].Hash, p)
	keep(h.recent, p.client(), p)
}

// client is who sent it, and for which model.
func (p *prompt) client() scope {
	return scope{model: p.scope.model, adapter: p.scope.adapter, tenant: p.scope.tenant}
}

// lookBack is how many of a prompt's last messages may be new since the previous
// one: tool calls and their results are messages of their own.
const lookBack = 8

// candidates are prompts that were ready when p came and that p may have been meant
// to share a head with.
func (h *history) candidates(p *prompt, since time.Time) (all []*prompt) {
	if len(p.messages) == 0 {
		return nil
	}
	seen := map[*prompt]bool{}
	add := func(prompts []*prompt) {
		for i := len(prompts) - 1; i >= 0; i-- {
			q := prompts[i]
			if !seen[q] && !q.ready.After(p.r.Time) && !q.ready.Before(since) && len(q.messages) > 0 {
				seen[q] = true
				all = append(all, q)
			}
		}
	}
	for i := len(p.messages) - 1; i >= max(0, len(p.messages)-lookBack); i-- {
		add(h.lasts[p.messages[i].Hash])
	}
	if p.r.Session != 0 {
		add(h.sessions[p.r.Session])
	}
	add(h.firsts[p.messages[0].Hash])
	add(h.templates[p.messages[0].Template])
	add(h.recent[p.client()])
	return all
}
