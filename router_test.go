package endpick_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfigValidation(t *testing.T) {
	for field, config := range map[string]endpick.Config{"LeaseTimeout": {LeaseTimeout: -1}, "ReportMaxAge": {ReportMaxAge: -1}} {
		r, err := endpick.New(config)
		assert.Nil(t, r)
		assert.Equal(t, &endpick.ConfigError{Field: field, Reason: "is negative"}, err)
		assert.EqualError(t, err, "endpick: config: "+field+" is negative")
	}
	r, err := endpick.New(endpick.Config{Endpoints: named("a", "a")})
	assert.Nil(t, r)
	assert.EqualError(t, err, `endpick: endpoint "a" is listed twice`)
	assert.ErrorAs(t, err, new(*endpick.EndpointError))

	r = rig.Must(endpick.New(endpick.Config{}))
	assert.ErrorAs(t, rig.Err(r.Route(endpick.Request{})), new(*endpick.NoEndpointError))
	for _, err := range []error{r.Drain("x"), r.Resume("x"), r.Remove("x"), r.Report("x", endpick.Load{})} {
		assert.EqualError(t, err, `endpick: endpoint "x" is unknown`)
		assert.ErrorIs(t, err, endpick.ErrUnknownEndpoint)
		var endpoint *endpick.EndpointError
		require.True(t, errors.As(err, &endpoint))
		assert.Equal(t, "x", endpoint.ID)
	}
}

// The defaults are as documented, with the host's clock.
func TestDefaultClock(t *testing.T) {
	r := rig.Must(endpick.New(endpick.Config{Endpoints: named("a")}))
	before := time.Now()
	var receipt endpick.Receipt
	l := rig.Must(r.Route(endpick.Request{Receipt: &receipt}))
	assert.WithinRange(t, receipt.At, before, time.Now())
	assert.Zero(t, r.Sweep(time.Now().Add(10*time.Minute-time.Minute/2)))
	assert.Equal(t, 1, r.Sweep(time.Now().Add(10*time.Minute+time.Minute/2)))
	assert.False(t, l.Done(endpick.Outcome{}))
}

// withoutStack is a warning that can be compared.
func withoutStack(err error) error {
	if p, ok := err.(*endpick.PanicError); ok {
		return &endpick.PanicError{Stage: p.Stage, Value: p.Value}
	}
	return err
}

// A clock that panics costs nobody anything, whoever's goroutine asks for the time: it goes on
// from where the host's clock was when the router was made.
func TestAClockThatPanicsIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := false
		var l endpick.Lease
		began := time.Now()
		var told []error
		heard := new(spy)
		r, err := endpick.New(endpick.Config{
			Endpoints: named("a"),
			Policy:    scoredBy(heard),
			Clock: func() time.Time {
				if broken {
					panic("boom")
				}
				return time.Unix(1000, 0).Add(time.Since(began))
			},
			Warn: func(err error) {
				told = append(told, withoutStack(err))
				l.Candidate() // no lock is held
			},
		})
		require.NoError(t, err)
		old := rig.Must(r.Route(endpick.Request{InputTokens: 7}))
		time.Sleep(time.Minute)
		broken = true
		l = rig.Must(r.Route(endpick.Request{InputTokens: 5, Stream: true}))
		time.Sleep(time.Second)
		l.FirstToken()
		l.Tokens(3)
		require.NoError(t, r.Report("a", endpick.Load{Waiting: 3, Snapshot: r.Snapshot("a")}))
		assert.EqualValues(t, 3, r.Endpoints()[0].Candidate.Waiting)
		assert.Len(t, r.AppendCandidates(nil), 1)
		assert.Equal(t, time.Unix(1061, 0), r.Now())
		assert.Equal(t, 2, r.Stats().OpenLeases)
		assert.True(t, l.Done(endpick.Outcome{}))
		assert.Equal(t, time.Second, heard.take()[0].latencies()[0])
		assert.True(t, old.Done(endpick.Outcome{}))
		requireQuiet(t, r)
		assert.Len(t, told, 11)
		for _, err := range told {
			assert.Equal(t, &endpick.PanicError{Stage: "Config.Clock", Value: "boom"}, err)
		}
		assert.EqualValues(t, 11, r.Stats().Panics)
	})
}

// Many endpoints that are excluded, or avoided, are left out as few are.
func TestManyAreLeftOut(t *testing.T) {
	config := endpick.Config{}
	var ids []string
	for i := range 100 {
		id := fmt.Sprint(i)
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id})
		ids = append(ids, id)
	}
	r := rig.Must(endpick.New(config))
	for _, n := range []int{16, 17, 99} {
		out := slices.Clone(ids[:n])
		slices.Reverse(out)
		want := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(out, id) })
		given := slices.Clone(out)
		for range 50 {
			lease := rig.Must(r.Route(endpick.Request{Exclude: out}))
			assert.Contains(t, want, lease.Endpoint().ID)
			lease.Done(endpick.Outcome{})
		}
		assert.Equal(t, given, out, "it is the caller's")
	}
}
