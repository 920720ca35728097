// Release prepares the modules of this repository for a release: it makes each library
// module require the others at the version to be tagged, and prints the tags.
//
//	go run ./internal/lab/release v0.2.0
//	go run ./internal/lab/release -binaries dist v0.2.0
//
// RELEASING.md says what comes before and after. The replace directives stay, because
// they only have an effect in this repository: whoever requires a module gets what is
// tagged.
//
// With -binaries it builds the example programs for all platforms into a directory, with
// their bills of materials (CycloneDX) and SHA256SUMS: the same bytes wherever the same
// Go version builds the same source.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const root = "github.com/endpick/endpick"

func main() {
	out := flag.String("binaries", "", "build the example programs into this directory")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: release [-binaries DIRECTORY] VERSION, in the root of the repository")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*out, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(out, version string) error {
	if out != "" {
		return binaries(".", out, version, programs, platforms)
	}
	tags, err := prepare(".", version)
	for _, t := range tags {
		fmt.Println("git tag", t)
	}
	return err
}

// isVersion matches semantic versions before v2, which would change the modules'
// paths.
var isVersion = regexp.MustCompile(`^v[01]\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`).MatchString

// prepare edits the go.mod files of the library modules in dir and returns the tags
// that name them at this version, the root's first.
func prepare(dir, version string) (tags []string, err error) {
	if !isVersion(version) {
		return nil, fmt.Errorf("%q is not a version such as v0.2.0", version)
	}
	modules, err := libraries(dir)
	if err != nil {
		return nil, err
	}
	for _, m := range modules {
		edit := []string{"mod", "edit"}
		for _, path := range m.requires {
			edit = append(edit, "-require="+path+"@"+version)
		}
		if len(edit) > 2 {
			c := exec.Command("go", edit...)
			c.Dir = filepath.Join(dir, filepath.FromSlash(m.dir))
			if out, err := c.CombinedOutput(); err != nil {
				return nil, fmt.Errorf("%s: %w: %s", m.dir, err, bytes.TrimSpace(out))
			}
		}
		tags = append(tags, strings.TrimPrefix(m.dir+"/"+version, "./"))
	}
	return tags, nil
}

// library is a module that others may require.
type library struct {
	dir      string // with slashes, from the repository's root; the root's is "."
	path     string
	requires []string // modules of this repository
}

// libraries are all modules except the examples and the lab's, the root first.
func libraries(dir string) ([]library, error) {
	var all []library
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := e.Name()
		if e.IsDir() && path != dir && (name == "examples" || name == "internal" || name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if name != "go.mod" || e.IsDir() {
			return nil
		}
		m, err := read(dir, path)
		if err == nil && strings.HasPrefix(m.path+"/", root+"/") {
			all = append(all, m)
		}
		return err
	})
	if err == nil && (len(all) == 0 || !slices.ContainsFunc(all, func(m library) bool { return m.path == root })) {
		err = errors.New("this is not the root of the repository")
	}
	slices.SortFunc(all, func(a, b library) int { return strings.Compare(a.path, b.path) })
	return all, err
}

// read reads the relevant part of a go.mod file.
func read(dir, file string) (library, error) {
	at, err := filepath.Rel(dir, filepath.Dir(file))
	if err != nil {
		return library{}, err
	}
	text, err := exec.Command("go", "mod", "edit", "-json", file).Output()
	if err != nil {
		return library{}, fmt.Errorf("%s: %w", file, err)
	}
	var mod struct {
		Module  struct{ Path string }
		Require []struct{ Path string }
	}
	if err := json.Unmarshal(text, &mod); err != nil {
		return library{}, fmt.Errorf("%s: %w", file, err)
	}
	m := library{dir: filepath.ToSlash(at), path: mod.Module.Path}
	for _, r := range mod.Require {
		if r.Path == root || strings.HasPrefix(r.Path, root+"/") {
			m.requires = append(m.requires, r.Path)
		}
	}
	return m, nil
}
