package quota_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo/quota"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// shop is a router with a quota, on a clock that the test moves.
type shop struct {
	*endpick.Router
	quota *quota.Quota
	now   time.Time
	no    *later
}

// later is an admitter behind the quota that refuses on demand.
type later struct{ refuse bool }

var errLater = errors.New("refused later")

func (l *later) Admit(*endpick.Request, []endpick.Candidate) error {
	if l.refuse {
		return errLater
	}
	return nil
}

func open(config quota.Config) *shop {
	s := &shop{now: time.Unix(1000, 0), no: &later{}}
	s.quota = rig.Must(quota.New(config)).(*quota.Quota)
	s.Router = rig.Must(endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}},
		Policy:    endpick.Policy{Admitters: []endpick.Admitter{s.quota, s.no}},
		Clock:     func() time.Time { return s.now }, Seed: 1,
	}))
	return s
}

// all gives every tenant the same limits.
func all(l quota.Limits) func(string) quota.Limits { return func(string) quota.Limits { return l } }

func (s *shop) route(tenant string, input, expected int) (endpick.Lease, error) {
	return s.Route(endpick.Request{Tenant: tenant, InputTokens: input, ExpectedOutputTokens: expected, Responses: 2, Stream: true})
}

func (s *shop) left(tenant string) float64 {
	for _, u := range s.quota.Tenants(s.now) {
		if u.Tenant == tenant {
			return u.Tokens
		}
	}
	return math.NaN()
}

// refused returns the quota's error, which must be there.
func refused(t testing.TB, err error) *quota.Error {
	var e *quota.Error
	require.ErrorAs(t, err, &e)
	require.ErrorAs(t, err, new(*endpick.RejectedError))
	return e
}

func asQuota(err error) (e *quota.Error, ok bool) {
	ok = errors.As(err, &e)
	return e, ok
}

// Worked out by hand: a bucket of 1,000 tokens, 100 a second flow in, and an
// output token costs 3.
func TestTokensAreChargedAndCorrected(t *testing.T) {
	s := open(quota.Config{Limits: all(quota.Limits{Rate: 100, Burst: 1000}), OutputWeight: 3})
	a := rig.Must(s.route("a", 400, 100)) // 400 + 300
	assert.Equal(t, 300.0, s.left("a"))
	e := refused(t, rig.Err(s.route("a", 350, 0)))
	assert.Equal(t, &quota.Error{Tenant: "a", Need: 350, Have: 300, RetryAfter: 500 * time.Millisecond}, e)
	assert.EqualError(t, e, `quota: out of tokens: tenant "a" needs 350 and has 300, try again in 500ms`)
	b, err := s.route("b", 1000, 0)
	require.NoError(t, err, "another's bucket is another")

	s.now = s.now.Add(time.Second) // 400
	a.Done(endpick.Outcome{InputTokens: 420, OutputTokens: 10})
	assert.Equal(t, 400.0+700-420-30, s.left("a"))
	b.Tokens(50)
	b.Done(endpick.Outcome{Status: endpick.Canceled})
	assert.Equal(t, 100.0-150, s.left("b"), "who goes away pays for the prompt and for what came: a debt")
	assert.Equal(t, 510*time.Millisecond, refused(t, rig.Err(s.route("b", 1, 0))).RetryAfter)

	s.now = s.now.Add(time.Hour)
	assert.Equal(t, 1000.0, s.left("a"), "never more than the bucket")
	huge, err := s.route("a", 5000, math.MaxInt32)
	require.NoError(t, err, "a full bucket is enough for anything, and the debt remains")
	assert.Equal(t, 1000.0-5000-3*(1<<24), s.left("a"), "what is believed is bounded")
	huge.Done(endpick.Outcome{Status: endpick.Failed})
	assert.Equal(t, 1000.0, s.left("a"), "an endpoint that fails at once costs nothing")
	cut := rig.Must(s.route("a", 100, 0))
	cut.Tokens(7)
	cut.Done(endpick.Outcome{Status: endpick.Failed})
	assert.Equal(t, 1000.0-100-21, s.left("a"), "one that breaks off, what came of it")
	_ = rig.Must(s.route("c", 0, 0))
	assert.Equal(t, 999.0, s.left("c"), "an unknown length costs one")
	rig.Must(s.route("d", 10, 0)).Done(endpick.Outcome{InputTokens: math.MaxInt32})
	assert.Equal(t, 1000.0-1<<24, s.left("d"), "usage is believed up to the same bound")
}

