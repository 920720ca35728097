package whole

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/delay"
	"github.com/endpick/endpick/slo/quota"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func scored(s endpick.Scorer) endpick.Policy {
	return endpick.Policy{Scorers: []endpick.Weighted{{Scorer: s, Weight: 1}}}
}

func filtered(f endpick.Filter) endpick.Policy { return endpick.Policy{Filters: []endpick.Filter{f}} }

// stateful returns policies with each stage that has state for endpoints or leases.
func stateful() map[string]endpick.Policy {
	return map[string]endpick.Policy{
		"predict.predictor": {Predictor: rig.Must(predict.NewLatency(predict.LatencyConfig{}))},
		"prefix.Index":      {Matcher: rig.Must(prefix.NewIndex(prefix.IndexConfig{}))},
		"precise.Index":     {Matcher: rig.Must(precise.New(precise.Config{}))},
		"scorer.hotspot":    filtered(scorer.Hotspot(scorer.HotspotConfig{})),
		"scorer.noHitLRU":   scored(scorer.NoHitLRU()),
		"scorer.roundRobin": scored(scorer.RoundRobin()),
		"slo.running":       {Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(rig.Must(slo.NewHeadroom(slo.HeadroomConfig{})))}},
		"slo.warmup":        filtered(rig.Must(slo.NewWarmup(slo.WarmupConfig{}))),
		"delay.marginal":    scored(rig.Must(delay.New(delay.Config{}))),
		"quota.quota":       {Admitters: []endpick.Admitter{rig.Must(quota.New(quota.Config{Limits: func(string) quota.Limits { return quota.Limits{} }}))}},
	}
}

// A stage's state about endpoints and leases is keyed by handles that mean nothing in
// another router, which would take a prompt for cached where it was never sent.
func TestStateBelongsToOneRouter(t *testing.T) {
	policies := stateful()
	assert.Equal(t, statefulTypes(t), slices.Sorted(maps.Keys(policies)), "the types that listen or have a table")
	for _, name := range all.Names() {
		config := rig.Must(all.ByName(name))
		if listens(config.Policy) {
			policies["preset "+name] = config.Policy
		}
	}
	require.Greater(t, len(policies), 17)
	approximate := rig.Must(prefix.NewIndex(prefix.IndexConfig{}))
	policies["an index within another"] = endpick.Policy{Matcher: rig.Must(precise.New(precise.Config{Approximate: approximate}))}

	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			twice := []endpick.Endpoint{{ID: "a"}, {ID: "a"}}
			require.ErrorIs(t, rig.Err(endpick.New(endpick.Config{Policy: policy, Endpoints: twice})), endpick.ErrDuplicateEndpoint)

			own, err := endpick.New(endpick.Config{Policy: policy})
			require.NoError(t, err, "a router that was never made takes nothing")
			require.NoError(t, own.SetPolicy(endpick.Policy{}))
			require.NoError(t, own.SetPolicy(policy), "the policies of one router share stages")

			_, err = endpick.New(endpick.Config{Policy: policy})
			assert.ErrorAs(t, err, new(*endpick.ConfigError))
			assert.ErrorContains(t, err, "another router")
			assert.ErrorAs(t, rig.Must(endpick.New(endpick.Config{})).SetPolicy(policy), new(*endpick.ConfigError))
		})
	}
	_, err := endpick.New(endpick.Config{Policy: endpick.Policy{Matcher: approximate}})
	assert.ErrorAs(t, err, new(*endpick.ConfigError), "it listens to the router of the index that it is part of")
	_, err = endpick.New(endpick.Config{Policy: endpick.Policy{Matcher: rig.Must(precise.New(precise.Config{Approximate: approximate}))}})
	assert.ErrorAs(t, err, new(*endpick.ConfigError))
}

// listens reports whether any stage of the policy observes leases or endpoints.
func listens(p endpick.Policy) bool {
	stages := []any{p.Matcher, p.Predictor, p.Picker}
	for _, f := range p.Filters {
		stages = append(stages, f)
	}
	for _, a := range p.Admitters {
		stages = append(stages, a)
	}
	for _, w := range p.Scorers {
		stages = append(stages, w.Scorer)
	}
	return slices.ContainsFunc(stages, func(s any) bool {
		if shares, ok := s.(interface{ Observer() any }); ok {
			s = shares.Observer()
		}
		_, routed := s.(endpick.RoutedObserver)
		_, first := s.(endpick.FirstTokenObserver)
		_, done := s.(endpick.DoneObserver)
		_, removed := s.(endpick.EndpointObserver)
		return routed || first || done || removed
	})
}

const method = `(?m)^func \((?:\w+ )?\*?(\w+)(?:\[.*?\])?\) `

// What a gofmt-ed source says of a type.
var (
	observes  = regexp.MustCompile(method + `(?:Routed|FirstToken|Done|EndpointRemoved)\((?:\w+ )?\*?endpick\.(?:Event|EndpointRef)\b`)
	decides   = regexp.MustCompile(method + `(?:Match|Predict|Admit|Filter|Score|Pick)\(`)
	structure = regexp.MustCompile(`(?ms)^(?:type |\t)(\w+)(?:\[.*?\])? struct \{\n(.*?)^\t?\}`)
	table     = regexp.MustCompile(`endpick\.(?:PerEndpoint|PerLease)\b`)
	exclusive = regexp.MustCompile(`(?m)^\t+endpick\.Exclusive\b`)
)

// statefulTypes are the types of the root module's packages that observe, and the stages
// that have a table of endpoints or leases. Each of them embeds Exclusive. The kits' own stages are not among them.
func statefulTypes(t *testing.T) []string {
	const root = "../../.."
	listen, stages, tables, embed := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if path != root && (nested == nil || slices.Contains([]string{"internal", "testdata", "scorertest", "transporttest"}, d.Name()) || strings.HasPrefix(d.Name(), ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Dir(path) == root || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		source := string(text)
		in := regexp.MustCompile(`(?m)^package (\w+)`).FindStringSubmatch(source)[1] + "."
		for _, m := range observes.FindAllStringSubmatch(source, -1) {
			listen[in+m[1]] = true
		}
		for _, m := range decides.FindAllStringSubmatch(source, -1) {
			stages[in+m[1]] = true
		}
		for _, m := range structure.FindAllStringSubmatch(source, -1) {
			tables[in+m[1]] = table.MatchString(m[2])
			embed[in+m[1]] = exclusive.MatchString(m[2])
		}
		return err
	})
	require.NoError(t, err)
	for name := range stages {
		listen[name] = listen[name] || tables[name]
	}
	maps.DeleteFunc(listen, func(name string, is bool) bool {
		return !is || strings.HasSuffix(name, ".observer") // what a stage, which embeds Exclusive, returns from Observer
	})
	for name := range listen {
		assert.True(t, embed[name], "%s listens, or has a table of endpoints or leases, and doesn't embed endpick.Exclusive", name)
	}
	return slices.Sorted(maps.Keys(listen))
}
