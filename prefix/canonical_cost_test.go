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

	"github.com/endpick/endpick/internal/lab/cputime"
	"github.com/endpick/endpick/internal/lab/race"
)

// Whatever is sent as a tool costs at most a few times as much as members in order,
// and little memory. BenchmarkCanonicalJSON shows how much. The margin is wide, and
// the minimum of several runs counts; quadratic behaviour would take thousands of
// times as long.
func TestCanonicalJSONCostsLittle(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector costs some code more than other")
	}
	const most = 100
	for _, n := range []int{32 << 10, maxCanonical - 20_000} { // converted, or left as it is
		canonicalCosts(t, n, most)
	}
}

func canonicalCosts(t *testing.T, n int, most time.Duration) {
	dst := make([]uint64, 0, 2*n/BlockBytes+1000)
	run := func(s string) { AppendChat(dst, Seed{}, &Conversation{Tools: []string{s}}) }
	inOrder := toolInOrder(n)
	longest := max(cputime.Least(5, 0, func() { run(inOrder) }), 2*time.Millisecond) * most
	for name, s := range hostile(n) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		run(s)
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(40*n+1<<16), name)
		assert.Less(t, cputime.Least(20, longest, func() { run(s) }), longest, name)
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

// Tools made to be expensive, as long as possible while having a canonical
// form.
func BenchmarkCanonicalJSON(b *testing.B) {
	const n = 32 << 10
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
