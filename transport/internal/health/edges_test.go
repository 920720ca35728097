package health

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// silence puts an endpoint out for being silent.
func (c *cluster) silence(id string) {
	attempts := []Attempt{c.send(id), c.send(id), c.send(id)}
	for _, v := range attempts {
		v.Overdue()
	}
}

// Who is silent may answer those that wait, so it is never excluded, and where all are out it is the
// one to wait at: who can't be reached, or fails, would refuse at once.
func TestWaitingWhereItMayHelp(t *testing.T) {
	c := newCluster("a", "b", "c", "d")
	c.silence("a")
	c.play("b", "fff")
	c.play("c", "uuu")
	for range 5 {
		avoid, hanging := c.Health.Avoid(nil, nil)
		assert.Equal(t, []string{"a", "b", "c"}, avoid, "d is well")
		assert.Empty(t, hanging)
		c.at = c.status("a").NextTrial.Add(-1)
		assert.True(t, c.status("a").Alive)
	}
	c.play("d", "uuu")
	for range 5 {
		avoid, hanging := c.Health.Avoid(nil, nil)
		assert.Equal(t, []string{"b", "c", "d"}, avoid)
		assert.Empty(t, hanging)
		require.False(t, c.send("a").trial)
	}
	c.send("a").Full(0)
	assert.Len(t, c.Avoid(nil), 4)
}

// Requests that were waiting before the endpoint was put out say nothing of it once it is back.
func TestOverdueSinceBefore(t *testing.T) {
	c := newCluster("a", "b")
	waiting := []Attempt{c.send("a"), c.send("a"), c.send("a")}
	c.play("a", "uuu.s")
	for _, v := range waiting {
		v.Overdue()
	}
	assert.Equal(t, Returning, c.status("a").State)
}

// A good answer between two refusals shows that the requests were at fault, however long
// ago the first was.
func TestOpinions(t *testing.T) {
	c := newCluster("a", "b")
	assert.False(t, c.send("a").Ended(Refused))
	c.Avoid(nil)
	c.play("a", "s")
	assert.False(t, c.send("a").Ended(Refused))
	assert.True(t, c.send("a").Ended(Refused))
}

// A check that is late while requests are in flight, or none has been answered yet, says little: only
// three in a silence that is longer than usual put an endpoint out, and then as silent.
func TestLateChecksOfWhoIsBusy(t *testing.T) {
	late := func(c *cluster, busy, connected bool) {
		c.Check("a", c.ref("a"), busy).Checked(os.ErrDeadlineExceeded, connected)
	}
	for name, tc := range map[string]struct {
		do   func(c *cluster) // between checks, once each
		busy bool
		want State
	}{
		"nothing in flight":          {func(*cluster) {}, false, Unfit},
		"served":                     {func(c *cluster) { c.send("a").Heard() }, false, Unfit},
		"in flight, and sends":       {func(c *cluster) { c.send("a").Heard() }, true, Well},
		"in flight":                  {func(c *cluster) { c.send("a") }, true, Silent},
		"its client waits elsewhere": {func(c *cluster) { c.send("a") }, false, Silent},
		"full of others' work":       {func(c *cluster) { v := c.send("a"); v.Heard(); v.Full(0) }, false, Silent},
		"its client has left":        {func(c *cluster) { v := c.send("a"); v.Heard(); v.Ended(Canceled) }, false, Silent},
	} {
		c := newCluster("a", "b")
		c.check("a", nil)
		tc.do(c)
		c.at = c.at.Add(minPatience)
		for range maxOverdue - 1 {
			late(c, tc.busy, true)
			assert.False(t, c.state("a") == Silent, name)
		}
		late(c, tc.busy, true)
		assert.Equal(t, tc.want, c.state("a"), name)
		assert.Equal(t, tc.want == Unfit, len(c.hanging()) > 0, name)
	}

	// In the middle of streams, silence counts since checks have been late, and none has passed.
	var c *cluster
	for name, between := range map[string]func(){
		"a byte":       func() { c.send("a").Heard() },
		"a good check": func() { c.check("a", nil) },
	} {
		c = newCluster("a", "b")
		c.check("a", nil)
		c.send("a").Heard()
		for range maxOverdue + 1 {
			c.at = c.at.Add(time.Hour)
			between()
			late(c, true, true)
		}
		c.at = c.at.Add(minPatience)
		for range maxOverdue {
			assert.Equal(t, Well, c.state("a"), name)
			late(c, true, true)
		}
		assert.Equal(t, Silent, c.state("a"), name)
	}

	c = newCluster("a", "b")
	for range minSeen { // a prompt takes half a minute here
		c.served(c.send("b"), false, 30*time.Second)
	}
	for _, stream := range []bool{false, true} {
		c.check("a", nil)
		c.send("a")
		c.at = c.at.Add(c.usual() - 1)
		for range 10 {
			late(c, true, true)
			assert.True(t, c.Answers(c.ref("a")))
		}
		c.at = c.at.Add(1)
		assert.False(t, c.Answers(c.ref("a")))
		c.send("b").Heard()
		assert.True(t, c.Answers(c.ref("b")))
		for range maxOverdue {
			assert.Equal(t, Well, c.state("a"))
			late(c, true, true)
		}
		assert.Equal(t, Silent, c.state("a"), stream)
		c.send("a").Heard()
		c.at = c.at.Add(time.Hour)
		c.Avoid(nil)
		for range minSeen { // but no stream waits for that long, and one was under way
			c.served(c.send("b"), true, time.Second)
		}
		assert.Equal(t, minPatience, c.usual())
	}

	c = newCluster("a", "b")
	c.send("a")
	c.at = c.at.Add(time.Hour)
	for range 5 {
		late(c, true, true)
	}
	assert.Equal(t, Well, c.state("a"), "the page may be what is wrong")
	c.check("a", nil)
	late(c, true, false)
	late(c, true, false)
	assert.Equal(t, Unfit, c.state("a"), "it does not even connect")
}

