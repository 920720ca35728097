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
		t.Run(name, func(t *testing.T) {
			scorertest.RunPicker(t, func(*testing.T) endpick.Picker { return picker })
		})
	}
}
