package engine

import (
	"math"
	"slices"
)

// run does everything that is due by until (exactly at until only if inclusive).
func (e *Engine) run(until picos, inclusive bool) {
	due := func(at picos) bool { return at < until || inclusive && at == until }
	for {
		switch {
		case e.phase == ready && due(e.at):
			e.begin()
		case e.phase == busy && due(e.at+e.span(e.steps)):
			e.finish()
		default:
			if e.phase == busy {
				e.pass(e.stepsBy(until-e.at, inclusive))
			}
			return
		}
	}
}

// begin composes the batch of the next step.
func (e *Engine) begin() {
	e.prefills, e.stalled = e.prefills[:0], false
	preempted := false
	if e.cfg.PrefillFirst {
		preempted = e.addChunks(int64(e.cfg.MaxBatchedTokens), false)
		e.stalled = len(e.prefills) > 0
	}
	decodes, context := int64(0), int64(0)
	if !e.stalled {
		preempted = e.growDecodes() || preempted
		decodes, context = int64(e.decoding.Len()), e.context
		if !e.cfg.PrefillFirst {
			preempted = e.addChunks(int64(e.cfg.MaxBatchedTokens)-decodes, preempted)
		}
	}

	tokens, pairs := decodes, int64(0)
	for _, s := range e.prefills {
		tokens += s.chunk
		pairs += chunkPairs(s.computed, s.chunk)
	}
	e.phase, e.steps, e.slope = busy, 1, 0
	e.first = e.costs.step(tokens, decodes+int64(len(e.prefills)), context, pairs)
	e.cache.log.date(e.at + e.first)
	switch {
	case len(e.prefills) > 0:
		own := e.first
		if decodes > 0 {
			own -= e.costs.step(decodes, decodes, context, 0)
		}
		e.totals.prefillBusy += own
	case !preempted && decodes > 0:
		// Nothing changes before the first completion or the last free block: waiting
		// requests don't fit now, and decoding frees no blocks.
		e.slope = e.costs.context * picos(decodes)
		next, _ := e.decoding.Min()
		e.steps = min(next.finish-e.step, 1+e.stepsWithin(e.cache.available()))
	}
}

// addChunks adds prompt chunks to the batch, of the sequence between two chunks and of
// waiting ones, and reports whether a sequence has been preempted, now or before.
func (e *Engine) addChunks(budget int64, preempted bool) bool {
	if s := e.partial; s != nil {
		e.partial = nil
		if chunk := min(s.target-s.computed, budget); e.grow(s, chunk) {
			budget -= chunk
		} else {
			e.preempt(s)
			preempted = true
		}
	}
	for !preempted && budget > 0 && len(e.waiting) > 0 && len(e.running) < e.cfg.MaxSequences {
		chunk := e.admit(e.waiting[0], budget)
		if chunk == 0 {
			break
		}
		budget -= chunk
	}
	return preempted
}

// growDecodes allocates the blocks that decoding sequences need for one more
// token each, and reports whether a sequence was preempted for that.
func (e *Engine) growDecodes() (preempted bool) {
	defer func() { e.allocated = e.step + 1 }()
	if need := e.blocksBetween(e.step, e.step+1); need <= e.cache.available() {
		e.cache.take(need)
		return false
	}
	size := int64(e.cfg.BlockTokens)
	for i := 0; i < len(e.running) && e.running[i].state == decoding; i++ {
		s := e.running[i]
		if (s.computed+e.step-s.joined)%size != 0 {
			continue
		}
		for e.cache.available() == 0 {
			last := e.running[len(e.running)-1]
			e.preempt(last)
			if last == s {
				return true
			}
			preempted = true
		}
		e.cache.take(1)
	}
	return preempted
}

// grow gives a running sequence the blocks for chunk more tokens of its prompt
// and adds the chunk to the batch; false if there are not enough blocks.
func (e *Engine) grow(s *sequence, chunk int64) bool {
	tokens := s.computed + chunk
	need := e.blocksOf(tokens) - int64(s.cached) - s.private
	if need > e.cache.available() {
		return false
	}
	e.cache.take(need)
	s.private += need
	e.cache.register(s, int(tokens/int64(e.cfg.BlockTokens)))
	s.chunk = chunk
	e.prefills = append(e.prefills, s)
	return true
}

// admit admits the sequence at the head of the queue if its next chunk fits,
// and returns the length of that chunk.
func (e *Engine) admit(s *sequence, budget int64) int64 {
	size := int64(e.cfg.BlockTokens)
	// The last token is always computed, because its logits give the next token.
	limit := int(min(int64(len(s.hashes)), (s.target-1)/size))
	cached, idle := e.cache.peek(s.hashes[:limit])
	chunk := min(s.target-cached*size, budget)
	if e.blocksOf(cached*size+chunk)-cached > e.cache.available()-idle {
		return 0
	}
	e.waiting = e.waiting[1:]
	e.running = append(e.running, s)
	s.state, s.order = prefilling, e.admitted
	e.admitted++
	e.cache.walk(s, limit)
	s.computed = cached * size
	if !s.seen {
		s.seen, s.hit = true, s.computed
		e.totals.PrefixQueryTokens += s.prompt
		e.totals.PrefixHitTokens += s.computed
	}
	e.grow(s, chunk)
	return chunk
}

