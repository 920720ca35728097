package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

func drain(t *testing.T, w Workload, seed uint64) (all []Request) {
	source, err := w.Start(seed)
	require.NoError(t, err)
	for _, ok := source.Next(); ok; _, ok = source.Next() {
		r := source.Take()
		all = append(all, r)
		source.Done(&r, r.Arrival)
	}
	return all
}

func TestMix(t *testing.T) {
	tight := endpick.SLO{TTFT: 200 * time.Millisecond, TPOT: 40 * time.Millisecond}
	m := Mix{paced(t, "B", 10, 4000), []MixClass{
		{Name: "tight", Share: 3, SLO: tight},
		{Name: "loose", Share: 5, SLO: endpick.SLO{TTFT: time.Second}},
		{Share: 2},
	}}
	mixed, plain := drain(t, m, 1), drain(t, m.Workload, 1)
	require.Len(t, mixed, 4000)
	count := map[string]int{}
	for i, r := range mixed {
		count[r.class()]++
		if r.Class == "tight" {
			require.Equal(t, tight, r.SLO)
		}
		r.Class, r.SLO = "", endpick.SLO{}
		require.Equal(t, plain[i], r, "the rest of the request is as it was")
	}
	// Three standard deviations of a share of 4,000.
	assert.InDelta(t, 1200, count["tight"], 90)
	assert.InDelta(t, 2000, count["loose"], 95)
	assert.InDelta(t, 800, count[""], 80)
	assert.Equal(t, mixed, drain(t, m, 1))
	assert.NotEqual(t, mixed, drain(t, m, 2))
	assert.Equal(t, plain, drain(t, Mix{Workload: m.Workload}, 1), "no classes change nothing")
}