// How long a full endpoint is avoided: for as long as it says, or a moment.
func TestHowLongFullIsAvoided(t *testing.T) {
	for said, want := range map[time.Duration]time.Duration{0: fullFor, time.Second: time.Second, time.Hour: maxFull} {
		c := newCluster("a", "b")
		c.send("a").Full(0)
		c.send("a").Full(said)
		c.send("a").Full(0)
		c.at = c.at.Add(want - 1)
		assert.Equal(t, []string{"a"}, c.Avoid(nil))
		assert.Equal(t, Status{Share: 1, Alive: true, Full: true}, c.status("a"))
		c.at = c.at.Add(1)
		assert.Empty(t, c.Avoid(nil))
	}
}

// A recovering endpoint that is full is spared, whatever its share.
func TestReturningAndFull(t *testing.T) {
	c := newCluster("a", "b")
	c.play("a", "uuu.s")
	c.at = c.at.Add(12 * time.Second)
	c.send("a").Full(0)
	for range 20 {
		assert.Equal(t, []string{"a"}, c.Avoid(nil))
	}
}

// Where nobody is well, one that returns is the best that there is, and has no share to keep to.
func TestReturningWhereNobodyIsWell(t *testing.T) {
	c := newCluster("a", "b")
	c.play("a", "uuu.s")
	assert.Contains(t, c.Avoid(nil), "a", "b is well")
	c.play("b", "uuu")
	for range 20 {
		assert.Equal(t, []string{"b"}, c.Avoid(nil))
	}
}

// A second recovery begins with the share of the first.
func TestReturningTwice(t *testing.T) {
	c := newCluster("a", "b")
	untilTried := func() (n int) {
		for n = 1; slices.Contains(c.Avoid(nil), "a"); n++ {
		}
		return n
	}
	c.play("a", "uuu.s")
	first := untilTried()
	assert.InDelta(t, 10, first, 1)
	for range 5 {
		c.Avoid(nil)
	}
	c.play("a", "uuu")
	c.at = c.status("a").NextTrial
	c.play("a", "s")
	assert.Equal(t, first, untilTried())
}

// An inconclusive trial is followed by the next, which waits as long as it would
// have; an earlier one is no longer a trial.
func TestTrialsThatSayNothing(t *testing.T) {
	for name, end := range map[string]func(c *cluster, v Attempt){
		"undecided": func(c *cluster, v Attempt) { v.Ended(Undecided) },
		"full":      func(c *cluster, v Attempt) { v.Full(0) },
	} {
		c := newCluster("a", "b")
		c.play("a", "uuu.")
		end(c, c.send("a"))
		assert.Equal(t, c.at, c.status("a").NextTrial, name)
		c.send("a")
		assert.Equal(t, c.at.Add(2*time.Second), c.status("a").NextTrial, name)
	}
	c := newCluster("a", "b")
	c.play("a", "uuu.")
	trial := c.send("a")
	c.served(trial, true, time.Millisecond)
	c.play("a", "uuu")
	assert.True(t, c.IsOut("a"))
	trial.Ended(Undecided)
	assert.True(t, c.status("a").NextTrial.After(c.at))
}

// The effect of checks on endpoints that requests have judged, or that are busy.
func TestChecksBesideRequests(t *testing.T) {
	c := newCluster("a", "b")
	c.play("a", "uuu")
	c.Check("a", c.ref("a"), false).Checked(errors.New("503"), true)
	c.at = c.at.Add(time.Second)
	assert.False(t, c.status("a").Alive, "a trial is due, but its check has failed")
	c.Check("a", c.ref("a"), false).Checked(nil, true)
	assert.True(t, c.status("a").Alive)

	check := c.Check("b", c.ref("b"), false)
	c.send("b").Heard()
	check.Checked(os.ErrDeadlineExceeded, true)
	assert.NoError(t, c.status("b").CheckErr, "it was late, since it has answered others")
	assert.Equal(t, c.at, c.status("b").Checked)
}
