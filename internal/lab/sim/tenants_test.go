package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo/quota"
)

// Two tenants share a fleet equally. When one sends ten times its share, the other's
// TTFT p95 stays within a fifth of what it is alone with a quota, and does not
// without one.
func TestTenantsKeepTheirShare(t *testing.T) {
	profile, err := engine.ProfileByName("llama-3.1-8b-h100")
	require.NoError(t, err)
	const share = 12 // requests a second
	tenant := func(name string, perSecond float64) Workload {
		return Conversations{
			Groups: 20, UsersPerGroup: 1000, Turns: 1, SystemTokens: 500,
			Question: Length{Mean: 1500, Std: 400}, Output: Length{Mean: 200, Std: 50},
			Arrivals: ConstantRate(perSecond), Duration: 2 * time.Minute, Tenant: name,
		}
	}
	quiet := tenant("quiet", share)
	loud := tenant("loud", 10*share)
	run := func(limits *quota.Limits, work ...Workload) *Report {
		return mustRun(t, Config{
			Router: func() (endpick.Config, error) {
				c := all.LMetric()
				if limits == nil {
					return c, nil
				}
				q, err := quota.New(quota.Config{Limits: func(string) quota.Limits { return *limits }})
				c.Policy.Admitters = append(c.Policy.Admitters, q)
				return c, err
			},
			Fleet: Fleet(8, engine.Config{Profile: profile}), Workload: Merge(work), Seed: 1,
		})
	}
	// A request has a prompt of 2,000 tokens and 200 of output, which count twice;
	// a fifth more leaves room for chance.
	limits := &quota.Limits{Rate: 1.2 * share * (2000 + 2*200), Burst: 20 * share * (2000 + 2*200)}
	alone := run(limits, quiet).Tenants["quiet"]
	both := run(limits, quiet, loud)
	open := run(nil, quiet, loud).Tenants["quiet"]
	held := both.Tenants["quiet"]
	t.Logf("quiet's TTFT p95: alone %.0f ms, beside loud %.0f ms, without a quota %.0f ms", alone.TTFT.P95, held.TTFT.P95, open.TTFT.P95)
	t.Logf("loud: %d of %d refused", both.Tenants["loud"].Rejected, both.Tenants["loud"].Requests)
	assert.LessOrEqual(t, held.TTFT.P95, 1.2*alone.TTFT.P95)
	assert.Greater(t, open.TTFT.P95, 2*alone.TTFT.P95)
	assert.Zero(t, alone.Rejected)
	assert.Zero(t, held.Rejected)
	got := both.Tenants["loud"].Requests - both.Tenants["loud"].Rejected
	assert.Greater(t, got, share*120, "it gets its share, and no less for asking for more")
	assert.Less(t, got, 2*share*120)
}
