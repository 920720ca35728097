package quota_test

import (
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/quota"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// entry is one change of a tenant's bucket.
type entry struct {
	at     time.Time
	tokens float64
}

// book is the naive account of a tenant: its whole history, summed anew for each
// question.
type book struct {
	limits  quota.Limits
	opened  time.Time
	entries []entry
	open    int
}

func (b *book) balance(now time.Time) float64 {
	tokens, at := b.limits.Burst, b.opened
	for _, e := range b.entries {
		tokens = min(tokens+e.at.Sub(at).Seconds()*b.limits.Rate, b.limits.Burst)
		tokens, at = min(tokens+e.tokens, b.limits.Burst), e.at
	}
	return min(tokens+now.Sub(at).Seconds()*b.limits.Rate, b.limits.Burst)
}

// Whatever is routed, refused, completed, withdrawn or lost: each tenant's
// account equals its book, a request that comes back after RetryAfter is
// admitted, and no tenant gets more than a bucket and what flowed in, apart from
// what was in flight or unexpected.
func TestQuotaIsLikeItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const weight = 2
		limits := map[string]quota.Limits{}
		for _, name := range []string{"a", "b", "c"} {
			limits[name] = quota.Limits{
				Rate: float64(rapid.IntRange(1, 50).Draw(t, "rate")), Burst: float64(rapid.IntRange(1, 500).Draw(t, "burst")),
				Requests: rapid.IntRange(0, 4).Draw(t, "requests"),
			}
		}
		s := open(quota.Config{Limits: func(name string) quota.Limits { return limits[name] }, OutputWeight: weight})
		books := map[string]*book{}
		type flight struct {
			lease    endpick.Lease
			tenant   string
			input    int
			expected float64
			tokens   int
		}
		var flights []flight
		tenant := rapid.SampledFrom([]string{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"route": func(t *rapid.T) {
				name := tenant.Draw(t, "tenant")
				input, output := rapid.IntRange(0, 300).Draw(t, "input"), rapid.IntRange(0, 100).Draw(t, "output")
				s.no.refuse = rapid.IntRange(0, 4).Draw(t, "refused later") == 0
				b := books[name]
				if b == nil {
					b = &book{limits: limits[name], opened: s.now}
					books[name] = b
				}
				cost := float64(max(input, 1) + weight*output)
				need := min(cost, b.limits.Burst)
				full := b.limits.Requests > 0 && b.open >= b.limits.Requests
				short := b.balance(s.now) < need-1e-6
				lease, err := s.route(name, input, output)
				e, byQuota := asQuota(err)
				switch {
				case full != (byQuota && e.Requests > 0):
					t.Fatalf("%d in flight of %d: %v", b.open, b.limits.Requests, err)
				case !full && short != byQuota:
					t.Fatalf("balance %v for %v: %v", b.balance(s.now), need, err)
				case byQuota && !full:
					have := b.balance(s.now)
					require.InDelta(t, (need-have)/b.limits.Rate, e.RetryAfter.Seconds(), 1e-6)
					require.Equal(t, need, e.Need)
					require.InDelta(t, have, e.Have, 1e-6)
					require.Equal(t, name, e.Tenant)
					s.now = s.now.Add(e.RetryAfter)
					s.no.refuse = false
					lease, err = s.route(name, input, output)
					require.NoError(t, err, "not even after %v", e.RetryAfter)
				}
				if err == nil {
					b.open++
					b.entries = append(b.entries, entry{s.now, -cost})
					flights = append(flights, flight{lease: lease, tenant: name, input: max(input, 1), expected: cost})
				}
			},
			"tokens": func(t *rapid.T) {
				if len(flights) > 0 {
					f := &flights[rapid.IntRange(0, len(flights)-1).Draw(t, "which")]
					n := rapid.IntRange(1, 20).Draw(t, "n")
					f.lease.Tokens(n)
					f.tokens += n
				}
			},
			"done": func(t *rapid.T) {
				if len(flights) == 0 {
					return
				}
				i := rapid.IntRange(0, len(flights)-1).Draw(t, "which")
				f := flights[i]
				flights = append(flights[:i], flights[i+1:]...)
				o := endpick.Outcome{
					Status:      rapid.SampledFrom([]endpick.Status{endpick.Completed, endpick.Failed, endpick.Canceled, endpick.Lost, endpick.Refused}).Draw(t, "status"),
					InputTokens: rapid.IntRange(0, 300).Draw(t, "usage in"), OutputTokens: rapid.IntRange(0, 100).Draw(t, "usage out"),
				}
				if o.HasCachedTokens = rapid.Bool().Draw(t, "cached"); o.HasCachedTokens { // which makes it no cheaper
					o.CachedTokens = rapid.IntRange(0, o.InputTokens).Draw(t, "usage cached")
				}
				input, output := f.input, f.tokens
				if o.InputTokens > 0 {
					input = o.InputTokens
				}
				if o.OutputTokens > 0 {
					output = o.OutputTokens
				}
				took := float64(input + weight*output)
				if (o.Status == endpick.Failed || o.Status == endpick.Refused) && output == 0 {
					took = 0
				}
				f.lease.Done(o)
				f.lease.Done(o)
				b := books[f.tenant]
				b.open--
				b.entries = append(b.entries, entry{s.now, f.expected - took})
			},
			"wait": func(t *rapid.T) {
				s.now = s.now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				for _, u := range s.quota.Tenants(s.now) {
					b := books[u.Tenant]
					require.NotNil(t, b)
					require.Equal(t, b.open, u.Requests)
					require.InDelta(t, b.balance(s.now), u.Tokens, 1e-6)
				}
			},
		})
	})
}
