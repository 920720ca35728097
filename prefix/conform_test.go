package prefix_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestStagesConform(t *testing.T) {
	index := func(config prefix.IndexConfig) func(*testing.T) *prefix.Index {
		return func(t *testing.T) *prefix.Index {
			return rig.Must(prefix.NewIndex(config))
		}
	}
	for name, newIndex := range map[string]func(*testing.T) *prefix.Index{
		"index": index(prefix.IndexConfig{}), "small index": index(prefix.IndexConfig{BlocksPerEndpoint: 16}),
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunMatcher(t, func(t *testing.T) endpick.Matcher { return newIndex(t) })
		})
		t.Run(name+" as an observer", func(t *testing.T) {
			scorertest.RunObserver(t, func(t *testing.T) any { return newIndex(t).Observer() })
		})
	}
	for name, config := range map[string]prefix.AffinityConfig{
		"gate": {}, "gate limited to what is saved": {LimitToSaved: true}, "gate that looks at no load": {DisableLoadGate: true, Threshold: 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunFilter(t, func(t *testing.T) endpick.Filter {
				return rig.Must(prefix.NewAffinity(config))
			})
		})
	}
}
