package endpick

import "math"

// The salts of the pickers' own draws.
const (
	saltTie   = 0x7c6a91d05f3be284
	saltWheel = 0x1b873593e6546b64
	saltPair  = 0x5851f42d4c957f2d
)

// MaxScore picks the candidate with the highest score. Ties are broken at
// random, by the endpoint's ID. The zero value is ready to use; it has no
// state.
type MaxScore struct{}

// Pick implements [Picker].
func (MaxScore) Pick(req *Request, candidates []Candidate, scores []float64) int {
	draws := req.draws(saltTie)
	best, drawn := 0, uint64(0) // drawn is best's number, from its first tie on
	for i := 1; i < len(candidates); i++ {
		if scores[i] < scores[best] {
			continue
		}
		if scores[i] > scores[best] {
			best, drawn = i, 0
			continue
		}
		if drawn == 0 {
			drawn = draws.of(&candidates[best])
		}
		if u := draws.of(&candidates[i]); u > drawn {
			best, drawn = i, u
		}
	}
	return best
}

// WeightedRandom picks a candidate with a probability proportional to its
// score. Candidates with a score of zero or less are only picked if there are
// no others, and then all with the same probability. The zero value is ready
// to use; it has no state.
//
// It takes the largest ln(u)/w, with u drawn for each endpoint (Efraimidis and
// Spirakis, Weighted random sampling, 2006), so that the order of candidates
// does not matter.
type WeightedRandom struct{}

// Pick implements [Picker].
func (WeightedRandom) Pick(req *Request, candidates []Candidate, scores []float64) int {
	draws := req.draws(saltWheel)
	best, drawn := -1, uint64(0)
	most := math.Inf(-1) // also the key of scores that are practically zero
	for i := range candidates {
		u, key := draws.of(&candidates[i]), math.Inf(-1)
		if scores[i] > 0 {
			key = math.Log(unit(u)) / scores[i]
		}
		if key > most || best < 0 || (key == most && u > drawn) {
			best, most, drawn = i, key, u
		}
	}
	return best
}

// PowerOfTwo draws two candidates at random and picks the one with the higher
// score (Mitzenmacher, The power of two choices, 2001). The zero value is
// ready to use; it has no state.
type PowerOfTwo struct{}

// Pick implements [Picker].
func (PowerOfTwo) Pick(req *Request, candidates []Candidate, scores []float64) int {
	draws := req.draws(saltPair)
	first, second := -1, -1
	var u1, u2 uint64
	for i := range candidates {
		u := draws.of(&candidates[i])
		switch {
		case first < 0 || u > u1:
			first, second = i, first
			u1, u2 = u, u1
		case second < 0 || u > u2:
			second, u2 = i, u
		}
	}
	// On a tie the first draw stands.
	if second >= 0 && scores[second] > scores[first] {
		return second
	}
	return first
}