func TestRequestsAtOnce(t *testing.T) {
	s := open(quota.Config{Limits: all(quota.Limits{Requests: 2})})
	one, err := s.route("a", 1<<20, 1<<20)
	require.NoError(t, err, "tokens are not limited")
	_ = rig.Must(s.route("a", 1, 0))
	e := refused(t, rig.Err(s.route("a", 1, 0)))
	assert.Equal(t, &quota.Error{Tenant: "a", Requests: 2, RetryAfter: time.Second}, e)
	assert.EqualError(t, e, `quota: too many requests at once: tenant "a" has 2 in flight`)
	_ = rig.Must(s.route("b", 1, 0))
	one.Done(endpick.Outcome{})
	one.Done(endpick.Outcome{})
	_ = rig.Must(s.route("a", 1, 0))
	refused(t, rig.Err(s.route("a", 1, 0)))
	assert.Len(t, s.quota.Tenants(s.now), 2)
	s.now = s.now.Add(time.Hour)
	assert.Equal(t, 3, s.Sweep(s.now))
	for range 2 {
		require.NoError(t, rig.Err(s.route("a", 1, 0)), "leases that were lost count no longer")
	}
}

// A failure before the first token costs nothing. One after it does, even if the
// host has counted no tokens.
func TestWhatFailedLateIsPaid(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(endpick.Lease)
		left   float64
	}{
		"nothing":        {func(endpick.Lease) {}, 1000},
		"a sign of life": {func(l endpick.Lease) { l.Tokens(0) }, 1000},
		"a first token":  {func(l endpick.Lease) { l.FirstToken() }, 900},
		"tokens":         {func(l endpick.Lease) { l.Tokens(5) }, 890},
	} {
		for _, status := range []endpick.Status{endpick.Failed, endpick.Refused} {
			s := open(quota.Config{Limits: all(quota.Limits{Rate: 1, Burst: 1000})})
			lease := rig.Must(s.route("a", 100, 50))
			tc.before(lease)
			lease.Done(endpick.Outcome{Status: status})
			assert.Equal(t, tc.left, s.left("a"), "%s, %v", name, status)
		}
	}
}

// Limits may change while requests are in flight; usage stays.
func TestLimitsChange(t *testing.T) {
	var limits atomic.Pointer[quota.Limits]
	limits.Store(&quota.Limits{Rate: 10, Burst: 100})
	s := open(quota.Config{Limits: func(string) quota.Limits { return *limits.Load() }})
	first := rig.Must(s.route("a", 80, 0))
	limits.Store(&quota.Limits{Rate: 10, Burst: 1000})
	assert.Equal(t, 3*time.Second, refused(t, rig.Err(s.route("a", 50, 0))).RetryAfter, "a larger bucket is not a fuller one")
	limits.Store(&quota.Limits{Rate: 10, Burst: 15})
	require.NoError(t, rig.Err(s.route("a", 5, 0)))
	assert.Equal(t, 10.0, s.left("a"))
	limits.Store(&quota.Limits{})
	free := rig.Must(s.route("a", 1000, 0))
	first.Done(endpick.Outcome{})
	limits.Store(&quota.Limits{Rate: 1})
	require.NoError(t, rig.Err(s.route("a", 1, 0)))
	assert.Equal(t, 59.0, s.left("a"), "a minute's, full")
	free.Done(endpick.Outcome{Status: endpick.Failed})
	assert.Equal(t, 59.0, s.left("a"), "what was not charged is not given back")
}

func TestConfig(t *testing.T) {
	ok := all(quota.Limits{})
	for field, c := range map[string]quota.Config{
		"Limits": {}, "OutputWeight": {Limits: ok, OutputWeight: math.NaN()}, "MaxTenants": {Limits: ok, MaxTenants: -1},
	} {
		assert.Equal(t, "quota.Config."+field, rig.Field(quota.New(c)))
	}
	require.ErrorAs(t, rig.Err(quota.New(quota.Config{Limits: ok, OutputWeight: -1})), new(*endpick.ConfigError))
	require.NoError(t, rig.Err(quota.New(quota.Config{Limits: ok, OutputWeight: 1e6})))
	_, err := quota.New(quota.Config{Limits: ok, OutputWeight: 1e6 + 1})
	assert.EqualError(t, err, "endpick: config: quota.Config.OutputWeight is 1.000001e+06, not within 0 and 1e6")
	s := open(quota.Config{Limits: all(quota.Limits{Rate: math.NaN(), Burst: -1, Requests: -1})})
	for range 10 {
		require.NoError(t, rig.Err(s.route("a", 1<<20, 0)), "limits that make no sense limit nothing")
	}
}

