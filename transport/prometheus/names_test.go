package prometheus

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A name has a label of its own from its first success on; if there are too many, the
// one without a success for longest gives way.
func TestNames(t *testing.T) {
	n := names{most: 2}
	long := strings.Repeat("x", maxNameBytes)
	for _, step := range []struct{ name, gone, used string }{
		{"a", "", "a"}, {"b", "", "a b"}, {"a", "", "b a"}, {"c", "b", "a c"}, {"", "", "a c"}, {other, "", "a c"},
		{"\xff", "", "a c"}, {long + "x", "", "a c"}, {long, "a", "c " + long},
	} {
		assert.Equal(t, step.gone, n.add(step.name))
		assert.Equal(t, step.used, strings.Join(n.used, " "))
	}
	assert.Equal(t, "c", n.of("c"))
	assert.Equal(t, other, n.of("a"))
	assert.Equal(t, other, n.of(""))

	body := []byte("model")
	n = names{most: 1}
	n.add(string(body))
	body[0] = 'x'
	assert.Equal(t, "model", n.of("model"))
}
