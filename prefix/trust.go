package prefix

import "github.com/endpick/endpick"

// trust is how many blocks an endpoint's engine is trusted to hold, from the cached tokens
// that it reports.
//
// Each report on an older match is a vote. An engine with room for R blocks that evicts
// the least recently used first has what was used within the last R blocks, and lacks what
// is older. So a match that was there says that R is above its age, the number of blocks
// used since or by requests under way. One that was not all there says that R is no more
// than that, and what prompts in prefill and responses needed besides: with M blocks
// missing at its end, the first of them had at most M fewer used after it. The capacity
// moves towards the one that contradicts the fewest of the last votes.
//
// Nobody should be able to move it alone, or at once:
//
//   - A tenant has a quorum of votes an epoch, that is while a sixteenth of the capacity is used.
//   - What was used within that time has none, because it says nothing about the room.
//   - A tenant who is alone in voting against the capacity, where others vote too, is not
//     believed: an engine that lacks room lacks it for all of them. Prompts that an engine
//     does not look up in its cache, because of other options of the request, say again
//     and again that nothing was there.
//   - The capacity falls by an eighth at most, once an epoch, and only if that settles a
//     quorum of votes. Then half of the votes are forgotten. Where the size of the engine's cache
//     is not known, the limit is a guess, rather too high than too low: there it falls by
//     a half at most.
//   - It rises again by a sixteenth of itself, without any vote, whenever as much as an
//     eighth of the limit was used and hardly a vote was against it; and at once where the
//     engine had more than was expected.
//
// A flush or a restart of the engine looks like too little room for a while: the capacity
// falls a few steps and rises again. An engine without a cache lacks everything old, and
// is trusted less and less.
//
// What is known only from a response may never have been there: engines need not keep what
// they generate, and templates drop reasoning. It has no vote until a prompt has included
// it.
type trust struct {
	learned int // blocks; 0: nothing learned
	unmoved int // blocks used since the capacity last changed
	lowered uint64
	votes   [32]vote // the last ones
	next    int      // where the next vote goes
	grain   grain
}

// vote is what a report says about the room of an engine.
type vote struct {
	kind   voteKind
	epoch  uint32
	age    int
	tenant uint64
}

type voteKind uint8

const (
	noVote voteKind = iota
	had             // room for more than its age
	lacked          // room for at most its age
	more            // more room than the capacity
)

const (
	quorum  = 3    // votes
	leastOf = 64   // the capacity never falls below this part of the limit
	slack   = 8    // blocks that may be missing, and an eighth of the match: lengths in text blocks are guesses
	grains  = 4096 // the largest grain in tokens; hybrid models are known to count in 544 and 1,056
)

// capacity is how many blocks may be held.
func (c *cache) capacity() int {
	if c.trust.learned > 0 {
		return min(c.trust.learned, c.size.blocks)
	}
	return c.size.blocks
}

// vote counts the vote of a request that the engine has computed. It has none if another
// request was still in the prefill of the matched blocks.
func (c *cache) vote(l *lease, req *endpick.Request, o *endpick.Outcome) {
	if !o.HasCachedTokens {
		return
	}
	tokens, capacity := float64(o.CachedTokens), c.capacity()
	grain := float64(c.trust.grain.after(o.CachedTokens))
	if o.InputTokens > 0 && req.InputTokens > 0 {
		// The prompt's length was a guess, and so was that of its head.
		scale := float64(req.InputTokens) / float64(o.InputTokens)
		tokens, grain = tokens*scale, grain*scale
	}
	if l.doubtful || l.matched > 0 && l.age-l.matched < capacity/16 {
		return
	}
	there := int(min(tokens/req.TokensPerBlock(), float64(l.length)))
	missing, most := l.proven-there, slack+l.proven/8
	v := vote{epoch: c.ages.newest, tenant: l.use.account.tenant.name}
	switch {
	case there-l.matched > most:
		v.kind = more
	case l.proven > 0 && missing <= most:
		v.kind, v.age = had, min(l.age, capacity-1)
	case l.proven > 0 && float64(missing-most) > grain/req.TokensPerBlock():
		v.kind, v.age = lacked, l.age+l.besides-(l.matched-there)
	}
	if v.kind != noVote && l.use.account.mayVote(v.epoch) {
		c.trust.votes[c.trust.next] = v
		c.trust.next = (c.trust.next + 1) % len(c.trust.votes)
	}
}

// mayVote reports whether an account has a vote left in this epoch, and counts it.
func (a *account) mayVote(epoch uint32) bool {
	if a.voted != epoch {
		a.voted, a.votes = epoch, 0
	}
	a.votes++
	return a.votes <= quorum
}

// review moves the capacity if the votes are for it. It is called once an epoch.
func (t *trust) review(c *cache) {
	for i, v := range t.votes {
		if c.ages.newest-v.epoch >= epochs {
			t.votes[i] = vote{}
		}
	}
	capacity := c.capacity()
	against, best := t.contradict(capacity), capacity
	fewest := against
	for _, v := range t.votes {
		if n := t.contradict(v.age); v.kind == lacked && v.age < best && n < fewest {
			best, fewest = v.age, n
		}
	}
	gain, raise := against-fewest, t.count(more)
	if t.alone(capacity) {
		gain, against = 0, 0
	}
	t.unmoved += max(capacity/16, 1)
	switch {
	case gain-raise >= quorum:
		slowest := capacity - capacity/8
		if !c.size.whole {
			slowest = capacity / 2
		}
		if next := max(best, slowest, c.size.blocks/leastOf, 1); next < capacity {
			t.learned = next
			t.lowered++
		}
	case t.learned > 0 && (raise-gain >= quorum || t.unmoved >= c.size.blocks/8 && against <= 1):
		if t.learned += max(t.learned/16, 1); t.learned >= c.size.blocks {
			t.learned = 0
		}
	default:
		return
	}
	t.unmoved = 0
	for i, v := range t.votes {
		if v.kind == more || i%2 == 0 {
			t.votes[i] = vote{}
		}
	}
}

// contradict returns how many votes are against a capacity.
func (t *trust) contradict(capacity int) (n int) {
	for _, v := range t.votes {
		if v.kind == lacked && v.age < capacity || v.kind == had && v.age >= capacity {
			n++
		}
	}
	return n
}

func (t *trust) count(kind voteKind) (n int) {
	for _, v := range t.votes {
		if v.kind == kind {
			n++
		}
	}
	return n
}

// alone reports whether only one tenant has voted against the capacity, and others have
// voted.
func (t *trust) alone(capacity int) bool {
	against, others := uint64(0), 0
	for _, v := range t.votes {
		if v.kind == lacked && v.age < capacity {
			against = v.tenant
		}
	}
	for _, v := range t.votes {
		if v.kind != noVote && v.tenant != against {
			if others++; v.kind == lacked && v.age < capacity {
				return false
			}
		}
	}
	return others >= quorum
}

// grain learns in what blocks an engine counts, in tokens: 16, hundreds for hybrid models,
// or single ones. What is missing within a grain is no vote. It is the greatest common
// divisor of recent reports.
type grain struct {
	tokens  int // 0: not known yet
	divisor int // of the reports since it was set
	reports int
}

// after takes another report into account and returns the grain, or 0 if it is not known.
func (g *grain) after(cached int) int {
	if cached > 0 {
		for n := cached; n != 0; {
			g.divisor, n = n, g.divisor%n
		}
		g.reports++
	}
	now := g.tokens
	if now == 0 {
		now = g.divisor
	}
	if g.reports == 16 {
		*g = grain{tokens: g.divisor}
	}
	if now > grains {
		return 0
	}
	return now
}
