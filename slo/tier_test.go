package slo_test

import (
	"slices"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/assert"
)

func filter(f endpick.Filter, req endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
	return f.Filter(&req, slices.Clone(cs))
}

func TestTier(t *testing.T) {
	unknown := endpick.Prediction{}
	for _, tc := range []struct {
		name string
		req  endpick.Request
		cs   []endpick.Candidate
		want []string
	}{
		{"those that meet the SLO", ask(200, 50), fleet(both(100, 60), both(200, 50), both(300, 10), both(1, 1)), []string{"server-1", "server-3"}},
		{"a single target", ask(0, 50), fleet(both(100, 60), both(9999, 50)), []string{"server-1"}},
		{"nobody meets it", ask(200, 50), fleet(both(300, 50), both(400, 50)), []string{"server-0", "server-1"}},
		{"no SLO", ask(0, 0), fleet(both(300, 50), both(400, 50)), []string{"server-0", "server-1"}},
		{"a negative SLO is none", ask(-1, -1), fleet(both(300, 50), both(400, 50)), []string{"server-0", "server-1"}},
		{"without a prediction one stays", ask(200, 0), fleet(both(300, 50), unknown, both(100, 50)), []string{"server-1", "server-2"}},
		{"no predictions", ask(200, 0), fleet(unknown, unknown), []string{"server-0", "server-1"}},
	} {
		assert.Equal(t, tc.want, ids(filter(rig.Must(slo.NewTier(slo.TierConfig{DisableExploration: true})), tc.req, tc.cs)), tc.name)
	}
}
