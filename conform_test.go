package endpick_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestPickersConform(t *testing.T) {
	for name, picker := range map[string]endpick.Picker{
		"max score": endpick.MaxScore{}, "weighted random": endpick.WeightedRandom{}, "power of two": endpick.PowerOfTwo{},
	} {
		t.Run(name, func(t *testing.T) { scorertest.RunPicker(t, func(*testing.T) endpick.Picker { return picker }) })
	}
}

// The stages that the examples show keep the promises they are examples of.
func TestStagesOfExamplesConform(t *testing.T) {
	t.Run("scorer", func(t *testing.T) {
		scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return Cheapest{} }, map[string]string{"price": "spot"})
	})
	t.Run("scorer with state", func(t *testing.T) {
		scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return &Flaky{} })
		scorertest.RunObserver(t, func(*testing.T) any { return &Flaky{} })
	})
	t.Run("filter", func(t *testing.T) {
		scorertest.RunFilter(t, func(*testing.T) endpick.Filter { return SameZone("north") }, map[string]string{"zone": "north"})
	})
	t.Run("picker", func(t *testing.T) { scorertest.RunPicker(t, func(*testing.T) endpick.Picker { return NearBest(0.1) }) })
	t.Run("admitter", func(t *testing.T) {
		scorertest.RunAdmitter(t, func(*testing.T) endpick.Admitter { return &AtMost{N: 2} })
		scorertest.RunObserver(t, func(*testing.T) any { return &AtMost{N: 2} })
	})
}
