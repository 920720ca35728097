package health

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestElsewhere(t *testing.T) {
	for _, x := range []struct {
		name string
		do   func(w *ward)
		out  []string
	}{
		{"three failures", func(w *ward) { w.Elsewhere("a", 3, 0) }, []string{"a"}},
		{"in three parts", func(w *ward) { w.Elsewhere("a", 1, 0); w.Elsewhere("a", 1, 0); w.Elsewhere("a", 1, 0) }, []string{"a"}},
		{"two", func(w *ward) { w.Elsewhere("a", 2, 0) }, nil},
		{"none, or fewer", func(w *ward) { w.Elsewhere("a", 0, 0); w.Elsewhere("a", -5, 0) }, nil},
		{"few among many", func(w *ward) { w.Elsewhere("a", 3, 9) }, nil},
		{"somebody who is not here", func(w *ward) { w.Elsewhere("z", 9, 0) }, nil},
		{"it serves us", func(w *ward) {
			w.Elsewhere("a", 2, 0)
			v := w.visit("a")
			w.Heard(v)
			w.Elsewhere("a", 1, 0)
		}, nil},
		{"it served us before", func(w *ward) {
			w.Heard(w.visit("a"))
			w.Elsewhere("a", 2, 0)
			w.Elsewhere("a", 1, 0)
		}, []string{"a"}},
		{"long ago", func(w *ward) {
			w.Elsewhere("a", 2, 0)
			w.at = w.at.Add(time.Minute)
			w.Elsewhere("a", 2, 0)
		}, nil},
		{"half of the endpoints", func(w *ward) { w.Elsewhere("a", 2, 0); w.Elsewhere("b", 3, 0) }, []string{"b"}},
		{"more than half of them", func(w *ward) {
			w.Elsewhere("a", 2, 0)
			w.Elsewhere("b", 2, 0)
			w.Elsewhere("c", 3, 0)
		}, nil},
		{"although requests go on", func(w *ward) {
			w.Elsewhere("a", 2, 0)
			w.Avoid(nil)
			w.Elsewhere("b", 2, 0)
			w.Avoid(nil)
			w.Elsewhere("c", 3, 0)
		}, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := newWard("a", "b", "c", "d")
			x.do(w)
			assert.Equal(t, x.out, w.Out(nil))
			w.at = w.at.Add(firstBackoff)
			assert.Empty(t, w.Out(nil), "a trial is due")
		})
	}
	w := newWard("a")
	w.Elsewhere("a", 9, 0)
	assert.Empty(t, w.Out(nil), "there is nobody else")
}

func TestTell(t *testing.T) {
	w := newWard("a", "b")
	var told []string
	w.Tell(func(id string, failed bool) {
		if failed {
			id += " failed"
		}
		told = append(told, id)
	})
	w.Served(w.visit("a"), true, 0)
	assert.Empty(t, told, "all is well")
	w.Failed(w.visit("a"), true)
	w.Served(w.visit("a"), true, 0)
	w.Served(w.visit("b"), true, 0)
	assert.Equal(t, []string{"a failed", "a"}, told)
	w.Failed(w.visit("a"), true)
	w.Failed(w.visit("a"), true)
	w.Failed(w.visit("a"), true)
	w.Failed(w.visit("a"), true)
	assert.Equal(t, []string{"a"}, w.Out(nil))
	assert.Len(t, told, 4, "what is known already is not told")
	other := 0
	w.Tell(func(string, bool) { other++ })
	w.Failed(w.visit("b"), true)
	w.Tell(nil)
	w.Failed(w.visit("b"), true)
	assert.Equal(t, 1, other)
	assert.Len(t, told, 4, "another is told")
}
