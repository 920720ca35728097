package main

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func command(t *testing.T, dir string, env []string, name string, args ...string) string {
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), env...)
	out, err := c.Output()
	var message []byte
	if failed, ok := err.(*exec.ExitError); ok {
		message = failed.Stderr
	}
	require.NoError(t, err, "%s %v: %s%s", name, args, out, message)
	return strings.TrimSpace(string(out))
}

// tracked copies the files that git tracks.
func tracked(t *testing.T) (dir string, files []string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git")
	}
	top, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Skip("this is no git repository")
	}
	from := strings.TrimSpace(string(top))
	dir = t.TempDir()
	for f := range strings.SplitSeq(command(t, from, nil, "git", "ls-files", "-z"), "\x00") {
		text, err := os.ReadFile(filepath.Join(from, filepath.FromSlash(f)))
		if f == "" || os.IsNotExist(err) {
			continue // removed, not yet committed
		}
		require.NoError(t, err)
		to := filepath.Join(dir, filepath.FromSlash(f))
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.WriteFile(to, text, 0o644))
		files = append(files, f)
	}
	return dir, files
}

// publish lays the modules out like a module proxy.
func publish(t *testing.T, dir string, files []string, modules []library, version, proxy string) {
	for _, m := range modules {
		inside := func(f string) bool {
			if m.dir != "." && !strings.HasPrefix(f, m.dir+"/") {
				return false
			}
			// A nested module's files belong to that module.
			return !slices.ContainsFunc(files, func(other string) bool {
				below, ok := strings.CutSuffix(other, "go.mod")
				return ok && below != "" && below != m.dir+"/" && strings.HasPrefix(f, below) && (m.dir == "." || strings.HasPrefix(below, m.dir+"/"))
			})
		}
		at := filepath.Join(proxy, filepath.FromSlash(m.path), "@v")
		require.NoError(t, os.MkdirAll(at, 0o755))
		write := func(name string, text []byte) { require.NoError(t, os.WriteFile(filepath.Join(at, name), text, 0o644)) }
		write("list", []byte(version+"\n"))
		write(version+".info", fmt.Appendf(nil, `{"Version":%q,"Time":"2026-01-01T00:00:00Z"}`, version))
		write(version+".mod", rig.Must(os.ReadFile(filepath.Join(dir, filepath.FromSlash(m.dir), "go.mod"))))
		archive := rig.Must(os.Create(filepath.Join(at, version+".zip")))
		z := zip.NewWriter(archive)
		for _, f := range files {
			if !inside(f) {
				continue
			}
			text := rig.Must(os.ReadFile(filepath.Join(dir, filepath.FromSlash(f))))
			w := rig.Must(z.Create(m.path + "@" + version + "/" + strings.TrimPrefix(f, strings.TrimPrefix(m.dir+"/", "./"))))
			rig.Must(w.Write(text))
		}
		require.NoError(t, z.Close())
		require.NoError(t, archive.Close())
	}
}

