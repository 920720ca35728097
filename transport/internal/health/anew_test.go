package health

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An endpoint that returns is judged by what it does from then on: earlier failed checks
// do not delay a trial after requests have put it out again.
func TestChecksOfBeforeAreForgotten(t *testing.T) {
	bad := errors.New("bad")
	c := newCluster("a", "b", "c")
	c.check("a", nil)
	c.check("a", bad)
	c.check("a", bad)
	require.True(t, c.IsOut("a"))
	assert.False(t, c.IsOut("b"))
	c.at = c.at.Add(checksCount)
	c.play("a", "s") // a trial
	st := c.status("a")
	assert.Equal(t, Returning, st.State)
	assert.Equal(t, c.at, st.Since)
	assert.Zero(t, st.Failed)
	assert.True(t, st.Alive)
	c.check("a", bad)
	assert.Equal(t, Returning, c.status("a").State, "one is none")
	c.play("a", "fff")
	assert.Equal(t, Failing, c.status("a").State)
	assert.True(t, c.waits("a"))
	c.at = c.status("a").NextTrial
	assert.False(t, c.waits("a"), "a trial is due, whatever the last check said")
	c.play("a", "sff")
	assert.Equal(t, Returning, c.status("a").State, "what put it out does not count any more")
	c.at = c.at.Add(rampTime)
	c.Avoid(nil)
	assert.Equal(t, Well, c.status("a").State)
	assert.Equal(t, c.at, c.status("a").Since)
}

// A check that fails with a response counts, however busy the endpoint is.
func TestChecksThatFailWithWords(t *testing.T) {
	c := newCluster("a", "b", "c")
	c.check("a", nil)
	for _, err := range []error{os.ErrDeadlineExceeded, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded, errors.New("503"), errors.New("503")} {
		assert.False(t, c.IsOut("a"))
		v := c.Check("a", c.ref("a"), false)
		c.send("a").Heard()
		v.Checked(err, true)
	}
	assert.True(t, c.IsOut("a"))
}

// The others' failures fade while they get no requests.
func TestFailuresOfOthersFade(t *testing.T) {
	c := newCluster("a", "b")
	c.play("b", "ff")
	c.play("a", "fff")
	assert.False(t, c.IsOut("a"), "the other is no better")
	c = newCluster("a", "b")
	c.play("b", "ff")
	c.at = c.at.Add(outcomesHalve)
	c.play("a", "fff")
	assert.True(t, c.IsOut("a"))
	s := c.known[slices.IndexFunc(c.known, func(s *endpoint) bool { return s.id == "b" })]
	assert.InDelta(t, 1.95/2, s.bad, 1e-9)
	assert.InDelta(t, 7.5*0.95*0.95/2, s.good, 1e-9)
}

// The share that is shown grows, and is all in the end, though no request has come.
func TestSharesThatAreShown(t *testing.T) {
	c := newCluster("a", "b", "c")
	c.play("a", "fff")
	c.at = c.status("a").NextTrial
	c.play("a", "s")
	for _, want := range []float64{rampFrom, 0.5 + rampFrom, 1} {
		assert.InDelta(t, want, c.status("a").Share, 1e-9)
		assert.Equal(t, want == 1, c.status("a").State == Well)
		c.at = c.at.Add(rampTime / 2)
	}
}
