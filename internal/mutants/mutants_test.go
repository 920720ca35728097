package mutants

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mutant is one fault.
type mutant struct {
	file     string // from the root of the repository, with slashes
	what     string
	survives string // why no test sees it; empty: one should
	old, new string
}

func (m *mutant) String() string { return m.file + ": " + m.what }

// applied is the source of the mutant's file with the fault in it.
func (m *mutant) applied(source string) (string, error) {
	if n := strings.Count(source, m.old); n != 1 {
		return "", fmt.Errorf("%v: the old text is there %d times, want once", m, n)
	}
	return strings.Replace(source, m.old, m.new, 1), nil
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
		if m.file, m.what, ok = strings.Cut(strings.TrimSpace(line), ": "); !ok || !strings.HasSuffix(m.file, ".go") {
			return nil, fmt.Errorf("line %d: %q is no file and what is wrong in it", first, line)
		}
		head, opened := until("<<<\n")
		m.survives = strings.TrimPrefix(strings.TrimSpace(head), "survives: ")
		if head != "" && m.survives == strings.TrimSpace(head) {
			return nil, fmt.Errorf("line %d: %q is no reason to survive", first, head)
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

// mutants are all there are, by the name of their file in testdata.
func mutants(t *testing.T) (all []mutant) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		some, err := parse(string(text))
		require.NoError(t, err, f)
		all = append(all, some...)
	}
	return all
}

func (m *mutant) read(t *testing.T) string {
	source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
	require.NoError(t, err)
	return string(source)
}

// A mutant whose text has changed is changed with it. A fault that a test finds can
// be applied: it is Go, if nothing else.
func TestMutantsCanBeApplied(t *testing.T) {
	seen := map[string]bool{}
	packages := map[string]bool{}
	all := mutants(t)
	for i := range all {
		m := &all[i]
		assert.False(t, seen[m.String()], "%v: is there twice", m)
		seen[m.String()] = true
		packages[path.Dir(m.file)] = true
		source, err := m.applied(m.read(t))
		if !assert.NoError(t, err) {
			continue
		}
		_, err = parser.ParseFile(token.NewFileSet(), m.file, source, parser.SkipObjectResolution)
		assert.NoError(t, err, "%v", m)
	}
	t.Logf("%d mutants in %d packages", len(all), len(packages))
}

func TestParse(t *testing.T) {
	all, err := parse("a/b.go: a fault\n<<<\n\tone\n\n\ttwo\n===\n>>>\n\nc.go: another\nsurvives: nobody looks\n<<<\nx\n===\ny\n>>>\n")
	require.NoError(t, err)
	assert.Equal(t, []mutant{
		{file: "a/b.go", what: "a fault", old: "\tone\n\n\ttwo\n"},
		{file: "c.go", what: "another", survives: "nobody looks", old: "x\n", new: "y\n"},
	}, all)
	source, err := all[1].applied("w\nx\nz\n")
	require.NoError(t, err)
	assert.Equal(t, "w\ny\nz\n", source)
	_, err = all[1].applied("x\nx\n")
	assert.ErrorContains(t, err, "there 2 times")

	for _, text := range []string{
		"no file\n<<<\nx\n===\ny\n>>>\n",
		"a.txt: no Go\n<<<\nx\n===\ny\n>>>\n",
		"a.go: changes nothing\n<<<\nx\n===\nx\n>>>\n",
		"a.go: adds only\n<<<\n===\nx\n>>>\n",
		"a.go: does not end\n<<<\nx\n===\ny\n",
		"a.go: is not divided\n<<<\nx\n>>>\n",
		"a.go: has no reason\nbecause\n<<<\nx\n===\ny\n>>>\n",
	} {
		_, err := parse(text)
		assert.ErrorContains(t, err, "line 1", text)
	}
}
