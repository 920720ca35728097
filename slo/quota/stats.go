package quota

import (
	"cmp"
	"slices"
	"time"
)

// Stats counts what a quota has done.
type Stats struct {
	Admitted        uint64 // and routed, or about to be
	RefusedTokens   uint64
	RefusedRequests uint64
	Tenants         int // remembered tenants
}

// Stats returns the counts so far.
func (q *Quota) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.stats
	s.Tenants = len(q.tenants)
	return s
}

// Usage is the account of one tenant.
type Usage struct {
	Tenant   string
	Requests int // in flight
	// Tokens are those in its bucket, negative for a debt, and Burst is the
	// bucket's size. Both are 0 if the tenant's tokens are not limited.
	Tokens, Burst float64
}

// Tenants returns the accounts of at most most tenants, those with the least left
// in their bucket first. Below 0: all that are remembered.
func (q *Quota) Tenants(now time.Time, most int) []Usage {
	q.mu.Lock()
	all := make([]Usage, 0, len(q.tenants))
	for name, t := range q.tenants {
		u := Usage{Tenant: name, Requests: t.open}
		if t.rate > 0 {
			t.flow(now)
			u.Tokens, u.Burst = t.tokens, t.burst
		}
		all = append(all, u)
	}
	q.mu.Unlock()
	slices.SortFunc(all, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(a.left(), b.left()), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Tenant, b.Tenant))
	})
	if most >= 0 && len(all) > most {
		all = all[:most]
	}
	return all
}

// left is the share of the bucket that is left.
func (u *Usage) left() float64 {
	if u.Burst == 0 {
		return 1
	}
	return u.Tokens / u.Burst
}
