package delay

import (
	"cmp"
	"math"
	"strings"

	"github.com/endpick/endpick"
)

// kindName identifies a kind: servers that behave alike.
type kindName struct{ model, variant string }

// maxName is the longest name in bytes; longer ones are ignored.
const maxName = 256

// nameOf is the kind of a request on a variant. Adapters count as their model.
func nameOf(req *endpick.Request, variant string) kindName {
	return kindName{cmp.Or(req.Model, req.Adapter), variant}
}

// kind is what is known about the servers of one kind. Times are in milliseconds.
type kind struct {
	linear
	decoding  mean // time from the first token to the last
	rest      clip
	size      mean // tokens in memory per request, halfway through its response
	sizes     clip
	fresh     mean    // prompt tokens computed per request
	meanwhile amounts // tokens and pairs computed for others during a step, summed
	meanSteps float64
	late      bound // of TTFT
	slow      bound // of the rest
	arrivals  fading
	uses      fading // by kinds.total
}

// note records how much was computed for others during a step.
func (k *kind) note(x *amounts, n float64) {
	const keep = 1 - 1.0/memory
	k.meanwhile[tokens] = k.meanwhile[tokens]*keep + x[tokens]
	k.meanwhile[attention] = k.meanwhile[attention]*keep + x[attention]
	k.meanSteps = k.meanSteps*keep + n
}

// kinds are the known ones: those used most. A new one has to be used more than the least used
// one before it displaces that: where one more than fits are used alike, all but one have a place.
type kinds struct {
	most  int
	known map[kindName]*kind
	total int64 // uses of all, as a time; see oneUse
	// The one that wants a place while there is none, by a vote of the uses of all that do.
	next     kindName
	nextUses fading
}

// admit counts a use of a kind, and gives it a place: when a request for it has been completed,
// or, where servers differ, answered. Until then it is like all others, and slow servers
// would be filled like fast ones for as long as a response takes.
func (s *kinds) admit(n kindName, common *kind) {
	s.total += oneUse
	if k := s.known[n]; k != nil {
		k.uses.add(s.total)
		return
	}
	if len(n.model) > maxName || len(n.variant) > maxName {
		return
	}
	uses := fading{1, s.total}
	if len(s.known) >= s.most {
		if n != s.next {
			if s.nextUses.count = s.nextUses.at(s.total) - 1; s.nextUses.count > 0 {
				s.nextUses.last = s.total
				return
			}
			s.next, s.nextUses = kindName{strings.Clone(n.model), strings.Clone(n.variant)}, fading{}
		}
		s.nextUses.add(s.total)
		least := s.leastUsed()
		if s.nextUses.count <= s.known[least].uses.at(s.total)+1 {
			return
		}
		delete(s.known, least)
		uses, s.nextUses = s.nextUses, fading{}
	}
	k := new(kind)
	*k = *common
	k.linear, k.uses, k.arrivals = linear{each: common.each}, uses, fading{}
	s.known[kindName{strings.Clone(n.model), strings.Clone(n.variant)}] = k
}

// leastUsed does not depend on the order of a map.
func (s *kinds) leastUsed() (least kindName) {
	fewest := math.Inf(1)
	for n, k := range s.known {
		uses := k.uses.at(s.total)
		if uses < fewest || uses == fewest && (n.model < least.model || n.model == least.model && n.variant < least.variant) {
			least, fewest = n, uses
		}
	}
	return least
}