// However many requests come at once, no more are admitted than the limit allows.
func TestLimitHoldsForManyAtOnce(t *testing.T) {
	const most = 5
	q := rig.Must(quota.New(quota.Config{Limits: all(quota.Limits{Requests: most, Rate: 1e-9, Burst: 1000})}))
	r := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a"}}, Policy: endpick.Policy{Admitters: []endpick.Admitter{q}}}))
	var wg sync.WaitGroup
	var open, worst, served atomic.Int64
	for range 16 {
		wg.Go(func() {
			for range 200 {
				lease, err := r.Route(endpick.Request{InputTokens: 1})
				if err != nil {
					continue
				}
				if n := open.Add(1); n > worst.Load() {
					worst.Store(n)
				}
				served.Add(1)
				open.Add(-1)
				lease.Done(endpick.Outcome{})
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, worst.Load(), int64(most))
	assert.LessOrEqual(t, served.Load(), int64(1000))
	assert.Positive(t, served.Load())
}

func TestAllocs(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector allocates")
	s := open(quota.Config{Limits: all(quota.Limits{Rate: 1e9, Requests: 100})})
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		rig.Must(s.route("a", 100, 100)).Done(endpick.Outcome{OutputTokens: 50})
	}))
}

func TestStagesConform(t *testing.T) {
	newQuota := func(t *testing.T) endpick.Admitter {
		q := rig.Must(quota.New(quota.Config{Limits: func(string) quota.Limits {
			return quota.Limits{Rate: 1000, Burst: 1 << 22, Requests: 2}
		}}))
		return q
	}
	scorertest.RunAdmitter(t, newQuota)
	t.Run("observer", func(t *testing.T) { scorertest.RunObserver(t, func(t *testing.T) any { return newQuota(t) }) })
}

// Requests that are never refused (mirrors, adopted ones) are charged and counted too.
func TestAdopted(t *testing.T) {
	s := open(quota.Config{Limits: all(quota.Limits{Rate: 1, Burst: 100, Requests: 2})})
	first := rig.Must(s.route("a", 60, 0))
	require.NoError(t, rig.Err(s.Route(endpick.Request{Tenant: "a", InputTokens: 60, Adopted: &endpick.Adopted{Endpoint: "a"}})))
	require.NoError(t, rig.Err(s.Route(endpick.Request{Tenant: "b", InputTokens: 60, Adopted: &endpick.Adopted{Endpoint: "a", Mirrored: true}})))
	assert.Equal(t, 2, refused(t, rig.Err(s.route("a", 1, 0))).Requests)
	assert.Equal(t, 40.0, s.left("b"), "what another router has sent is paid for here too")
	first.Done(endpick.Outcome{})

	before := s.quota.Tenants(s.now)
	s.quota.Withdrawn(&endpick.Request{Tenant: "nobody", InputTokens: 60})
	assert.Equal(t, before, s.quota.Tenants(s.now), "nothing of theirs was let in")
}

// A request whose limits are not known, because Limits panics, is let in, charged by the limits of
// before, and counted: afterwards the account is as if nothing had been wrong.
func TestLimitsThatPanic(t *testing.T) {
	broken := false
	s := open(quota.Config{OutputWeight: 1, Limits: func(string) quota.Limits {
		if broken {
			panic("no limits")
		}
		return quota.Limits{Rate: 1, Burst: 100, Requests: 1}
	}})
	first := rig.Must(s.route("a", 10, 0))
	s.now = s.now.Add(time.Minute) // and it is full again
	broken = true
	second := rig.Must(s.route("a", 20, 0))
	third := rig.Must(s.Route(endpick.Request{Tenant: "a", InputTokens: 5, Adopted: &endpick.Adopted{Endpoint: "a"}}))
	assert.EqualValues(t, 2, s.Stats().Panics)
	assert.Equal(t, 75.0, s.left("a"))
	broken = false
	second.Done(endpick.Outcome{InputTokens: 30})
	third.Done(endpick.Outcome{Status: endpick.Failed})
	assert.Equal(t, 70.0, s.left("a"))
	assert.Equal(t, 1, refused(t, rig.Err(s.route("a", 1, 0))).Requests)
	first.Done(endpick.Outcome{})
	fourth := rig.Must(s.route("a", 1, 0))
	assert.Equal(t, 1, refused(t, rig.Err(s.route("a", 1, 0))).Requests, "no more than before at once")
	fourth.Done(endpick.Outcome{})
}

