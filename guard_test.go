package endpick_test

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
)

// outOfRange is a scorer with a mistake.
type outOfRange struct{}

func (outOfRange) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	dst[len(candidates)] = 1
}

// In Warn, the stack still shows where a stage panicked.
func TestWarnSeesWhereAStagePanicked(t *testing.T) {
	var stack string
	r, _ := newRouter(t, endpick.Config{
		Endpoints: named("a"),
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: outOfRange{}, Weight: 1}}},
		Warn:      func(error) { stack = string(debug.Stack()) },
	})
	route(t, r, endpick.Request{}).Done(endpick.Outcome{})
	assert.Contains(t, stack, "outOfRange.Score")
}
