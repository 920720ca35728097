package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
)

// A snapshot includes the numbers of names that nothing else in it uses.
func TestNamesAfterASnapshot(t *testing.T) {
	w, a, b := pair(t)
	for _, name := range []string{"x", "y", "z"} {
		w.done(a, w.route(a, name, name, nil), endpick.Completed, nil)
	}
	w.flush(a, true)
	w.calm(time.Second)
	w.route(a, "z", "y", nil)
	w.route(a, "x", "z", nil)
	b.order = nil
	w.flush(a, false)
	assert.Equal(t, []string{"opened 4 z y []", "opened 5 x z []"}, b.order)
	w.converged()
}
