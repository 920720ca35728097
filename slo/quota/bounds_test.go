package quota_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/quota"
)

func TestConfigBounds(t *testing.T) {
	ok := all(quota.Limits{})
	_, err := quota.New(quota.Config{Limits: ok, OutputWeight: 1e6})
	require.NoError(t, err)
	_, err = quota.New(quota.Config{Limits: ok, OutputWeight: 1e6 + 1})
	assert.EqualError(t, err, "endpick: config: quota.Config.OutputWeight is 1.000001e+06, not within 0 and 1e6")
}

// Requests that are never refused (mirrors, adopted ones) are charged and counted too.
func TestAdopted(t *testing.T) {
	s := open(t, quota.Config{Limits: all(quota.Limits{Rate: 1, Burst: 100, Requests: 2})})
	first, err := s.route("a", 60, 0)
	require.NoError(t, err)
	_, err = s.Route(endpick.Request{Tenant: "a", InputTokens: 60, Adopted: &endpick.Adopted{Endpoint: "a"}})
	require.NoError(t, err)
	_, err = s.Route(endpick.Request{Tenant: "b", InputTokens: 60, Adopted: &endpick.Adopted{Endpoint: "a", Mirrored: true}})
	require.NoError(t, err)
	_, err = s.route("a", 1, 0)
	assert.Equal(t, 2, refused(t, err).Requests)
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
	s := open(t, quota.Config{OutputWeight: 1, Limits: func(string) quota.Limits {
		if broken {
			panic("no limits")
		}
		return quota.Limits{Rate: 1, Burst: 100, Requests: 1}
	}})
	first, err := s.route("a", 10, 0)
	require.NoError(t, err)
	broken = true
	second, err := s.route("a", 20, 0)
	require.NoError(t, err)
	third, err := s.Route(endpick.Request{Tenant: "a", InputTokens: 5, Adopted: &endpick.Adopted{Endpoint: "a"}})
	require.NoError(t, err)
	assert.EqualValues(t, 2, s.Stats().Panics)
	assert.Equal(t, 65.0, s.left("a"))
	broken = false
	second.Done(endpick.Outcome{InputTokens: 30})
	third.Done(endpick.Outcome{Status: endpick.Failed})
	assert.Equal(t, 60.0, s.left("a"))
	_, err = s.route("a", 1, 0)
	assert.Equal(t, 1, refused(t, err).Requests)
	first.Done(endpick.Outcome{})
	fourth, err := s.route("a", 1, 0)
	require.NoError(t, err)
	_, err = s.route("a", 1, 0)
	assert.Equal(t, 1, refused(t, err).Requests, "no more than before at once")
	fourth.Done(endpick.Outcome{})
}

// A debt arises when a request ends: tokens that flowed into a full bucket before
// that are lost and do not pay for it afterwards.
func TestTheDebtComesAfterTheFlow(t *testing.T) {
	s := open(t, quota.Config{Limits: all(quota.Limits{Rate: 10, Burst: 100}), OutputWeight: 1})
	lease, err := s.route("a", 10, 0)
	require.NoError(t, err)
	s.now = s.now.Add(10 * time.Second) // full for the last nine seconds
	lease.Done(endpick.Outcome{InputTokens: 10, OutputTokens: 50})
	assert.Equal(t, 50.0, s.left("a"))
}

func TestWhatIsBelievedIsBounded(t *testing.T) {
	s := open(t, quota.Config{Limits: all(quota.Limits{Rate: 1, Burst: 100})})
	lease, err := s.route("a", 10, 0)
	require.NoError(t, err)
	lease.Done(endpick.Outcome{InputTokens: math.MaxInt32})
	assert.Equal(t, 100.0-1<<24, s.left("a"))
}

