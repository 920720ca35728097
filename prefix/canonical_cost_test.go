package prefix

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/race"
)

// Whatever is sent as a tool costs as much as members in order do, times a few, and
// little memory. BenchmarkCanonicalJSON shows how much. The margin is wide, and the
// least of several runs counts; what is quadratic takes thousands of times as long.
func TestCanonicalJSONCostsLittle(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector costs some code more than other")
	}
	const n, most = maxCanonical - 20_000, 100
	dst := make([]uint64, 0, 2*n/BlockBytes+1000)
	run := func(s string) (took time.Duration, allocated uint64) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start := time.Now()
		AppendChat(dst, Seed{}, &Conversation{Tools: []string{s}})
		took = time.Since(start)
		runtime.ReadMemStats(&after)
		return took, after.TotalAlloc - before.TotalAlloc
	}
	inOrder := toolInOrder(n)
	longest, _ := run(inOrder)
	for range 4 {
		took, _ := run(inOrder)
		longest = min(longest, took)
	}
	longest = max(longest, time.Millisecond) * most
	for name, s := range hostile(n) {
		require.InDelta(t, n, len(s), 60_000, name)
		least := time.Hour
		for i := 0; i < 20 && least >= longest; i++ {
			took, allocated := run(s)
			assert.Less(t, allocated, uint64(40*n), name)
			least = min(least, took)
		}
		assert.Less(t, least, longest, name)
	}
}

func toolInOrder(n int) string {
	var b strings.Builder
	b.WriteString(`{"":1`)
	for i := 1_000_000; b.Len() < n; i++ {
		fmt.Fprintf(&b, `,"%d":1`, i)
	}
	return b.String() + "}"
}

// What tools cost that are made to cost, as long as they may be and have a
// canonical form.
func BenchmarkCanonicalJSON(b *testing.B) {
	const n = 64 << 10
	tools := hostile(n)
	tools["in order"] = toolInOrder(n)
	for _, name := range slices.Sorted(maps.Keys(tools)) {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			b.SetBytes(int64(len(tools[name])))
			dst := make([]uint64, 0, 2*n/BlockBytes+1000)
			for b.Loop() {
				AppendChat(dst, Seed{}, &Conversation{Tools: []string{tools[name]}})
			}
		})
	}
}
