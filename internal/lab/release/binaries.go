package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// program is an example that is published as a binary.
type program struct {
	name   string
	module string // its directory
	path   string // of the package in there
}

var programs = []program{
	{"gateway", "examples", "./gateway"},
	{"epp", "examples/epp", "."},
	{"caddy", "examples/caddy", "."},
	{"bifrost", "examples/bifrost", "."},
}

var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

// binaries builds programs for platforms from the repository in dir into out, each with
// its bill of materials, and writes SHA256SUMS there.
func binaries(dir, out, version string, programs []program, platforms []string) error {
	if !isVersion(version) {
		return fmt.Errorf("%q is not a version such as v0.2.0", version)
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var sums []string
	for _, p := range programs {
		for _, platform := range platforms {
			name, err := build(dir, out, p, platform)
			if err != nil {
				return fmt.Errorf("%s for %s: %w", p.name, platform, err)
			}
			hash, err := sumOf(filepath.Join(out, name))
			if err != nil {
				return err
			}
			list, err := materials(filepath.Join(out, name), p.name, version, hash)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(out, name+".cdx.json"), list, 0o644); err != nil {
				return err
			}
			sums = append(sums, hash+"  "+name+"\n", fmt.Sprintf("%x  %s.cdx.json\n", sha256.Sum256(list), name))
		}
	}
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(strings.Join(sums, "")), 0o644)
}

// build builds a program reproducibly: the same source and Go version give the same
// bytes everywhere. It returns the file's name.
func build(dir, out string, p program, platform string) (name string, err error) {
	system, machine, _ := strings.Cut(platform, "/")
	name = "endpick-" + p.name + "_" + system + "_" + machine
	if system == "windows" {
		name += ".exe"
	}
	// Version control information depends on how the repository was obtained, so it is left out.
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(out, name), p.path)
	c.Dir = filepath.Join(dir, filepath.FromSlash(p.module))
	c.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+machine, "CGO_ENABLED=0",
		// Overrides local settings.
		"GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off", "GOAMD64=v1", "GOARM64=v8.0")
	if text, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(text))
	}
	return name, nil
}

func sumOf(file string) (string, error) {
	text, err := os.ReadFile(file)
	return fmt.Sprintf("%x", sha256.Sum256(text)), err
}

// document is the used part of a CycloneDX bill of materials in JSON.
type document struct {
	Format   string `json:"bomFormat"`
	Spec     string `json:"specVersion"`
	Version  int    `json:"version"`
	Metadata struct {
		Component component `json:"component"`
	} `json:"metadata"`
	Components []component `json:"components"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// materials lists the modules that a binary is made of, including the standard library,
// as recorded by its linker: nothing that is required but not linked. It has no times or
// serial numbers, so that it is reproducible.
func materials(file, name, version, sum string) ([]byte, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, err
	}
	d := document{Format: "CycloneDX", Spec: "1.6", Version: 1}
	d.Metadata.Component = componentOf("application", info.Path, version)
	d.Metadata.Component.Name = "endpick-" + name
	d.Metadata.Component.Hashes = []hash{{"SHA-256", sum}}
	d.Components = []component{componentOf("library", "stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range append(slices.Clone(info.Deps), &info.Main) {
		path, v, sum := m.Path, m.Version, m.Sum
		if m.Replace != nil && !ours(m) {
			path, v, sum = m.Replace.Path, m.Replace.Version, m.Replace.Sum
		}
		if ours(m) { // built from the repository
			v, sum = version, ""
		}
		c := componentOf("library", path, v)
		if sum != "" {
			c.Properties = []property{{"go.sum", sum}}
		}
		d.Components = append(d.Components, c)
	}
	slices.SortFunc(d.Components, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

func ours(m *debug.Module) bool { return m.Path == root || strings.HasPrefix(m.Path, root+"/") }

func componentOf(kind, path, version string) component {
	// A plus sign, as in +incompatible, would be read as a space.
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return component{Type: kind, Ref: purl, Name: path, Version: version, PURL: purl}
}
