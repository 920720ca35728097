package delay

import (
	"math"

	"github.com/endpick/endpick"
)

// copies says how much of a copy of the prompt's beginning later requests pay for.
//
// What a candidate lacks although others hold it, is a copy when it has been computed there. As
// long as one server is a better place than another, later requests with the same beginning have
// the same choice, and only the first of them pays. So a token that n of them are expected to
// use there counts as 1/(1+n) tokens where its price is borne by others.
//
// It is a sorted list of the depths at which candidates leave the prompt, in tokens.
type copies struct {
	n       int
	depths  [mostDepths]int
	holders [mostDepths]int     // candidates that hold this much, and no more
	beyond  int                 // candidates that hold more than the last depth
	shared  [mostDepths]float64 // of the tokens up to that depth, how many others pay for
}

// mostDepths bounds the depths that count; of more, the deepest are left out.
const mostDepths = 16

// collect lists the depths.
func (s *copies) collect(candidates []endpick.Candidate) {
	s.begin()
	at := 0
	for i := range candidates {
		if h := candidates[i].PrefixTokens; h > 0 {
			at = s.add(h, at)
		}
	}
}

// begin empties the list.
func (s *copies) begin() { s.n, s.beyond = 0, 0 }

// add counts a candidate that holds so many tokens, more than 0, and returns where that depth is
// in the list. It is probably at the given place.
func (s *copies) add(depth, at int) int {
	if at >= s.n || s.depths[at] != depth {
		at = s.find(depth)
	}
	if at < mostDepths {
		s.holders[at]++
	} else {
		s.beyond++
	}
	return at
}

// find returns where a depth is in the list, and inserts it if need be; mostDepths if it has
// no place.
func (s *copies) find(depth int) int {
	at := s.n
	for at > 0 && s.depths[at-1] >= depth {
		at--
	}
	if at == mostDepths || at < s.n && s.depths[at] == depth {
		return at
	}
	if s.n == mostDepths {
		s.n--
		s.beyond += s.holders[s.n]
	}
	s.n++
	copy(s.depths[at+1:s.n], s.depths[at:])
	copy(s.holders[at+1:s.n], s.holders[at:])
	s.depths[at], s.holders[at] = depth, 0
	return at
}

// price works out which part of each copy is paid for by others. It is about those among
// the candidates. Of the expected uses of a prefix, each holder gets its part, and so does the
// candidate that will be another one.
func (s *copies) price(u *uses, req *endpick.Request, candidates []endpick.Candidate, now int64) {
	s.collect(candidates)
	s.share(u, req, now)
}

// share does the same for those that were counted.
func (s *copies) share(u *uses, req *endpick.Request, now int64) {
	holders := s.beyond
	for i := range s.n {
		holders += s.holders[i]
	}
	sum, from := 0.0, 0
	for i, depth := range s.depths[:s.n] {
		n := u.expected(blockAt(req, depth), now) / float64(holders+1)
		sum += float64(depth-from) * (n / (1 + n))
		s.shared[i], from = sum, depth
		holders -= s.holders[i]
	}
	if sum == 0 {
		s.n = 0
	}
}

// of returns how many tokens others pay for if a prompt is computed from this depth on.
func (s *copies) of(depth int) float64 {
	paid := 0.0 // for what is held
	for i, d := range s.depths[:s.n] {
		if d > depth {
			return s.shared[s.n-1] - paid
		}
		paid = s.shared[i]
	}
	return 0
}

// own returns the share of a request's computation on a candidate that nobody else pays for.
// Whether a copy stays until it is used is only known where there is room: of the memory, running
// requests use no more than half.
func (s *copies) own(c *endpick.Candidate, tokens float64) float64 {
	if s.n == 0 || !roomy(c) {
		return 1
	}
	return max(tokens-s.of(c.PrefixTokens), 0) / tokens
}

// roomy reports whether running requests are known to use no more than half of the memory. Without
// a report, only the router's own are known, and what they share counts for each of them.
func roomy(c *endpick.Candidate) bool {
	if c.Reported&endpick.KVUsageSignal != 0 {
		return c.KVUsage <= mostIdle
	}
	used := float64(c.InFlight.ContextTokens + c.InFlight.OutputTokens)
	return used < mostIdle*float64(c.Endpoint.KVTokens)
}

// blockAt is the last block of the prompt's beginning of that many tokens; 0: unknown.
func blockAt(req *endpick.Request, depth int) uint64 {
	at := int(math.Ceil(float64(depth)/req.TokensPerBlock()-1e-6)) - 1
	if at < 0 || at >= len(req.Blocks) {
		return 0
	}
	return req.Blocks[at]
}

// uses counts how often beginnings of prompts were asked for recently, in a table of fixed
// size. A client can only count up what it sends; and by taking places in the table, only
// make others count as seldom used.
type uses [8192]use

type use struct {
	block uint64 // the last one
	count float64
	at    int64
}

// recently is the time in nanoseconds in which a use fades to 1/e, and for which uses are
// expected.
const recently = 10e9

// add counts a use.
func (u *uses) add(block uint64, now int64) {
	e := &u[block%uint64(len(u))]
	switch count := e.faded(now); {
	case block == 0:
	case e.block == block:
		*e = use{block, count + 1, now}
	case count < 1:
		*e = use{block, 1, now}
	}
}

// expected is how many uses to expect: as many as there were, less a standard deviation, so
// that only what is surely asked for often counts.
func (u *uses) expected(block uint64, now int64) float64 {
	e := &u[block%uint64(len(u))]
	if e.block != block || e.count <= 1 {
		return 0
	}
	n := e.faded(now)
	return max(n-math.Sqrt(n), 0)
}

func (e *use) faded(now int64) float64 {
	return e.count * math.Exp(-float64(max(now-e.at, 0))/recently)
}

// record counts the uses of a request's beginnings.
func (m *marginal) record(req *endpick.Request, candidates []endpick.Candidate, now int64) {
	if len(req.Blocks) == 0 {
		return
	}
	var s copies
	s.collect(candidates)
	for _, depth := range s.depths[:s.n] {
		m.uses.add(blockAt(req, depth), now)
	}
}
