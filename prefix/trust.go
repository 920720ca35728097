package prefix

import "github.com/endpick/endpick"

// trust is how many blocks an endpoint's engine is trusted to hold, from the
// cached tokens that it reports.
//
// Each report on an older match is a vote. An engine with room for R blocks that
// evicts the least recently used first has what was used within the last R
// blocks, and lacks what is older. So a match that was there votes for as much
// room as its age, the number of blocks used since or by requests under way; one
// that was not all there votes against as much, and what prompts in prefill and
// responses needed besides: with M blocks missing at its end, the first of them had
// at most M fewer used after it. Votes are kept by age, in sixteenths of
// the capacity, and the capacity moves towards the one that contradicts the
// fewest of them. They fade by a 32nd with each sixteenth of the capacity that is
// used.
//
// Nobody should be able to move it alone, or at once:
//
//   - What was used within the last sixteenth of the capacity has no vote,
//     because
//     it says nothing about the room. So a prompt has at most one vote per
//     sixteenth.
//   - The n-th vote of a tenant within a sixteenth weighs 1/n.
//   - A tenant who is alone in voting against, where others vote too, is not
//     believed: an engine that lacks room lacks it for all of them. Prompts that
//     an engine does not look up in its cache, because of other options of the
//     request, say again and again that nothing was there.
//   - The capacity falls by an eighth at most, once in a sixteenth of it, and
//     only if that settles a quorum of votes. Where the size of the engine's
//     cache is not known, the bound is a guess, rather too high than too low:
//     there it falls by a half at most.
//   - It rises again by a sixteenth of itself, without any vote, whenever as
//     much as an eighth of the bound was used and no vote was against it; and
//     at once where the engine had more than was expected.
//
// A flush or a restart of the engine looks like too little room for a while: the
// capacity falls a few steps and rises again. An engine without a cache lacks
// everything old, and is trusted less and less.
//
// What is known only from a response may never have been there: engines need not
// keep what they generate, and templates drop reasoning. It has no vote until a
// prompt has included it.
//
// Engines count in blocks of their own, their grain: 16 tokens, hundreds of them
// for hybrid models, or single ones. What is missing within a grain is no vote.
// The grain is the greatest common divisor of recent reports.
type trust struct {
	learned int                     // blocks; 0: nothing learned
	rest    int                     // blocks used since the capacity last changed
	lowered uint64                  // how often it has fallen
	had     [sixteenths + 1]float32 // votes for as much room as their age, by sixteenths of the capacity
	lacked  [sixteenths + 1]float32 // votes against it
	more    float32                 // votes for more room than the capacity
	spoken  voices                  // for all votes
	against voices                  // for votes against
	grain   int                     // tokens; 0: not known yet
	unit    int                     // greatest common divisor of the reports since grain was set
	reports int
}

const (
	sixteenths   = 16
	quorum       = 3    // votes
	leastOf      = 64   // the capacity never falls below this part of the bound
	slack        = 8    // blocks that may be missing, and an eighth of the match: lengths in text blocks are guesses
	maxGrain     = 4096 // tokens; hybrid models are known to count in 544 and 1,056
	grainReports = 16
)

// capacity is how many blocks may be held.
func (s *server) capacity() int {
	if s.trust.learned > 0 {
		return min(s.trust.learned, s.bound)
	}
	return s.bound
}

// atLeast records that the engine has run a prompt of so many blocks.
func (t *trust) atLeast(blocks int) {
	if t.learned > 0 {
		t.learned = max(t.learned, blocks)
	}
}

