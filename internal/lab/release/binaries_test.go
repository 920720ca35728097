package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
