package quota

import (
	"cmp"
	"slices"
	"time"
)

// Quota is what New returns.
type Quota = quota

// Usage is the account of one tenant. Tokens and Burst are 0 if they are not limited.
type Usage struct {
	Tenant        string
	Requests      int // in flight
	Tokens, Burst float64
}

// Tenants returns the accounts of the remembered tenants, by name.
func (q *quota) Tenants(now time.Time) []Usage {
	q.mu.Lock()
	defer q.mu.Unlock()
	var all []Usage
	for name, t := range q.tenants {
		u := Usage{Tenant: name, Requests: t.open}
		if t.rate > 0 {
			t.flow(now)
			u.Tokens, u.Burst = t.tokens, t.burst
		}
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b Usage) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return all
}
