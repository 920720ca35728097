package endpick

import (
	"fmt"
	"math"
)

// The stages of a decision, in the order in which the router calls them. Each
// stage is called concurrently and must not keep the request, the candidates or
// any slice that it was given.

// Matcher finds how much of the prompt each endpoint already holds. It sets
// PrefixTokens of every candidate that holds the beginning of the prompt.
type Matcher interface {
	Match(req *Request, candidates []Candidate)
}

// Predictor predicts latencies. It sets the Prediction of each candidate
// independently of the others, and leaves it empty if it can't predict one.
type Predictor interface {
	Predict(req *Request, candidates []Candidate)
}

// Admitter admits the request by returning nil, or returns the reason why
// not, which the router wraps in a [RejectedError]. The reason may have a method
// Refusal() (message string, retryAfter time.Duration): what a gateway answers to the client
// instead of the error's text, and when to try again; 0: not known, or never.
//
// Requests that are routed at the same moment may not see each other in InFlight: an
// Admitter that keeps a limit counts for itself, under a lock, as in the example. It may
// have a method Withdrawn(*Request). It is called if the request is not routed after all,
// because another admitter has refused it or the chosen endpoint was removed meanwhile.
// Otherwise Routed follows, if the Admitter is a [RoutedObserver], and later Done. For a
// request that is Adopted, Admit is not called, but these are: Routed has to count it.
type Admitter interface {
	Admit(req *Request, candidates []Candidate) error
}

// Filter narrows the choice. It moves the candidates to keep to the front, in
// place and in their order, and returns that part; [Keep] does the moving (not
// slices.DeleteFunc, which clears what it removes). An empty result means that
// the filter has no opinion, and all candidates stay. So earlier filters have their way: put
// your own before a preset's. Endpoints that a request must never reach belong in
// [Request.Exclude] instead.
type Filter interface {
	Filter(req *Request, candidates []Candidate) []Candidate
}

// Scorer grades candidates: higher is better. It writes every slot of dst,
// which is as long as candidates. Scores are finite; a scorer that is combined
// with others keeps them within [0, 1].
type Scorer interface {
	Score(req *Request, candidates []Candidate, dst []float64)
}

// Picker chooses an index into candidates, of which there is at least one. A
// picker that randomizes uses [Request.ChanceOf].
type Picker interface {
	Pick(req *Request, candidates []Candidate, scores []float64) int
}

// Policy is how a router decides. Every field is optional: the zero policy picks
// at random among the endpoints that serve the model. New and SetPolicy call the
// method Validate() error of a stage that has one, and wrap its error in a
// [ConfigError] that names the stage.
type Policy struct {
	// Name is shown in receipts.
	Name      string
	Matcher   Matcher
	Predictor Predictor
	Admitters []Admitter
	Filters   []Filter
	Scorers   []Weighted
	// Picker is MaxScore if nil.
	Picker Picker
}

// Weighted is a scorer and its share in the combined score. Weights are divided by
// their sum, so only their ratio matters, and each of several scores is clamped to [0, 1]. A
// weighted sum makes sense for scorers that use that whole range, such as
// scorer.QueueDepth, scorer.KVUsage and scorer.PrefixAffinity. Next to one of
// these, tiny scores such as those of scorer.LMetric only break ties.
type Weighted struct {
	Scorer Scorer
	// Weight is positive and finite. Zero is an error, and not a way to
	// switch a scorer off.
	Weight float64
}

// Keep is the stable partition that filters are made of: it moves the
// candidates for which keep returns true to the front, in their order, and
// returns them. The others remain behind them. It allocates nothing.
func Keep(candidates []Candidate, keep func(*Candidate) bool) []Candidate {
	n := 0
	for i := range candidates {
		if !keep(&candidates[i]) {
			continue
		}
		if i != n {
			candidates[i], candidates[n] = candidates[n], candidates[i]
		}
		n++
	}
	return candidates[:n]
}

// Exploration is the probability with which a stage tries what it would not choose, so
// that there is something to learn from. Make one with [NewExploration]. The zero value
// never explores.
type Exploration float64

// NewExploration makes an Exploration of the two fields that a stage's config has for it:
// p is in (0, 1), zero for the default of one request in a hundred. The error is a
// [ConfigError] of the field with this qualified name.
func NewExploration(field string, p float64, disabled bool) (Exploration, error) {
	switch {
	case disabled && p != 0:
		return 0, &ConfigError{Field: field, Reason: "is set and disabled"}
	case disabled:
		return 0, nil
	case p == 0:
		return 0.01, nil
	case !(p > 0 && p < 1):
		return 0, &ConfigError{Field: field, Reason: fmt.Sprintf("is %v, outside (0, 1)", p)}
	}
	return Exploration(p), nil
}

// Hits reports whether the request explores in the stage with this salt.
func (x Exploration) Hits(req *Request, salt uint64) bool { return req.Chance(salt) < float64(x) }

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
