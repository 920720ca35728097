package mutants

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mutant is one fault.
type mutant struct {
	dir      string // its package's, relative to the repository's root, with slashes
	what     string
	survives string // why no test detects it; empty if one should
	killer   killer // the test that has detected it before; zero if unknown
	old, new string
}

// killer is a test and the directory of its package, relative to the repository's root.
type killer struct{ dir, test string }

func (m *mutant) String() string { return m.dir + ": " + m.what }

// applied finds the file of the package that contains the mutant's text, and
// returns its name and its source with the fault.
func (m *mutant) applied(root fs.FS) (file, source string, err error) {
	files, err := fs.Glob(root, path.Join(m.dir, "*.go"))
	if err != nil {
		return "", "", err
	}
	found := 0
	for _, f := range files {
		text, err := fs.ReadFile(root, f)
		if err != nil {
			return "", "", err
		}
		if n := strings.Count(string(text), m.old); n > 0 && !strings.HasSuffix(f, "_test.go") {
			found += n
			file, source = f, strings.Replace(string(text), m.old, m.new, 1)
		}
	}
	if found != 1 {
		return "", "", fmt.Errorf("%v: the old text is there %d times, want once: has the fault moved, or must it be another?", m, found)
	}
	return file, source, nil
}

const (
	survivesMark = "survives: "
	killedMark   = "killed by: "
)

// format writes what parse reads.
func format(all []mutant) string {
	var b strings.Builder
	for i, m := range all {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintln(&b, &m)
		if m.survives != "" {
			fmt.Fprintln(&b, survivesMark+m.survives)
		}
		if m.killer != (killer{}) {
			fmt.Fprintln(&b, killedMark+m.killer.dir, m.killer.test)
		}
		fmt.Fprintf(&b, "<<<\n%s===\n%s>>>\n", m.old, m.new)
	}
	return b.String()
}

// parse reads a file of mutants.
func parse(text string) (all []mutant, err error) {
	lines := strings.SplitAfter(text, "\n")
	at := 0
	next := func() (line string, ok bool) {
		if at == len(lines) {
			return "", false
		}
		at++
		return lines[at-1], true
	}
	until := func(mark string) (text string, ok bool) {
		var b strings.Builder
		for {
			line, ok := next()
			if !ok || line == mark {
				return b.String(), ok
			}
			b.WriteString(line)
		}
	}
	for {
		line, ok := next()
		if !ok {
			return all, nil
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		var m mutant
		first := at
		if m.dir, m.what, ok = strings.Cut(strings.TrimSpace(line), ": "); !ok {
			return nil, fmt.Errorf("line %d: %q is no package and what is wrong in it", first, line)
		}
		head, opened := until("<<<\n")
		switch head = strings.TrimSuffix(head, "\n"); {
		case head == "":
		case strings.HasPrefix(head, survivesMark):
			m.survives = strings.TrimPrefix(head, survivesMark)
		case strings.HasPrefix(head, killedMark):
			m.killer.dir, m.killer.test, ok = strings.Cut(strings.TrimPrefix(head, killedMark), " ")
			if ok {
				break
			}
			fallthrough
		default:
			return nil, fmt.Errorf("line %d: %q is no reason to survive and no test", first, head)
		}
		var divided, closed bool
		m.old, divided = until("===\n")
		m.new, closed = until(">>>\n")
		if !opened || !divided || !closed || m.old == "" || m.old == m.new {
			return nil, fmt.Errorf("line %d: is not a mutant", first)
		}
		all = append(all, m)
	}
}

const root = "../.."

// mutants returns all of them, by their file in testdata.
func mutants(t *testing.T) map[string][]mutant {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string][]mutant{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		all[f], err = parse(string(text))
		require.NoError(t, err, f)
		assert.True(t, format(all[f]) == string(text), "%s: mutants are divided by one empty line", f)
	}
	return all
}

// mostStale is how many mutants a change may leave behind that no longer apply, to
// be updated by whoever next runs TestMutants.
const mostStale = 5

// A mutant whose text has changed is updated with it. A fault that a test detects
// can be applied: it is Go, if nothing else.
func TestMutantsCanBeApplied(t *testing.T) {
	seen := map[string]bool{}
	stale := 0
	packages := map[string]bool{}
	for _, some := range mutants(t) {
		for _, m := range some {
			assert.False(t, seen[m.String()], "%v: is there twice", &m)
			seen[m.String()] = true
			packages[m.dir] = true
			file, source, err := m.applied(os.DirFS(root))
			if err != nil {
				stale++
				t.Log(err)
				continue
			}
			_, err = parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
			assert.NoError(t, err, "%v", &m)
		}
	}
	assert.LessOrEqual(t, stale, mostStale, "mutants that can't be applied")
	t.Logf("%d mutants in %d packages", len(seen), len(packages))
}

func TestParse(t *testing.T) {
	const text = "a: a fault\n<<<\n\tone\n\n\ttwo\n===\n>>>\n\n" +
		".: another\nsurvives: nobody looks\n<<<\nx\n===\ny\n>>>\n\n" +
		"b: a third\nkilled by: c/d TestE\n<<<\nx\n===\nz\n>>>\n"
	all, err := parse(text)
	require.NoError(t, err)
	assert.Equal(t, []mutant{
		{dir: "a", what: "a fault", old: "\tone\n\n\ttwo\n"},
		{dir: ".", what: "another", survives: "nobody looks", old: "x\n", new: "y\n"},
		{dir: "b", what: "a third", killer: killer{"c/d", "TestE"}, old: "x\n", new: "z\n"},
	}, all)
	assert.Equal(t, text, format(all))
	for _, text := range []string{
		"no package\n<<<\nx\n===\ny\n>>>\n",
		"a: changes nothing\n<<<\nx\n===\nx\n>>>\n",
		"a: adds only\n<<<\n===\nx\n>>>\n",
		"a: does not end\n<<<\nx\n===\ny\n",
		"a: is not divided\n<<<\nx\n>>>\n",
		"a: has no reason\nbecause\n<<<\nx\n===\ny\n>>>\n",
		"a: has no test\nkilled by: a\n<<<\nx\n===\ny\n>>>\n",
	} {
		_, err := parse(text)
		assert.ErrorContains(t, err, "line 1", text)
	}
}

func TestApplied(t *testing.T) {
	m := mutant{dir: "a", what: "a fault", old: "x\n", new: "y\n"}
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	root := fstest.MapFS{"a/1.go": file("w\n"), "a/2.go": file("w\nx\nz\n"), "a/2_test.go": file("x\n"), "a/b/3.go": file("x\n"), "4.go": file("x\n")}
	name, source, err := m.applied(root)
	require.NoError(t, err)
	assert.Equal(t, []string{"a/2.go", "w\ny\nz\n"}, []string{name, source})
	for _, other := range []string{"x\n", "w\nx\n"} {
		root["a/1.go"] = file(other)
		_, _, err = m.applied(root)
		assert.ErrorContains(t, err, "a: a fault: the old text is there 2 times")
	}
	m.dir = "none"
	_, _, err = m.applied(root)
	assert.ErrorContains(t, err, "there 0 times")
}
