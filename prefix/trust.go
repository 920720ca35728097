package prefix

import (
	"cmp"
	"math"

	"github.com/endpick/endpick"
)

// trust is how many blocks an endpoint's engine is trusted to hold, from the cached tokens
// that it reports.
//
// Each report on an older match is a vote. An engine with room for R blocks that evicts the
// least recently used first has what was used within the last R blocks, and lacks what is
// older. So a match that was there says that R is above its age, the number of blocks used
// since or by requests under way. One that was not says that R is no more than that, and
// what prompts in prefill and responses needed besides: with M blocks missing at its end,
// the first of them had at most M fewer used after it. The capacity moves towards the one
// that contradicts the fewest of the last 32 votes. Nobody can move it alone, or at once:
//
//   - A tenant has a quorum of votes in an epoch, while a sixteenth of the capacity is used.
//     What was used within that time has none, because it says nothing about the room.
//   - A tenant who is alone in voting against the capacity, where others vote too, is not
//     believed: an engine that lacks room lacks it for all of them. It may be that these
//     requests have options with which the engine does not look into its cache.
//   - The capacity falls once an epoch, by an eighth at most, and only if that settles a
//     quorum of votes, of which half are forgotten then. Where the size of the engine's cache
//     is not known, the limit is a guess, rather too high: it may fall by a half.
//   - It rises again by a sixteenth of itself, without any vote, whenever as much as an
//     eighth of the limit was used and hardly a vote was against it.
//
// So a flush or a restart of the engine, which looks like too little room for a while, is
// forgotten, and an engine without a cache is trusted less and less. What is known only from
// a response has no vote until a prompt has included it: engines need not keep what they
// generate, and templates drop reasoning.
type trust struct {
	learned int // blocks; 0: nothing learned
	unmoved int // blocks used since the capacity last changed
	lowered uint64
	votes   [32]vote
	next    int // where the next vote goes
	grain   grain
}

// vote is what a report says about the room of an engine.
type vote struct {
	kind   voteKind
	age    int
	epoch  uint32
	tenant uint64
}

type voteKind uint8

const (
	noVote voteKind = iota
	had             // room for more than its age
	lacked          // room for at most its age
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

// besides is how many blocks an engine needs that do not count as held.
func (c *cache) besides(at *endpick.Candidate, block float64) int {
	return c.pending + c.retained + int(min(float64(max(at.InFlight.OutputTokens, 0))/block, math.MaxInt32/4))
}

// vote counts the vote of a request that the engine has computed, if it has one.
func (c *cache) vote(l *lease, req *endpick.Request, o *endpick.Outcome) {
	if !o.HasCachedTokens {
		return
	}
	t, a, capacity := &c.trust, l.use.account, c.capacity()
	tokens, grain := float64(o.CachedTokens), float64(t.grain.after(o.CachedTokens))
	if o.InputTokens > 0 && req.InputTokens > 0 {
		// The prompt's length was a guess, and so was that of its head.
		scale := float64(req.InputTokens) / float64(o.InputTokens)
		tokens, grain = tokens*scale, grain*scale
	}
	// What was used last, or was still to be computed, says nothing about evictions.
	if l.matched > 0 && l.age-l.matched < capacity/16 {
		return
	}
	there := int(min(tokens/req.TokensPerBlock(), float64(l.length)))
	missing, most := l.proven-there, slack+l.proven/8
	v := vote{epoch: c.ages.newest, tenant: a.tenant.name}
	switch {
	case l.proven > 0 && missing <= most:
		v.kind, v.age = had, min(l.age, capacity-1)
	case l.proven > 0 && float64(missing-most) > grain/req.TokensPerBlock():
		v.kind, v.age = lacked, l.age+l.besides-(l.matched-there)
	default:
		return
	}
	if a.voted != v.epoch {
		a.voted, a.votes = v.epoch, 0
	}
	if a.votes++; a.votes <= quorum {
		t.votes[t.next] = v
		t.next = (t.next + 1) % len(t.votes)
	}
}

// review moves the capacity if the votes are for it. It is called once an epoch.
func (t *trust) review(c *cache) {
	for i, v := range t.votes {
		if c.ages.newest-v.epoch >= epochs {
			t.votes[i] = vote{}
		}
	}
	capacity := c.capacity()
	against, others := t.against(capacity)
	best, fewest := capacity, against
	for _, v := range t.votes {
		if n, _ := t.against(v.age); v.kind == lacked && v.age < capacity && n < fewest {
			best, fewest = v.age, n
		}
	}
	gain := against - fewest
	if others >= quorum {
		gain, against = 0, 0 // one tenant is alone against it
	}
	t.unmoved += max(capacity/16, 1)
	switch {
	case gain >= quorum:
		slowest := capacity / 2
		if c.size.whole {
			slowest = capacity - capacity/8
		}
		if next := max(best, slowest, c.size.blocks/leastOf, 1); next < capacity {
			t.learned = next
			t.lowered++
		}
	case t.learned > 0 && t.unmoved >= c.size.blocks/8 && against <= 1:
		if t.learned += max(t.learned/16, 1); t.learned >= c.size.blocks {
			t.learned = 0
		}
	default:
		return
	}
	t.unmoved = 0
	for i, v := range t.votes {
		if v.kind == had && v.age >= c.capacity() || i%2 == 0 {
			t.votes[i] = vote{}
		}
	}
}

// against returns how many votes contradict a capacity. If all of them are one tenant's, it
// also returns how many others have voted otherwise.
func (t *trust) against(capacity int) (votes, others int) {
	tenant, several := uint64(0), false
	for _, v := range t.votes {
		if v.kind == lacked && v.age < capacity || v.kind == had && v.age >= capacity {
			several = several || votes > 0 && v.tenant != tenant
			votes, tenant = votes+1, v.tenant
		}
	}
	for _, v := range t.votes {
		if !several && v.kind != noVote && v.tenant != tenant {
			others++
		}
	}
	return votes, others
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
	now := cmp.Or(g.tokens, g.divisor)
	if g.reports == 16 {
		*g = grain{tokens: g.divisor}
	}
	if now > grains {
		return 0
	}
	return now
}
