package mutants

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write down which test has killed a mutant")

// TestMutants fails for each mutant that survives the tests. It takes an hour and
// runs only if ENDPICK_MUTANTS is set.
func TestMutants(t *testing.T) {
	if os.Getenv("ENDPICK_MUTANTS") == "" {
		t.Skip("ENDPICK_MUTANTS is not set")
	}
	packages := list(t)
	all := mutants(t)
	var killed, survived atomic.Int64
	t.Cleanup(func() { t.Logf("%d mutants killed, %d survived", killed.Load(), survived.Load()) })
	var writing sync.Mutex
	for _, file := range slices.Sorted(maps.Keys(all)) {
		for i := range all[file] {
			m := &all[file][i]
			t.Run(m.String(), func(t *testing.T) {
				t.Parallel()
				by := m.kill(t, packages)
				switch {
				case by != (killer{}):
					killed.Add(1)
					t.Log("killed by", by.dir, by.test)
				case m.survives != "":
					survived.Add(1)
					t.Log("survives:", m.survives)
				default:
					survived.Add(1)
					t.Error("survived")
				}
				if *update {
					writing.Lock()
					defer writing.Unlock()
					m.killer = by
					require.NoError(t, os.WriteFile(file, []byte(format(all[file])), 0o666))
				}
			})
		}
	}
}

// anyTest stands for all tests of a package, when one of them has ended the process.
const anyTest = "."

// kill runs the tests that may detect the mutant until one does, and returns it, or
// zero. The one that has detected it before comes first.
func (m *mutant) kill(t *testing.T, packages []goPackage) killer {
	file, source, err := m.applied(os.DirFS(root))
	require.NoError(t, err)
	dir := t.TempDir()
	changed := filepath.Join(dir, "mutant.go")
	require.NoError(t, os.WriteFile(changed, []byte(source), 0o666))
	original, err := filepath.Abs(filepath.Join(root, filepath.FromSlash(file)))
	require.NoError(t, err)
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	require.NoError(t, err)
	overlayFile := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlayFile, overlay, 0o666))

	some := concerned(packages, m.dir)
	require.NotEmpty(t, some, "package %s is in no module of go.work", m.dir)
	if most, err := strconv.Atoi(os.Getenv("ENDPICK_MUTANTS")); err == nil {
		some = some[:min(most, len(some))]
	}
	// noticed runs the tests of a package that match run, and reports whether one fails, and
	// which.
	noticed := func(dir, run string) (test string, failed bool) {
		cmd := exec.Command("go", "test", "-vet=off", "-failfast", "-timeout", "5m", "-overlay", overlayFile, "-run", run, "./"+dir)
		cmd.Dir = root
		output, err := cmd.CombinedOutput()
		var exited *exec.ExitError
		switch {
		case err == nil:
			return "", false
		case !errors.As(err, &exited):
			require.NoError(t, err)
		case bytes.Contains(output, []byte("[build failed]")), bytes.Contains(output, []byte("[setup failed]")):
			require.Fail(t, "the mutant does not compile", "%s", output)
		}
		return culprit(output), true
	}
	if k := m.killer; slices.Contains(some, k.dir) {
		run := k.test
		if run != anyTest {
			run = "^" + run + "$"
		}
		if _, failed := noticed(k.dir, run); failed {
			return k
		}
		t.Log("killed no more by", k.dir, k.test)
	}
	for _, dir := range some {
		if test, failed := noticed(dir, anyTest); failed {
			return killer{dir, test}
		}
	}
	return killer{}
}

var failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^\t+(\S+) \([\dhms.]+\)$`)

// culprit is the test that failed or, after a timeout, one that was running; anyTest if
// the output does not say.
func culprit(output []byte) string {
	m := failure.FindSubmatch(output)
	if m == nil {
		return anyTest
	}
	test, _, _ := strings.Cut(string(m[1])+string(m[2]), "/")
	return test
}

// goPackage is a package and the packages whose changes its tests can detect.
type goPackage struct {
	path    string
	dir     string   // relative to the repository's root, with slashes
	imports []string // of its own files
	tested  []string // of its tests as well
}

// list returns the packages of all modules.
func list(t *testing.T) (all []goPackage) {
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}}|{{.Dir}}|{{join .Imports \",\"}}|{{join .TestImports \",\"}},{{join .XTestImports \",\"}}", "work")
	cmd.Dir = top
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	output, err := cmd.Output()
	require.NoError(t, err, "%s", &complaint)
	for line := range strings.Lines(string(output)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		require.Len(t, f, 4, line)
		dir, err := filepath.Rel(top, f[1])
		require.NoError(t, err)
		p := goPackage{path: f[0], dir: filepath.ToSlash(dir), imports: strings.Split(f[2], ",")}
		p.tested = append(strings.Split(f[3], ","), p.imports...)
		all = append(all, p)
	}
	// Programs last: their tests take longest and detect least.
	isProgram := func(p goPackage) int { return len(p.dir) - len(strings.TrimPrefix(p.dir, "examples/")) }
	slices.SortStableFunc(all, func(a, b goPackage) int { return cmp.Compare(isProgram(a), isProgram(b)) })
	return all
}

// concerned lists the directories of the packages whose tests may detect a change in
// dir: its own, then its importers, the nearest first.
func concerned(packages []goPackage, dir string) (dirs []string) {
	at := slices.IndexFunc(packages, func(p goPackage) bool { return p.dir == dir })
	if at < 0 {
		return nil
	}
	reached := map[string]bool{packages[at].path: true} // through the packages' own files
	dirs = []string{dir}
	for grown := true; grown; {
		grown = false
		before := len(reached)
		var next []string
		for _, p := range packages {
			on := func(imports []string) bool {
				return slices.ContainsFunc(imports, func(i string) bool { return reached[i] })
			}
			if on(p.tested) && !slices.Contains(dirs, p.dir) {
				dirs, grown = append(dirs, p.dir), true
			}
			if on(p.imports) && !reached[p.path] {
				next = append(next, p.path)
			}
		}
		for _, p := range next {
			reached[p] = true
		}
		grown = grown || len(reached) > before
	}
	return dirs
}

func TestConcerned(t *testing.T) {
	packages := []goPackage{
		{path: "m/top", dir: "top", imports: []string{"m/mid"}, tested: []string{"m/mid"}},
		{path: "m/mid", dir: "mid", imports: []string{"m"}, tested: []string{"m"}},
		{path: "m", dir: ".", imports: []string{"fmt"}, tested: []string{"fmt", "m/kit"}},
		{path: "m/kit", dir: "kit"},
		{path: "m/looks", dir: "looks", tested: []string{"m/mid"}},
		{path: "m/else", dir: "else", imports: []string{"fmt"}},
	}
	for dir, want := range map[string][]string{
		".":     {".", "mid", "top", "looks"},
		"mid":   {"mid", "top", "looks"},
		"kit":   {"kit", "."},
		"looks": {"looks"},
	} {
		require.Equal(t, want, concerned(packages, dir), dir)
	}
}

func TestCulprit(t *testing.T) {
	for output, want := range map[string]string{
		"--- FAIL: TestA (0.01s)\n    --- FAIL: TestA/b (0.00s)\nFAIL\n":                             "TestA",
		"panic: test timed out after 5m0s\n\trunning tests:\n\t\tTestA (1m2.5s)\n\t\tTestA/b (3s)\n": "TestA",
		"fatal error: all goroutines are asleep - deadlock!\nFAIL\tm 0.1s\n":                         anyTest,
	} {
		require.Equal(t, want, culprit([]byte(output)))
	}
}