// preempt preempts a sequence. It starts over, with its output as part of the
// prompt, from what is still cached then.
func (e *Engine) preempt(s *sequence) {
	e.leave(s)
	e.running = without(e.running, s)
	e.waiting = slices.Insert(e.waiting, 0, s)
	e.totals.Preemptions++
	e.emit(Preempted, s, e.at.up())
}

// leave removes a sequence from the batch and releases its blocks.
func (e *Engine) leave(s *sequence) {
	if s.state == decoding {
		e.decoding.Delete(s)
		e.residues[e.residue(s)]--
		s.produced += e.step - s.joined
		s.computed += e.step - s.joined
		e.context -= s.computed
		s.private = e.blocksOf(s.computed+e.allocated-e.step) - int64(s.cached)
		e.cache.register(s, int(s.computed/int64(e.cfg.BlockTokens)))
	} else if e.partial == s {
		e.partial = nil
	}
	e.cache.release(s)
	s.state, s.computed, s.chunk = waiting, 0, 0
	s.target = s.prompt + s.produced
}

// finish ends the current batch.
func (e *Engine) finish() {
	e.pass(e.steps)
	at := e.at.up()
	for next, ok := e.decoding.Min(); ok && next.finish == e.step; next, ok = e.decoding.Min() {
		e.complete(next)
	}
	for _, s := range e.prefills {
		s.computed += s.chunk
		e.totals.PrefillTokens += s.chunk
		s.chunk = 0
		if s.computed < s.target {
			e.partial = s
			continue
		}
		e.join(s)
		if s.produced == 1 {
			e.emit(FirstToken, s, at)
		}
		if s.finish == e.step {
			e.complete(s)
		}
	}
	e.prefills = e.prefills[:0]
	e.cache.log.date(e.at)
	e.phase = ready
	if len(e.sequences) == 0 {
		e.phase = idle
	}
}

// join starts decoding a sequence whose prompt is complete; its next token has
// been generated.
func (e *Engine) join(s *sequence) {
	s.produced++
	e.totals.OutputTokens++
	s.state, s.joined = decoding, e.step
	s.finish = e.step + s.output - s.produced
	e.context += s.computed
	e.residues[e.residue(s)]++
	e.decoding.ReplaceOrInsert(s)
}

func (e *Engine) complete(s *sequence) {
	e.leave(s)
	e.running = without(e.running, s)
	e.emit(Completed, s, e.at.up())
	e.totals.Completed++
	e.drop(s)
}

func (e *Engine) drop(s *sequence) {
	e.cache.release(s)
	delete(e.sequences, s.id)
}

// pass completes n steps of the current batch.
func (e *Engine) pass(n int64) {
	if n == 0 {
		return
	}
	decodes := int64(e.decoding.Len())
	span := e.span(n)
	e.at += span
	e.first += e.slope * picos(n)
	e.steps -= n
	e.totals.busy += span
	if e.stalled {
		return
	}
	e.step += n
	e.context += n * decodes
	e.totals.OutputTokens += n * decodes
	allocated := e.step
	if e.steps > 0 {
		allocated++ // the next one is running
	}
	e.cache.take(e.blocksBetween(e.allocated, allocated))
	e.cache.log.date(e.at)
	e.allocated = allocated
}

// span is the time of the next n steps of the current batch.
func (e *Engine) span(n int64) picos { return e.first*picos(n) + e.slope*picos(n*(n-1)/2) }

// stepsBy is the number of steps of the current batch, without the last, that
// end within a time (exactly at its end only if inclusive).
func (e *Engine) stepsBy(within picos, inclusive bool) int64 {
	if !inclusive {
		within--
	}
	last := e.steps - 1
	if last <= 0 || within < e.first {
		return 0
	}
	// n·first + slope·n(n−1)/2 = within, solved without cancellation, then made exact.
	b := float64(e.first) - float64(e.slope)/2
	n := 2 * float64(within) / (b + math.Sqrt(b*b+2*float64(e.slope)*float64(within)))
	steps := min(int64(n), last)
	for steps < last && e.span(steps+1) <= within {
		steps++
	}
	for e.span(steps) > within {
		steps--
	}
	return steps
}

// blocksBetween is the number of blocks that decoding sequences need in the
// decode steps from ≤ step < to.
func (e *Engine) blocksBetween(from, to int64) int64 {
	size := int64(e.cfg.BlockTokens)
	n := (to - from) / size * int64(e.decoding.Len())
	for step := to - (to-from)%size; step < to; step++ {
		n += e.residues[step%size]
	}
	return n
}

// stepsWithin is the number of decode steps after the allocated ones for which
// so many blocks suffice.
func (e *Engine) stepsWithin(blocks int64) int64 {
	size, decodes := int64(e.cfg.BlockTokens), int64(e.decoding.Len())
	n := blocks / decodes * size
	blocks %= decodes
	for {
		blocks -= e.residues[(e.allocated+n)%size]
		if blocks < 0 {
			return n
		}
		n++
	}
}

// residue is the remainder, by the block size, of the decode steps in which a
// sequence's token goes to a new block. Steps start at zero, so it is not
// negative.
func (e *Engine) residue(s *sequence) int64 {
	size := int64(e.cfg.BlockTokens)
	return ((s.joined-s.computed)%size + size) % size
}

func (e *Engine) blocksOf(tokens int64) int64 {
	size := int64(e.cfg.BlockTokens)
	return (tokens + size - 1) / size
}

func (e *Engine) produced(s *sequence) int64 {
	if s.state == decoding {
		return s.produced + e.step - s.joined
	}
	return s.produced
}
