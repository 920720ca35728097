package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
)

// sparingly skips a long single-goroutine test under the race detector, where it
// takes ten times as long and finds nothing that shorter tests would not.
func sparingly(t *testing.T) {
	if rig.Race {
		t.Skip("much work in one goroutine")
	}
}

// sharedTrace is the path of a trace next to the repository; without it the
// test is skipped.
func sharedTrace(t testing.TB, name string) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			break
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Skip("not in the repository")
		}
		dir = parent
	}
	path := filepath.Join(dir, "..", "shared", "traces", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no ../shared/traces/%s beside the repository", name)
	}
	return path
}

// requestsOf takes all requests of a run, each of which ends a while after it was sent.
func requestsOf(t *testing.T, w Workload, while time.Duration) (all []Request) {
	source := rig.Must(w.Start(1))
	ended := 0
	for {
		at, more := source.Next()
		if ended < len(all) && (!more || all[ended].Arrival+while <= at) {
			source.Done(&all[ended], all[ended].Arrival+while)
			ended++
			continue
		}
		if !more {
			return all
		}
		r := source.Take()
		r.Arrival = at
		all = append(all, r)
	}
}

// named returns the maker of a preset's router. Models are fitted synchronously: in the background,
// decisions would depend on the machine.
func named(policy string) func() (endpick.Config, error) {
	if strings.HasPrefix(policy, "predicted-latency") && !strings.Contains(policy, ":synchronous") {
		policy += ":synchronous"
	}
	return func() (endpick.Config, error) { return all.ByName(policy) }
}
