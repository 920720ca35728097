package quota_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo/quota"
)

// ledger is the expected state of a Quota with room for one tenant, updated call by call.
type ledger struct {
	burst    float64
	requests int
	tenants  map[string]*line
	idle     []string // the least recently used first
}

type line struct {
	tokens float64
	open   int
}

func (l *ledger) find(name string) *line {
	if l.tenants[name] == nil {
		l.tenants[name] = &line{tokens: l.burst}
	}
	return l.tenants[name]
}

func (l *ledger) rest(name string) {
	l.idle = slices.DeleteFunc(l.idle, func(n string) bool { return n == name })
	if l.tenants[name].open == 0 {
		l.idle = append(l.idle, name)
	}
	for len(l.tenants) > 1 && len(l.idle) > 0 {
		delete(l.tenants, l.idle[0])
		l.idle = l.idle[1:]
	}
}

func (l *ledger) admit(name string, cost float64) bool {
	t := l.find(name)
	defer l.rest(name)
	if t.open >= l.requests || t.tokens < min(cost, l.burst) {
		return false
	}
	t.tokens -= cost
	t.open++
	return true
}

func (l *ledger) ends(name string, back float64) {
	t := l.tenants[name]
	t.tokens = min(t.tokens+back, l.burst)
	t.open--
	l.rest(name)
}

// A request is admitted, routed and done in three calls, each under the lock; other
// requests come in between, and there is room for one idle tenant. In every order the
// accounts equal the ledger's, and nothing is left in flight.
func TestQuotaInAllInterleavings(t *testing.T) {
	now := time.Unix(1000, 0)
	const burst = 100
	n := 0
	for order := range rig.Orders(3, 3, 2, 2) {
		if n++; rig.Race && n%50 != 0 {
			continue // there is only one goroutine
		}
		admitter, err := quota.New(quota.Config{Limits: all(quota.Limits{Rate: 1, Burst: burst, Requests: 2}), OutputWeight: 1, MaxTenants: 1})
		require.NoError(t, err)
		q := admitter.(*quota.Quota)
		l := &ledger{burst: burst, requests: 2, tenants: map[string]*line{}}
		requests := [4]endpick.Request{
			{Tenant: "a", InputTokens: 40, ExpectedOutputTokens: 10}, {Tenant: "a", InputTokens: 60},
			{Tenant: "b", InputTokens: 30}, {Tenant: "a", InputTokens: 20, Adopted: &endpick.Adopted{Endpoint: "a"}},
		}
		event := func(i int) *endpick.Event {
			return &endpick.Event{Lease: endpick.LeaseRef{Slot: uint32(i), Generation: 1}, Request: &requests[i], Candidate: &endpick.Candidate{}, Now: now, RoutedAt: now}
		}
		for i := range requests {
			requests[i] = requests[i].At(now, 1, uint64(i+1))
		}
		var in [4]bool
		admit := func(i int) {
			cost := float64(requests[i].InputTokens + requests[i].ExpectedOutputTokens)
			in[i] = q.Admit(&requests[i], nil) == nil
			if l.admit(requests[i].Tenant, cost) != in[i] {
				require.Fail(t, "the ledger says otherwise", "%v: request %d", order, i)
			}
		}
		done := func(i int, o endpick.Outcome, back float64) {
			for range 2 { // the second time the lease is no longer valid
				q.Done(event(i), &o)
			}
			l.ends(requests[i].Tenant, back)
		}
		var at [4]int
		for _, i := range order {
			at[i]++
			switch step := fmt.Sprint(i, at[i]); {
			case step == "0 1", step == "1 1", step == "2 1":
				admit(i)
			case i < 3 && !in[i]: // refused
			case step == "0 2", step == "1 2":
				q.Routed(event(i))
			case step == "0 3":
				done(i, endpick.Outcome{}, 10) // none of the ten expected tokens was generated
			case step == "1 3":
				done(i, endpick.Outcome{Status: endpick.Failed}, 60)
			case step == "2 2":
				q.Withdrawn(&requests[i])
				l.ends("b", 30)
			case step == "3 1": // another goroutine admitted it
				q.Routed(event(i))
				l.find("a").tokens -= 20
				l.tenants["a"].open++
				l.rest("a")
			case step == "3 2":
				done(i, endpick.Outcome{Status: endpick.Canceled}, 0)
			}
			got := map[string]line{}
			for _, u := range q.Tenants(now) {
				got[u.Tenant] = line{u.Tokens, u.Requests}
			}
			want := map[string]line{}
			for name, t := range l.tenants {
				want[name] = *t
			}
			if !maps.Equal(want, got) {
				require.Equal(t, want, got, "%v, after %d calls", order, at[0]+at[1]+at[2]+at[3])
			}
		}
		for _, u := range q.Tenants(now) {
			if u.Requests != 0 {
				require.Zero(t, u.Requests, "%v", order)
			}
		}
	}
	require.Equal(t, 25200, n)
}
