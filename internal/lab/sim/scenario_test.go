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
		source, err := w.Start(1)
		require.NoError(t, err)
		h := fnv.New64a()
		var under []Request // each is answered after three seconds
		for {
			at, more := source.Next()
			if len(under) > 0 && (!more || under[0].Arrival+3*time.Second <= at) {
				source.Done(&under[0], under[0].Arrival+3*time.Second)
				under = under[1:]
				continue
			}
			if !more {
				break
			}
			r := source.Take()
			r.Arrival = at
			under = append(under, r)
			fmt.Fprint(h, len(r.Blocks))
			r.Blocks = r.Blocks[max(len(r.Blocks)-1, 0):] // which depends on those before
			fmt.Fprintf(h, "%+v\n", r)
		}
		sums[n.Name] = h.Sum64()
	}
	assert.Equal(t, map[string]uint64{
		"A": 0xf49652d0987e1f52, "B": 0xf12f05b75424c636, "C": 0x46b9217787196e70, "D": 0x70071838cce7f9ca,
		"sharegpt": 0x3ecf6551ff5439c6, "agents": 0xf5a4b77267382bdc, "production": 0x78721ab1a0f45607,
	}, sums)
}
