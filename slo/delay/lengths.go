package delay

import (
	"github.com/cespare/xxhash/v2"

	"github.com/endpick/endpick"
)

// lengths learns how long responses are, from complete ones.
//
// A request may come with a guess of its length: a limit, a mean, or nothing. How
// guesses relate to actual lengths is learned by tenant, in a table of fixed size.
// Of two tenants in one entry, the latest one is known; so inventing names only
// makes other tenants count as average.
type lengths struct {
	all     length
	tenants [1024]tenantLength
}

type tenantLength struct {
	hash uint64
	length
}

// length holds sums over responses that fade.
type length struct {
	count           float64
	output          float64 // of responses without a guess
	guessed, actual float64 // of responses with one
}

const (
	// unknownLength is the length of a response before any has ended: the mean of
	// the predicted-latency paper's production workload.
	unknownLength = 300
	// faithInAll is how many responses a tenant needs to weigh as much as all
	// tenants together.
	faithInAll = 4
)

func tenantHash(tenant string) uint64 { return xxhash.Sum64String(tenant) }

// of returns how many tokens the response is expected to have, at least one.
func (l *lengths) of(req *endpick.Request) float64 {
	guess := req.ExpectedPerResponse()
	own := &length{}
	if hash := tenantHash(req.Tenant); req.Tenant != "" {
		if t := &l.tenants[hash%uint64(len(l.tenants))]; t.hash == hash {
			own = &t.length
		}
	}
	if guess > 0 {
		ratio := (l.all.actual + unknownGuess) / (l.all.guessed + unknownGuess)
		ratio = (own.actual + faithInAll*guess*ratio) / (own.guessed + faithInAll*guess)
		return max(guess*ratio, 1)
	}
	mean := (l.all.output + unknownLength) / (l.all.count + 1)
	return max((own.output+faithInAll*mean)/(own.count+faithInAll), 1)
}

// unknownGuess is the weight, in tokens, of the assumption that guesses are right.
const unknownGuess = 1000

// add records the length of a complete response.
func (l *lengths) add(tenant string, guess, output float64) {
	l.all.add(guess, output)
	if tenant == "" {
		return
	}
	hash := tenantHash(tenant)
	t := &l.tenants[hash%uint64(len(l.tenants))]
	if t.hash != hash {
		*t = tenantLength{hash: hash}
	}
	t.add(guess, output)
}

func (l *length) add(guess, output float64) {
	const keep = 1 - 1.0/200
	if guess > 0 {
		l.guessed, l.actual = l.guessed*keep+guess, l.actual*keep+output
		return
	}
	l.count, l.output = l.count*keep+1, l.output*keep+output
}