// A rehearsed release: the modules are prepared and published, and an outside
// program that requires all of them resolves every import without a replace
// directive, and builds with those that don't take minutes to compile.
func TestRelease(t *testing.T) {
	if os.Getenv("ENDPICK_RELEASE") == "" {
		t.Skip("a release is played where ENDPICK_RELEASE is set: it takes half a minute and is the same on every machine")
	}
	const version = "v0.9.0"
	dir, files := tracked(t)
	tags := rig.Must(prepare(dir, version))
	modules := rig.Must(libraries(dir))
	require.Len(t, tags, len(modules))
	require.Equal(t, version, tags[0])
	require.Contains(t, tags, "transport/scrape/"+version)
	require.Contains(t, tags, "transport/caddy/"+version)

	proxy, outside := t.TempDir(), t.TempDir()
	publish(t, dir, files, modules, version, proxy)
	cache := command(t, dir, []string{"GOWORK=off"}, "go", "env", "GOMODCACHE")
	env := []string{
		"GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-mod=mod -modcacherw", "GOMODCACHE=" + t.TempDir(), "GONOSUMDB=*", "GONOSUMCHECK=1",
		"GOPROXY=file://" + proxy + ",file://" + filepath.Join(cache, "cache", "download") + "," + command(t, dir, nil, "go", "env", "GOPROXY"),
	}
	mod := "module example.com/outside\n\ngo 1.26.0\n\nrequire (\n"
	main := "package main\n\nimport (\n"
	for _, m := range modules {
		mod += "\t" + m.path + " " + version + "\n"
		if m.path != root {
			main += "\t_ \"" + m.path + "\"\n"
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(outside, "go.mod"), []byte(mod+")\n"), 0o644))
	program := "package main\n\nimport (\n\t\"" + root + "/scorer/preset\"\n\t\"" + root + "/transport\"\n" +
		"\t_ \"" + root + "/transport/scrape\"\n\t_ \"" + root + "/transport/prometheus\"\n)\n\nfunc main() { _, _ = transport.New(transport.Config{}); _ = preset.Default() }\n"
	for name, text := range map[string]string{"program/main.go": program, "all/main.go": main + ")\n\nfunc main() {}\n"} {
		require.NoError(t, os.MkdirAll(filepath.Join(outside, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(outside, name), []byte(text), 0o644))
	}
	command(t, outside, env, "go", "build", "-trimpath", "-o", os.DevNull, "./program")
	deps := strings.Split(command(t, outside, env, "go", "list", "-deps", "./all"), "\n")
	for _, m := range modules {
		if m.path != root {
			assert.Contains(t, deps, m.path)
		}
	}
	assert.Equal(t, version, command(t, outside, env, "go", "list", "-m", "-f", "{{.Version}}{{with .Replace}} replaced{{end}}", root))
}

func TestVersions(t *testing.T) {
	for v, want := range map[string]bool{
		"v0.1.0": true, "v1.20.3": true, "v0.2.0-rc.1": true,
		"0.1.0": false, "v2.0.0": false, "v0.1": false, "v0.01.0": false, "v0.1.0 ": false, "": false,
	} {
		assert.Equal(t, want, isVersion(v), v)
	}
	require.ErrorContains(t, rig.Err(prepare(".", "latest")), `"latest" is not a version`)
	require.ErrorContains(t, rig.Err(prepare(t.TempDir(), "v0.1.0")), "not the root of the repository")
}

// Two builds of the same source in different places have the same bytes, and the bill of
// materials names what was linked. If ENDPICK_RELEASE is "all", all programs are built
// from scratch; otherwise the smallest example stands for them.
func TestReproducible(t *testing.T) {
	which := os.Getenv("ENDPICK_RELEASE")
	if which == "" {
		t.Skip("binaries are built where ENDPICK_RELEASE is set")
	}
	const version = "v0.9.0"
	built := []program{{"embed", "examples", "./embed"}}
	if which == "all" {
		built = programs
	}
	platform := []string{runtime.GOOS + "/" + runtime.GOARCH}
	files := [2]map[string]string{}
	var from string
	for i := range files {
		from, _ = tracked(t)
		out := filepath.Join(t.TempDir(), "out")
		if which == "all" {
			t.Setenv("GOCACHE", t.TempDir())
		}
		require.NoError(t, binaries(from, out, version, built, platform))
		files[i] = map[string]string{}
		for _, f := range rig.Must(os.ReadDir(out)) {
			text := rig.Must(os.ReadFile(filepath.Join(out, f.Name())))
			files[i][f.Name()] = string(text)
			assert.NotContains(t, string(text), from, "%s names the directory", f.Name())
		}
	}
	assert.Len(t, files[0], 2*len(built)+1)
	for name, text := range files[0] {
		assert.True(t, text == files[1][name], "%s differs", name)
	}
	for _, p := range built {
		env := []string{"GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0"}
		linked := strings.Fields(command(t, filepath.Join(from, p.module), env, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", p.path))
		slices.Sort(linked)
		name := "endpick-" + p.name + "_" + runtime.GOOS + "_" + runtime.GOARCH
		if runtime.GOOS == "windows" {
			name += ".exe"
		}
		checkMaterials(t, files[0], name, version, slices.Compact(linked))
		sums := rig.Must(os.ReadFile(filepath.Join(from, p.module, "go.sum")))
		assert.Contains(t, string(sums), "github.com/cespare/xxhash/v2 v2.3.0 "+sumIn(t, files[0][name+".cdx.json"], "github.com/cespare/xxhash/v2")+"\n")
	}
}

func checkMaterials(t *testing.T, files map[string]string, name, version string, linked []string) {
	var d document
	require.NoError(t, json.Unmarshal([]byte(files[name+".cdx.json"]), &d))
	assert.Equal(t, []string{"CycloneDX", "1.6", version}, []string{d.Format, d.Spec, d.Metadata.Component.Version})
	assert.Contains(t, files["SHA256SUMS"], d.Metadata.Component.Hashes[0].Content+"  "+name+"\n")
	var listed []string
	for _, c := range d.Components {
		if c.Name == "stdlib" {
			assert.Equal(t, runtime.Version(), "go"+c.Version)
			continue
		}
		listed = append(listed, c.Name)
		ours := c.Name == root || strings.HasPrefix(c.Name, root+"/")
		assert.Equal(t, ours, c.Version == version, "%s %s", c.Name, c.Version)
		assert.Equal(t, ours, len(c.Properties) == 0, "%s: %v", c.Name, c.Properties)
		assert.True(t, strings.HasPrefix(c.PURL, "pkg:golang/"+c.Name+"@v"), "%s", c.PURL)
	}
	assert.ElementsMatch(t, linked, listed)
}

func sumIn(t *testing.T, list, module string) string {
	var d document
	require.NoError(t, json.Unmarshal([]byte(list), &d))
	i := slices.IndexFunc(d.Components, func(c component) bool { return c.Name == module })
	require.GreaterOrEqual(t, i, 0)
	return d.Components[i].Properties[0].Value
}

func TestComponents(t *testing.T) {
	assert.Equal(t, component{
		Type: "library", Ref: "pkg:golang/example.com/a/v2@v2.0.0%2Bincompatible", Name: "example.com/a/v2", Version: "v2.0.0+incompatible",
		PURL: "pkg:golang/example.com/a/v2@v2.0.0%2Bincompatible",
	}, componentOf("library", "example.com/a/v2", "v2.0.0+incompatible"))
	require.ErrorContains(t, binaries(".", t.TempDir(), "latest", nil, nil), `"latest" is not a version`)
}