// A debt arises when a request ends: tokens that flowed into a full bucket before
// that are lost and do not pay for it afterwards.
func TestTheDebtComesAfterTheFlow(t *testing.T) {
	s := open(quota.Config{Limits: all(quota.Limits{Rate: 10, Burst: 100}), OutputWeight: 1})
	lease := rig.Must(s.route("a", 10, 0))
	s.now = s.now.Add(10 * time.Second) // full for the last nine seconds
	lease.Done(endpick.Outcome{InputTokens: 10, OutputTokens: 50})
	assert.Equal(t, 50.0, s.left("a"))
}

// However large the bucket and however slowly it fills, RetryAfter is positive and
// a request that waits that long is admitted, despite rounding.
func TestRetryAfterIsEnough(t *testing.T) {
	for _, l := range []quota.Limits{
		{Rate: 0.3, Burst: 7}, {Rate: 1e3 / 3., Burst: 1e9}, {Rate: 1e7 / 3., Burst: 1e15 / 7}, {Rate: 1e-3, Burst: 1},
	} {
		s := open(quota.Config{Limits: all(l)})
		for used := 0; used < 200; used++ {
			want := 1 + int(min(l.Burst, 1<<24)*float64(used%7)/8)
			lease, err := s.route("a", want, 0)
			if e, ok := asQuota(err); ok {
				require.Positive(t, e.RetryAfter)
				s.now = s.now.Add(e.RetryAfter)
				lease, err = s.route("a", want, 0)
			}
			require.NoError(t, err, "%+v", l)
			lease.Done(endpick.Outcome{InputTokens: want})
		}
	}
	s := open(quota.Config{Limits: all(quota.Limits{Rate: 1e-12, Burst: 1})})
	require.NoError(t, rig.Err(s.route("a", 1, 0)))
	assert.Greater(t, refused(t, rig.Err(s.route("a", 1, 0))).RetryAfter, 100*365*24*time.Hour, "longer than can be said is not at once")
}

// What has flowed in by another goroutine's later reading of the clock does not flow in twice.
func TestReadingsThatAreLate(t *testing.T) {
	s := open(quota.Config{Limits: all(quota.Limits{Rate: 10, Burst: 100})})
	require.NoError(t, rig.Err(s.route("a", 100, 0)))
	s.now = s.now.Add(-9 * time.Second)
	assert.Zero(t, s.left("a"))
	s.now = s.now.Add(9*time.Second + 50*time.Millisecond)
	assert.InDelta(t, 0.5, s.left("a"), 1e-9)
}

// The remembered tenants are those of a list made by hand: all with something in
// flight, and of the others the most recently used, as far as there is room.
func TestForgettingIsLikeItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 4).Draw(t, "most")
		s := open(quota.Config{Limits: all(quota.Limits{Rate: 1, Burst: 100, Requests: 3}), MaxTenants: most})
		open := map[string][]endpick.Lease{}
		var idle []string // the least recently used first
		known := map[string]bool{}
		used := func(name string) {
			known[name] = true
			idle = slices.DeleteFunc(idle, func(n string) bool { return n == name })
			if len(open[name]) == 0 {
				idle = append(idle, name)
			}
			for len(known) > most && len(idle) > 0 {
				delete(known, idle[0])
				idle = idle[1:]
			}
		}
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
		t.Repeat(map[string]func(*rapid.T){
			"route": func(t *rapid.T) {
				who := name.Draw(t, "tenant")
				req := endpick.Request{Tenant: who, InputTokens: 1}
				if rapid.Bool().Draw(t, "adopted") {
					req.Adopted = &endpick.Adopted{Endpoint: "a"}
				}
				lease, err := s.Route(req)
				var over *quota.Error
				switch {
				case err == nil:
					open[who] = append(open[who], lease)
				case !errors.As(err, &over) || over.Requests == 0:
					t.Fatal(err)
				}
				used(who)
			},
			"done": func(t *rapid.T) {
				who := name.Draw(t, "tenant")
				if n := len(open[who]); n > 0 {
					open[who][n-1].Done(endpick.Outcome{})
					open[who] = open[who][:n-1]
					used(who)
				}
			},
			"refuse": func(t *rapid.T) {
				who := name.Draw(t, "tenant")
				s.no.refuse = true
				require.Error(t, rig.Err(s.route(who, 1, 0)))
				s.no.refuse = false
				used(who)
			},
			"": func(t *rapid.T) {
				got := map[string]bool{}
				for _, u := range s.quota.Tenants(s.now) {
					got[u.Tenant] = true
					require.Len(t, open[u.Tenant], u.Requests)
				}
				require.Equal(t, fmt.Sprint(known), fmt.Sprint(got), "remembered")
			},
		})
	})
}

