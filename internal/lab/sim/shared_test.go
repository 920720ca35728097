package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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

// named returns the maker of a preset's router. Models are fitted synchronously: in the background,
// decisions would depend on the machine.
func named(policy string) func() (endpick.Config, error) {
	if strings.HasPrefix(policy, "predicted-latency") && !strings.Contains(policy, ":synchronous") {
		policy += ":synchronous"
	}
	return func() (endpick.Config, error) { return all.ByName(policy) }
}
