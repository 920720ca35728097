package prefix

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// No match finds the marks of an earlier one, not even when stamps begin anew.
func TestMarksOfEarlierMatches(t *testing.T) {
	for _, tc := range []struct {
		before uint32
		slots  int
	}{{7, 3}, {7, 4}, {math.MaxUint32 - 1, 3}, {math.MaxUint32, 3}} {
		s := scratch{stamp: tc.before, marks: []mark{{}, {stamp: 1}, {stamp: tc.before}}}
		s.begin(tc.slots)
		assert.GreaterOrEqual(t, len(s.marks), tc.slots)
		for i, m := range s.marks {
			assert.NotEqual(t, s.stamp, m.stamp, "%+v: mark %d", tc, i)
		}
	}
}
