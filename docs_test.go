package endpick_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// walk visits all files, but not those of git and of the tools that CI installs.
func walk(t *testing.T, visit func(path string)) {
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && len(path) > 1 && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !d.IsDir():
			visit(path)
		}
		return nil
	}))
}

// functions returns the functions in a file, methods as Type.name.
func functions(file string) (names []string) {
	f := rig.Must(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := fn.Name.Name
		if fn.Recv != nil {
			at := fn.Recv.List[0].Type
			if star, ok := at.(*ast.StarExpr); ok {
				at = star.X
			}
			if generic, ok := at.(*ast.IndexExpr); ok {
				at = generic.X
			}
			if id, ok := at.(*ast.Ident); ok {
				name = id.Name + "." + name
			}
		}
		names = append(names, name)
	}
	return names
}

// TestDesign compares docs/design.md with the code: the tests it names exist, and
// the functions on a request's path are where it says.
func TestDesign(t *testing.T) {
	text := rig.Must(os.ReadFile("docs/design.md"))
	tests := map[string]bool{}
	walk(t, func(path string) {
		if strings.HasSuffix(path, "_test.go") {
			for _, name := range functions(path) {
				tests[name] = true
			}
		}
	})
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z]+)`").FindAllSubmatch(text, -1)
	require.Greater(t, len(named), 12)
	for _, m := range named {
		assert.True(t, tests[string(m[1])], "no test is called %s", m[1])
	}
	steps := regexp.MustCompile("`([A-Za-z]+\\.[A-Za-z]+)` \\(`([a-z/]+\\.go)`\\)").FindAllSubmatch(text, -1)
	require.Greater(t, len(steps), 5)
	for _, m := range steps {
		assert.Contains(t, functions(string(m[2])), string(m[1]))
	}
}

// TestLinks follows the links between documents, down to headings.
func TestLinks(t *testing.T) {
	for _, file := range documents() {
		text := rig.Must(os.ReadFile(file))
		for _, m := range regexp.MustCompile(`\]\(([^)#]*)(#[^)]+)?\)`).FindAllSubmatch(text, -1) {
			to, heading := string(m[1]), string(m[2])
			if strings.Contains(to, "://") {
				continue
			}
			path := filepath.Join(filepath.Dir(file), to)
			if to == "" {
				path = file
			}
			assert.NoError(t, rig.Err(os.Stat(path)), "link in %s", file)
			if heading != "" {
				assert.Contains(t, headings(path), heading, "link in %s to %s", file, to)
			}
		}
	}
}

// headings returns the anchors of a document's headings.
func headings(file string) (all []string) {
	text := rig.Must(os.ReadFile(file))
	for _, m := range regexp.MustCompile(`(?m)^##* (.*)$`).FindAllSubmatch(text, -1) {
		slug := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(string(m[1])), "")
		all = append(all, "#"+strings.ReplaceAll(slug, " ", "-"))
	}
	return all
}

// TestGo requires each Go block in the documents to occur, line for line, in a
// compiled Go file.
func TestGo(t *testing.T) {
	var sources strings.Builder
	walk(t, func(path string) {
		if strings.HasSuffix(path, ".go") {
			sources.WriteString(flush(string(rig.Must(os.ReadFile(path)))))
		}
	})
	blocks := 0
	for _, file := range documents() {
		text := rig.Must(os.ReadFile(file))
		for _, b := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(text, -1) {
			blocks++
			assert.True(t, strings.Contains(sources.String(), "\n"+flush(string(b[1]))), "in no Go file: %s has\n%s", file, b[1])
		}
		assert.NotRegexp(t, `(?m)^    .*(:= |^    func )`, string(text), "%s: Go belongs between fences", file)
	}
	require.Greater(t, blocks, 8)
}

// flush is a text without indentation.
func flush(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// documents returns the top-level pages such as README, and those in docs.
func documents() []string {
	pages := rig.Must(filepath.Glob("docs/*.md"))
	return append(pages, rig.Must(filepath.Glob("*.md"))...)
}

// TestLimits requires the settings that SECURITY.md names to exist.
func TestLimits(t *testing.T) {
	text := rig.Must(os.ReadFile("SECURITY.md"))
	packages := map[string][]string{} // files, by the name of their directory
	walk(t, func(path string) {
		name := filepath.Base(filepath.Dir(path))
		if name == "." {
			name = "endpick"
		}
		if strings.HasSuffix(path, ".go") {
			packages[name] = append(packages[name], path)
		}
	})
	fields := regexp.MustCompile("`([a-z]+)\\.([A-Z][A-Za-z]+)\\.([A-Z][A-Za-z]+)`").FindAllSubmatch(text, -1)
	require.Greater(t, len(fields), 8)
	for _, m := range fields {
		assert.True(t, slices.ContainsFunc(packages[string(m[1])], func(file string) bool {
			return hasField(file, string(m[2]), string(m[3]))
		}), "%s", m[0])
	}
}

// hasField reports whether a file has a struct with this field.
func hasField(file, name, field string) (found bool) {
	f := rig.Must(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != name {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, group := range s.Fields.List {
				for _, id := range group.Names {
					found = found || id.Name == field
				}
			}
		}
		return false
	})
	return found
}
