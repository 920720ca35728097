package delay

import (
	"math"

	"github.com/endpick/endpick"
)

// learned is what responses have taught. Only those that were answered teach.
type learned struct {
	kinds     kinds
	common    kind // of all kinds together, for new ones
	token     mean // time of a prompt token, by the proportions
	tokenClip clip
	lengths   lengths
	votes     votes
	loads     loads
	first     mean // time to first token of streams
	firstClip clip

	// According to the kind of server that each prompt went to:
	again       mean // time of a prompt token over those computed recently
	againClip   clip
	freshClip   clip
	idle, whole mean // time of responses on an idle server, and their actual time
	idleClip    clip
	slowdowns   clip // of the ratios
}

func (l *learned) start(maxKinds int) {
	l.kinds = kinds{most: maxKinds, known: map[kindName]*kind{}}
	l.common.each = scaled(1)
	l.lengths.start()
	l.loads.of, l.loads.asked = map[kindName]*loaded{}, map[string]*demand{}
}

// find returns the kind of that name, or the common one if there is none.
func (l *learned) find(n kindName) *kind {
	if k := l.kinds.known[n]; k != nil {
		return k
	}
	return &l.common
}

// beyond is how much longer a time is than expected: all of it, as long as nothing is known.
func (l *learned) beyond(n kindName, x *amounts, ms float64) float64 {
	if l.common.labels == 0 {
		return ms
	}
	return ms - l.find(n).of(x)
}

// teach calls f with the kinds that learn from a request: the common one and that of the name.
func (l *learned) teach(n kindName, f func(*kind)) {
	f(&l.common)
	if k := l.kinds.known[n]; k != nil {
		f(k)
	}
}

// label passes a measured time on to the kind and to the common model.
func (l *learned) label(n kindName, x *amounts, ms float64) {
	base := 0.0
	for i, v := range x {
		base += v * proportions[i]
	}
	if base > 0 {
		l.token.add(l.tokenClip.of(ms/base), 1)
	}
	prior := scaled(max(l.token.or(1), 1e-6))
	if l.common.labels == 0 {
		l.common.each = prior
	}
	l.common.label(x, ms, &prior)
	if k := l.kinds.known[n]; k != nil {
		k.label(x, ms, &prior) // not the common one: of kinds together, the fast ones are the full ones
	}
}

// computed records that a prompt has been computed, by its kind: fast ones may get the longer prompts.
func (l *learned) computed(r *lease) {
	if k := l.kinds.known[r.name]; k != nil && k.labels > 0 {
		token := k.each[tokens] + k.each[attention]*r.pairs/r.fresh
		l.again.fade(l.againClip.of(token), r.vote*l.freshClip.of(r.fresh), recent)
	}
}

// compare records how long a response with n tokens after the first took, and would have taken on an idle server.
func (l *learned) compare(r *lease, n, whole float64) {
	k := l.kinds.known[r.name]
	if k == nil || k.labels == 0 {
		return
	}
	each := k.each[steps] + k.each[batches] + k.each[contexts]*r.size
	idle, vote := max(k.each[requests]+k.each[tokens]*r.fresh+n*each, 1e-3), r.vote
	ratio := l.slowdowns.of(max(whole/idle, 1))
	idle = l.idleClip.of(idle)
	l.idle.add(idle, vote)
	l.whole.add(idle*ratio, vote)
}

// crowding is c, by how much delays multiply. A delayed request stays longer and slows those
// that come next, which stay longer, too: if a response takes twice as long as on an
// idle server, so does a delay. But the router sends some of those that come next
// elsewhere; the square root is a compromise. It is at most √10.
func (l *learned) crowding() float64 {
	if l.idle.weight == 0 {
		return 1
	}
	return math.Sqrt(min(l.whole.sum/l.idle.sum, 10))
}

// weight is w, how much a millisecond of waiting counts relative to one of decoding.
// A wait is felt relative to what they are waiting for: shortening the time to
// first token by a tenth counts as much as shortening the whole by a tenth, which
// is a weight of whole/first; adding up milliseconds is a weight of 1. This is
// between the two. The client of a response that does not stream only sees the whole.
func (m *marginal) weight(req *endpick.Request) float64 {
	l := &m.learned
	switch {
	case !req.Stream:
		return 1
	case m.config.FirstTokenWeight > 0:
		return m.config.FirstTokenWeight
	case l.first.weight == 0 || l.common.decoding.weight == 0:
		return 1 + 4 // before anything is known, as with a ratio of ten
	}
	// First tokens are learned when they arrive, not at the end of the response: in a growing
	// queue, that is one response earlier.
	first, rest := l.first.or(0), l.common.decoding.or(0)
	return 1 + math.Pow((first+rest)/max(first, 1e-3), weightExponent)
}

// weightExponent is the price of first tokens in whole responses. Over 129 cells on five seeds, TTFT p95 and mean E2E are
// 1.065 and 1.0033 times those of each cell's best policy with 0.5, 1.047 and 1.0036 with 0.6, 1.042 and 1.0047 with 0.65.
const weightExponent = 0.6

// lengths learns how long responses are, from complete ones. A request may come with a guess of
// its length: a limit, a mean, or nothing.
type lengths struct {
	without     mean // tokens of responses without a guess
	withoutClip clip
	ratio       mean // of actual to guessed
	ratioClip   clip
	usual       clip // of all responses
}

// unknownLength is the length of a response before any has ended: the mean of
// the predicted-latency paper's production workload. It counts as much as eight responses.
const unknownLength, unknownVote = 300, 8 * leastVote

func (l *lengths) start() {
	l.withoutClip.of(unknownLength)
	l.usual.of(10 * unknownLength)
	l.ratioClip.of(1)
	l.without = mean{unknownLength * unknownVote, unknownVote}
	l.ratio = mean{unknownVote, unknownVote}
}

// of returns how many tokens the response is expected to have, at least one, and no more than
// is usual.
func (l *lengths) of(req *endpick.Request) float64 {
	n := l.without.or(0)
	if guess := req.ExpectedPerResponse(); guess > 0 {
		n = guess * l.ratio.or(0)
	}
	return max(min(n, l.most()), 1)
}

// most is how many tokens are usual at most.
func (l *lengths) most() float64 { return math.Exp(l.usual.high) }

// add records the length of a complete response.
func (l *lengths) add(guess, output, vote float64) {
	l.usual.of(output)
	if guess > 0 {
		l.ratio.add(l.ratioClip.of(output/guess), vote)
		return
	}
	l.without.add(l.withoutClip.of(output), vote)
}
