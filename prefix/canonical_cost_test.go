//go:build unix

package prefix

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/race"
)

// cpu is the time that the process has had, whatever else the machine does.
func cpu(t *testing.T) time.Duration {
	var used syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// Whatever is sent as a tool costs less than ten times what members in order
// do, and little memory.
func TestCanonicalJSONCostsLittle(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector costs some code more than other")
	}
	const n = maxCanonical - 20_000
	dst := make([]uint64, 0, 2*n/BlockBytes+1000)
	run := func(s string) (took time.Duration, allocated uint64) {
		took = time.Hour
		for range 5 {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			start := cpu(t)
			AppendChat(dst, Seed{}, &Conversation{Tools: []string{s}})
			took = min(took, cpu(t)-start)
			runtime.ReadMemStats(&after)
			allocated = after.TotalAlloc - before.TotalAlloc
		}
		return took, allocated
	}
	var inOrder strings.Builder
	inOrder.WriteString(`{"":1`)
	for i := 1_000_000; inOrder.Len() < n; i++ {
		fmt.Fprintf(&inOrder, `,"%d":1`, i)
	}
	inOrder.WriteString("}")
	flat, _ := run(inOrder.String())
	for name, s := range hostile(n) {
		require.InDelta(t, n, len(s), 60_000, name)
		took, allocated := run(s)
		assert.Less(t, allocated, uint64(30*n), name)
		assert.Less(t, took, 10*flat, name)
	}
}
