package slo_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLatencyAdmitter(t *testing.T) {
	full := func() []endpick.Candidate { return fleet(both(300, 60), both(400, 40)) }
	change := func(f func(*endpick.Candidate)) []endpick.Candidate {
		cs := full()
		f(&cs[1])
		return cs
	}
	for _, tc := range []struct {
		name     string
		req      endpick.Request
		priority int
		cs       []endpick.Candidate
		want     string
	}{
		{"out of reach", ask(200, 0), -1, full(), "slo: SLO out of reach of 2 endpoints: TTFT 200ms, at best 300ms"},
		{"no endpoint has both", ask(350, 50), -1, full(),
			"slo: SLO out of reach of 2 endpoints: TTFT 350ms, at best 300ms; TPOT 50ms, at best 40ms"},
		{"one that is asked for is at once", ask(350, 50), -1, fleet(both(0, 60)),
			"slo: SLO out of reach of 1 endpoints: TTFT 350ms, at best 1ns; TPOT 50ms, at best 60ms"},
		{"not sheddable", ask(200, 0), 0, full(), ""},
		{"no SLO", ask(0, 0), -1, full(), ""},
		{"within reach of one", ask(200, 0), -1, change(func(c *endpick.Candidate) { c.Prediction = both(100, 1) }), ""},
		{"one is idle", ask(200, 0), -1, change(func(c *endpick.Candidate) { c.Running = 0 }), ""},
		{"one is cold", ask(200, 0), -1, change(func(c *endpick.Candidate) { c.KVUsage = 0.019 }), ""},
		{"cold no more", ask(200, 0), -1, change(func(c *endpick.Candidate) { c.KVUsage = 0.02 }),
			"slo: SLO out of reach of 2 endpoints: TTFT 200ms, at best 300ms"},
		{"one is not predicted", ask(200, 0), -1, change(func(c *endpick.Candidate) { c.Prediction = endpick.Prediction{} }), ""},
		{"one is predicted badly", ask(200, 0), -1, change(func(c *endpick.Candidate) { c.Prediction.TTFT = -1 }), ""},
		{"no candidates", ask(200, 0), -1, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.req.Priority = tc.priority
			err := slo.NewLatencyAdmitter(nil).Admit(&tc.req, tc.cs)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorAs(t, err, new(*slo.UnattainableError))
			assert.EqualError(t, err, tc.want)
		})
	}

	// The bound is for choosing: a request whose expected latency is within the target is not
	// refused.
	req := ask(350, 0)
	req.Priority = -1
	require.NoError(t, slo.NewLatencyAdmitter(rig.Must(slo.NewHeadroom(slo.HeadroomConfig{UpperBound: true}))).Admit(&req, full()))
}
