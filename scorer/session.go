package scorer

import (
	"github.com/cespare/xxhash/v2"

	"github.com/endpick/endpick"
)

// SessionAffinity sends all requests of a session to one endpoint: the session's
// endpoint scores 1, all others 0. The endpoint is found by rendezvous hashing
// (Thaler and Ravishankar, 1998) of the session and the endpoints' IDs: there
// is no table, replicas of a router agree, and when an endpoint is removed only
// its own sessions move. Without a session, every endpoint scores 0.
func SessionAffinity() endpick.Scorer { return sessionAffinity{} }

type sessionAffinity struct{}

func (sessionAffinity) Name() string { return "session-affinity" }

func (sessionAffinity) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	clear(dst)
	if req.Session == "" || len(candidates) == 0 {
		return
	}
	session := xxhash.Sum64String(req.Session)
	best, most := 0, uint64(0)
	for i := range candidates {
		// An odd multiplier spreads the product's upper half over both hashes.
		weight := (session ^ candidates[i].ChanceKey) * 0x9e3779b97f4a7c15
		weight ^= weight >> 32
		weight *= 0xd6e8feb86659fd93
		weight ^= weight >> 32
		if weight > most {
			best, most = i, weight
		}
	}
	dst[best] = 1
}
