package prefix_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestStagesConform(t *testing.T) {
	for name, config := range map[string]prefix.IndexConfig{"index": {}, "small index": {BlocksPerEndpoint: 16}} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunMatcher(t, func(t *testing.T) endpick.Matcher { return newIndex(t, config) })
		})
		t.Run(name+" as an observer", func(t *testing.T) {
			scorertest.RunObserver(t, func(t *testing.T) any { return newIndex(t, config).Observer() })
		})
	}
	for name, config := range map[string]prefix.AffinityConfig{
		"gate": {}, "gate limited to what is saved": {LimitToSaved: true}, "gate that looks at no load": {DisableLoadGate: true, Threshold: 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunFilter(t, func(t *testing.T) endpick.Filter { return rig.Must(prefix.NewAffinity(config)) })
		})
	}
}