// vote counts the vote of a request that the engine has computed. It has none
// if another request was still in the prefill of the matched blocks.
func (x *Index) vote(l *lease, req *endpick.Request, o *endpick.Outcome) {
	s := x.servers.Find(l.ref)
	if s == nil || !o.HasCachedTokens {
		return
	}
	t, capacity := &s.trust, s.capacity()
	grain := float64(t.calibrate(o.CachedTokens))
	tokens := float64(o.CachedTokens)
	if o.InputTokens > 0 && req.InputTokens > 0 {
		// The prompt's length was a guess, and so was that of its head.
		scale := float64(req.InputTokens) / float64(o.InputTokens)
		tokens, grain = tokens*scale, grain*scale
	}
	if l.doubtful || l.matched > 0 && l.age-l.matched < capacity/sixteenths {
		return
	}
	there := int(min(tokens/req.TokensPerBlock(), float64(l.to)))
	missing := l.proven - there
	most := slack + l.proven/8
	weight := x.accounts.at(l.account).vote(s.ages.newest)
	switch {
	case there-l.matched > most:
		t.more += weight
	case l.proven == 0:
		return
	case missing <= most:
		t.had[sixteenth(l.age, capacity)] += weight
	case float64(missing-most) > grain/req.TokensPerBlock():
		t.lacked[sixteenth(l.age+l.unseen-(l.matched-there), capacity)] += weight
		t.against.add(l.account, weight)
	default:
		return
	}
	t.spoken.add(l.account, weight)
}

// voices is how much one account has voted, for the account that has voted the
// most, and how much all others.
type voices struct {
	first        uint32
	most, others float32
}

func (v *voices) add(account uint32, weight float32) {
	switch {
	case account == v.first:
		v.most += weight
	case v.others+weight > v.most:
		// The account's earlier votes are among the others. That is exact for two
		// accounts; for more, the others get too little.
		v.first, v.most, v.others = account, v.others+weight, v.most
	default:
		v.others += weight
	}
}

func (v *voices) fade(part float32) {
	v.most *= part
	v.others *= part
}

// alone reports whether only one account has voted against, and others have voted.
func (t *trust) alone() bool {
	rest := t.spoken.others
	if t.spoken.first != t.against.first {
		rest = t.spoken.most
	}
	return t.against.others < 1 && rest >= quorum
}

// sixteenth returns in which sixteenth of the capacity an age lies.
func sixteenth(age, capacity int) int {
	return int(min(int64(age)*sixteenths/int64(capacity), sixteenths))
}

// vote returns the weight of the account's next vote in an epoch.
func (a *account) vote(epoch uint32) float32 {
	if a.voted != epoch {
		a.voted, a.votes = epoch, 0
	}
	a.votes++
	return 1 / float32(a.votes)
}

// calibrate takes another report into account and returns the grain in tokens,
// or 0 if it is not known.
func (t *trust) calibrate(cached int) int {
	if cached > 0 {
		t.unit = gcd(cached, t.unit)
		t.reports++
	}
	grain := t.grain
	if grain == 0 {
		grain = t.unit
	}
	if t.reports == grainReports {
		t.grain, t.unit, t.reports = t.unit, 0, 0
	}
	if grain > maxGrain {
		return 0
	}
	return grain
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// review moves the capacity if the votes are for it. It is called whenever a
// sixteenth of it has been used.
func (t *trust) review(s *server) {
	capacity := s.capacity()
	// Ages beyond the capacity don't contradict it.
	against := float32(0)
	for _, v := range t.lacked[:sixteenths] {
		against += v
	}
	best, fewest := sixteenths, against
	for n, votes := sixteenths-1, against; n > 0; n-- {
		// The capacity would be n sixteenths.
		votes += t.had[n] - t.lacked[n]
		if votes < fewest {
			best, fewest = n, votes
		}
	}
	t.rest += max(capacity/sixteenths, 1)
	gain := against - fewest
	if t.alone() {
		gain, against = 0, t.against.others
	}
	switch {
	case gain-t.more >= quorum:
		slowest := capacity - capacity/8
		if !s.whole {
			slowest = capacity / 2
		}
		next := max(capacity*best/sixteenths, slowest, s.bound/leastOf, 1)
		if next < capacity {
			t.learned = next
			t.lowered++
		}
		t.rest = 0
		t.fade(1. / 2)
		return
	case t.learned > 0 && (t.more-gain >= quorum || t.rest >= s.bound/8 && against < 1):
		t.learned += max(t.learned/sixteenths, 1)
		if t.learned >= s.bound {
			t.learned = 0
		}
		t.rest, t.more = 0, 0
	}
	t.fade(31. / 32)
}

// fade multiplies the weight of all votes by part.
func (t *trust) fade(part float32) {
	for i := range t.had {
		t.had[i] *= part
		t.lacked[i] *= part
	}
	t.more *= part
	t.spoken.fade(part)
	t.against.fade(part)
}