// However large the bucket and however slowly it fills, RetryAfter is positive and
// a request that waits that long is admitted, despite rounding.
func TestRetryAfterIsEnough(t *testing.T) {
	for _, l := range []quota.Limits{
		{Rate: 0.3, Burst: 7}, {Rate: 1e3 / 3., Burst: 1e9}, {Rate: 1e7 / 3., Burst: 1e15 / 7}, {Rate: 1e-3, Burst: 1},
	} {
		s := open(t, quota.Config{Limits: all(l)})
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
	s := open(t, quota.Config{Limits: all(quota.Limits{Rate: 1e-12, Burst: 1})})
	_, err := s.route("a", 1, 0)
	require.NoError(t, err)
	_, err = s.route("a", 1, 0)
	assert.Greater(t, refused(t, err).RetryAfter, 100*365*24*time.Hour, "longer than can be said is not at once")
}

// A clock that is behind by less than the time to fill the bucket, or than a
// second, is another goroutine's late reading and takes no tokens. A clock further
// behind has been set back.
func TestClocksThatAreLate(t *testing.T) {
	for _, tc := range []struct {
		burst   float64 // 10 tokens a second
		late    time.Duration
		setBack bool
	}{
		{100, 9 * time.Second, false},
		{100, 11 * time.Second, true},
		{1, 900 * time.Millisecond, false},
		{1, 1100 * time.Millisecond, true},
	} {
		s := open(t, quota.Config{Limits: all(quota.Limits{Rate: 10, Burst: tc.burst})})
		_, err := s.route("a", int(tc.burst), 0)
		require.NoError(t, err)
		s.now = s.now.Add(-tc.late)
		assert.Zero(t, s.left("a"))
		s.now = s.now.Add(50 * time.Millisecond)
		want := 0.0
		if tc.setBack {
			want = 0.5
		}
		assert.InDelta(t, want, s.left("a"), 1e-9, "bucket of %v, late by %v", tc.burst, tc.late)
		if !tc.setBack {
			s.now = s.now.Add(tc.late)
			assert.InDelta(t, 0.5, s.left("a"), 1e-9, "time has passed once")
		}
	}
}

// The remembered tenants are those of a list made by hand: all with something in
// flight, and of the others the most recently used, as far as there is room.
func TestForgettingIsLikeItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 4).Draw(t, "most")
		s := open(t, quota.Config{Limits: all(quota.Limits{Rate: 1, Burst: 100, Requests: 3}), MaxTenants: most})
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
				_, err := s.route(who, 1, 0)
				s.no.refuse = false
				if err == nil {
					t.Fatal("routed")
				}
				used(who)
			},
			"": func(t *rapid.T) {
				got := map[string]bool{}
				for _, u := range s.quota.Tenants(s.now) {
					got[u.Tenant] = true
					if u.Requests != len(open[u.Tenant]) {
						t.Fatalf("%+v, open are %d", u, len(open[u.Tenant]))
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(known) {
					t.Fatalf("remembered are %v, not %v", got, known)
				}
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
		s := open(t, quota.Config{Limits: all(limits)})
		l, err := s.route("a", 1, 0)
		require.NoError(t, err, "%v", limits)
		assert.Equal(t, []quota.Usage{{Tenant: "a", Requests: 1, Tokens: want - 1, Burst: want}}, s.quota.Tenants(s.now), "%v", limits)
		l.Done(endpick.Outcome{})
	}
}

// Tokens that flowed in before a limit changes did so at the old rate.
func TestTheFlowIsThatOfItsTime(t *testing.T) {
	limits := quota.Limits{Rate: 1, Burst: 100}
	s := open(t, quota.Config{Limits: func(string) quota.Limits { return limits }})
	use := func(tokens int) {
		_, err := s.route("a", tokens, 0)
		require.NoError(t, err)
	}
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
	s := open(t, quota.Config{Limits: all(quota.Limits{Rate: 1, Burst: 10})})
	const most = 16_384
	body := `{"user":"someone"}`
	name := body[9:16]
	_, err := s.route(name, 1, 0)
	require.NoError(t, err)
	remembered := s.quota.Tenants(s.now)[0].Tenant
	require.Equal(t, "someone", remembered)
	require.NotSame(t, unsafe.StringData(name), unsafe.StringData(remembered))
	for i := range most + 10 {
		lease, err := s.route(fmt.Sprint(i), 1, 0)
		require.NoError(t, err)
		lease.Done(endpick.Outcome{})
	}
	require.Len(t, s.quota.Tenants(s.now), most)
}
