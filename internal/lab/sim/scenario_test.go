package sim

import (
	"fmt"
	"hash/fnv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Figures of different versions can be compared, because each scenario is still the same work: the
// sum of its first requests. A workload that is changed on purpose gets another sum.
func TestScenariosAreStillTheSame(t *testing.T) {
	sums := map[string]uint64{}
	for _, n := range scenarios() {
		pace := Pace{Rate: n.Loads.Middle, Requests: 2000}
		if n.Workload.HasArrivals() {
			pace = Pace{RateScale: n.Loads.Middle, Requests: 2000}
		}
		w, err := n.Workload.At(pace)
		require.NoError(t, err)
		h := fnv.New64a()
		for _, r := range requestsOf(t, w, 3*time.Second) {
			last := append([]uint64{0}, r.Blocks...)[len(r.Blocks)] // which depends on those before
			fmt.Fprintln(h, r.Arrival, r.InputTokens, r.OutputTokens, len(r.Blocks), last, r.SystemTokens, r.Tenant, r.Session)
		}
		sums[n.Name] = h.Sum64()
	}
	assert.Equal(t, map[string]uint64{
		"A": 0x8a589d30e541239a, "B": 0x95bde9920b78ac75, "C": 0x503a3aab73bd1ca9, "D": 0xcd44a8fd02f2493,
		"sharegpt": 0x2b2f1f134e3ae7e1, "agents": 0x1789b1120b0a6923, "production": 0xfeed6e8dc782a055,
	}, sums)
}
