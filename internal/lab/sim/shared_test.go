package sim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
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