// A bucket holds at least one token, or it would never admit anything; its default
// size is what flows in within a minute.
func TestBucketsHoldSomething(t *testing.T) {
	for limits, want := range map[quota.Limits]float64{
		{Rate: 3}:             180,
		{Rate: 3, Burst: 7}:   7,
		{Rate: 0.001}:         1,
		{Rate: 3, Burst: 0.5}: 1,
	} {
		s := open(quota.Config{Limits: all(limits)})
		l, err := s.route("a", 1, 0)
		require.NoError(t, err, "%v", limits)
		assert.Equal(t, []quota.Usage{{Tenant: "a", Requests: 1, Tokens: want - 1, Burst: want}}, s.quota.Tenants(s.now), "%v", limits)
		l.Done(endpick.Outcome{})
	}
}

// Tokens that flowed in before a limit changes did so at the old rate.
func TestTheFlowIsThatOfItsTime(t *testing.T) {
	limits := quota.Limits{Rate: 1, Burst: 100}
	s := open(quota.Config{Limits: func(string) quota.Limits { return limits }})
	use := func(tokens int) { require.NoError(t, rig.Err(s.route("a", tokens, 0))) }
	use(100)
	s.now = s.now.Add(30 * time.Second)
	limits = quota.Limits{Rate: 10, Burst: 1000}
	use(10)
	assert.Equal(t, 20.0, s.left("a"))
	s.now = s.now.Add(30 * time.Second)
	assert.Equal(t, 320.0, s.left("a"))
	limits = quota.Limits{Rate: 1, Burst: 500}
	use(20)
	assert.Equal(t, 300.0, s.left("a"))
}

// As many tenants are remembered as the documentation says, and their names are copies:
// the request's may be part of its body.
func TestTenantsAreRemembered(t *testing.T) {
	s := open(quota.Config{Limits: all(quota.Limits{Rate: 1, Burst: 10})})
	const most = 16_384
	body := `{"user":"someone"}`
	name := body[9:16]
	require.NoError(t, rig.Err(s.route(name, 1, 0)))
	remembered := s.quota.Tenants(s.now)[0].Tenant
	require.Equal(t, "someone", remembered)
	require.NotSame(t, unsafe.StringData(name), unsafe.StringData(remembered))
	for i := range most + 10 {
		rig.Must(s.route(fmt.Sprint(i), 1, 0)).Done(endpick.Outcome{})
	}
	require.Len(t, s.quota.Tenants(s.now), most)
}

// The second time that a lease ends, it is no longer valid: nothing is given back twice.
func TestALeaseEndsOnce(t *testing.T) {
	q := open(quota.Config{Limits: all(quota.Limits{Rate: 1, Burst: 100, Requests: 2})}).quota
	now := time.Unix(1000, 0)
	req := endpick.Request{Tenant: "a", InputTokens: 60}.At(now, 1, 1)
	e := &endpick.Event{Lease: endpick.LeaseRef{Slot: 1, Generation: 1}, Request: &req, Candidate: &endpick.Candidate{}, Now: now, RoutedAt: now}
	require.NoError(t, q.Admit(&req, nil))
	q.Routed(e)
	for range 2 {
		q.Done(e, &endpick.Outcome{})
		assert.Zero(t, q.Tenants(now)[0].Requests)
	}
}
