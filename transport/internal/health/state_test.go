package health

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// check is a check of an endpoint that fails with err.
func (c *cluster) check(id string, err error) { c.Check(id, c.ref(id), false).Checked(err, true) }

func (c *cluster) status(id string) Status { return c.Health.Status(c.ref(id)) }

func (c *cluster) hanging() []string {
	_, hanging := c.Health.Avoid(nil, nil)
	return hanging
}

func TestChecks(t *testing.T) {
	bad := errors.New("bad")
	c := newCluster("a", "b", "c")
	assert.Equal(t, Status{Share: 1, Alive: true}, c.status("a"))
	c.check("a", nil)
	c.check("a", bad)
	assert.Empty(t, c.Avoid(nil), "one is none")
	assert.True(t, c.status("a").Alive)
	c.check("a", nil)
	c.check("a", bad)
	assert.Empty(t, c.Avoid(nil), "in a row")
	c.check("a", bad)
	assert.Equal(t, []string{"a"}, c.Avoid(nil))
	assert.Equal(t, Status{
		State: Unfit, Since: c.at, NextTrial: c.at.Add(firstBackoff), Checked: c.at, CheckErr: bad, Failed: 2,
	}, c.status("a"))
	assert.Empty(t, c.hanging(), "it answers")
	c.check("a", os.ErrDeadlineExceeded)
	assert.Equal(t, []string{"a"}, c.hanging(), "no longer")
	for range 3 {
		c.at = c.at.Add(maxBackoff)
		c.check("a", bad)
		assert.Equal(t, []string{"a"}, c.Avoid(nil), "no trial")
		assert.Empty(t, c.hanging(), "it answers again")
		assert.Equal(t, []string{"a"}, c.Out(nil))
	}
	c.check("a", nil)
	assert.True(t, c.status("a").Alive)
	assert.Empty(t, c.Avoid(nil), "a trial at once")
	assert.Equal(t, []string{"a"}, c.Avoid(nil), "one")
	v := c.send("a")
	require.True(t, v.trial)
	c.served(v, true, 0)
	assert.Equal(t, Returning, c.status("a").State)
	assert.InDelta(t, rampFrom, c.status("a").Share, 1e-9)

	// Checks have stopped.
	c.check("a", bad)
	c.check("a", bad)
	c.at = c.at.Add(checksCount)
	assert.Empty(t, c.Avoid(nil), "a trial is due")
}

// An endpoint that was never reached is out but gets trials, since the check may be
// wrong; once reached it is like a new one.
func TestChecksThatNeverGetAConnection(t *testing.T) {
	refused := errors.New("refused")
	apart := func(c *cluster, id string, err error) { c.Check(id, c.ref(id), false).Checked(err, false) }
	c := newCluster("a", "b", "c")
	apart(c, "a", refused)
	assert.Equal(t, Well, c.status("a").State, "once is none")
	apart(c, "a", refused)
	assert.Equal(t, Status{
		State: Unreachable, Since: c.at, NextTrial: c.at.Add(firstBackoff), Checked: c.at, CheckErr: refused, Failed: 2,
	}, c.status("a"))
	assert.Equal(t, 1, c.Unhealthy())
	assert.Equal(t, []string{"a"}, c.Avoid(nil))
	assert.Empty(t, c.hanging(), "asking costs nothing")
	c.at = c.at.Add(firstBackoff)
	apart(c, "a", refused)
	assert.Equal(t, c.at.Add(-firstBackoff), c.status("a").Since, "it is put out once")
	assert.Empty(t, c.Avoid(nil), "a trial, though no check has passed")
	v := c.send("a")
	require.True(t, v.trial)
	c.failed(v, true)
	assert.Equal(t, 2*firstBackoff, c.status("a").NextTrial.Sub(c.at))
	c.check("a", nil)
	assert.Equal(t, Status{State: Well, Since: c.at, Share: 1, Alive: true, Checked: c.at}, c.status("a"), "it has come")
	assert.Empty(t, c.Avoid(nil))
	assert.Zero(t, c.Unhealthy())

	// The page is at another port: an endpoint that serves is judged by that alone.
	c = newCluster("a", "b")
	for range 2 {
		apart(c, "a", refused)
		apart(c, "b", refused)
	}
	assert.Equal(t, []string{"a", "b"}, c.Avoid(nil), "all: they are asked all the same")
	assert.Empty(t, c.hanging())
	v = c.send("a")
	v.Heard()
	c.served(v, true, time.Millisecond)
	assert.Equal(t, Returning, c.status("a").State)
	for range 5 {
		apart(c, "a", refused)
	}
	assert.Equal(t, Returning, c.status("a").State)
	assert.True(t, c.status("a").Alive)

	// An endpoint that has answered, if only in its own way, may be alive.
	c = newCluster("a", "b")
	c.send("a").Heard()
	for range 5 {
		apart(c, "a", refused)
		c.check("b", refused)
	}
	assert.Equal(t, Well, c.status("a").State)
	assert.Equal(t, Well, c.status("b").State, "connected, and not understood")

	// An endpoint whose packets are dropped gets no requests but trials.
	c = newCluster("a")
	for range 2 {
		apart(c, "a", os.ErrDeadlineExceeded)
	}
	assert.Equal(t, []string{"a"}, c.hanging())
	c.at = c.at.Add(firstBackoff)
	assert.Empty(t, c.hanging())

	// What requests have shown since is not overruled by a check.
	c = newCluster("a", "b", "c")
	c.play("a", "uuu")
	apart(c, "a", refused)
	apart(c, "a", refused)
	c.check("a", nil)
	assert.True(t, c.status("a").State.Out())
	c.play("a", "s")
	for range 2 {
		c.check("a", refused)
	}
	assert.Equal(t, Unfit, c.status("a").State)
	c.check("a", nil)
	assert.True(t, c.status("a").State.Out(), "it is tried")
}

// An endpoint that was put out because of requests gets no earlier trial for passing
// checks, unless it was unreachable.
func TestChecksAndRequests(t *testing.T) {
	c := newCluster("a", "b", "c")
	c.play("a", "fff")
	c.play("b", "uuu")
	c.check("a", nil)
	c.check("b", nil)
	assert.Equal(t, []string{"a"}, c.Avoid(nil))
	assert.Equal(t, Failing, c.status("a").State)
	assert.Equal(t, Unreachable, c.status("b").State)

	// All are out: those that answer are used, those that don't are not.
	c = newCluster("a", "b")
	for _, id := range []string{"a", "b"} {
		c.check(id, nil)
	}
	for range 2 {
		c.check("a", errors.New("bad"))
		c.check("b", os.ErrDeadlineExceeded)
	}
	c.at = c.at.Add(firstBackoff)
	assert.Equal(t, []string{"b"}, c.Avoid(nil))
	assert.Equal(t, []string{"b"}, c.hanging())
}

// An endpoint that could not be connected to in time is not worth asking.
func TestWhoIsAskedInVain(t *testing.T) {
	c := newCluster("a", "b")
	for range 3 {
		c.failed(c.send("a").Because(os.ErrDeadlineExceeded), true)
		c.failed(c.send("b").Because(errors.New("refused")), true)
	}
	assert.Equal(t, []string{"a"}, c.hanging())
	assert.EqualError(t, c.status("b").Err, "refused")
	c.check("a", nil)
	assert.Empty(t, c.hanging(), "it passes a check")
}

// The error of a status is not one of before it was well, or of another time than its silence.
func TestErrorsOfAnotherTime(t *testing.T) {
	c := newCluster("a", "b")
	c.failed(c.send("a").Because(errors.New("refused")), true)
	require.EqualError(t, c.status("a").Err, "refused")
	c.at = c.at.Add(firstBackoff)
	c.served(c.send("a"), false, time.Second)
	require.Equal(t, Returning, c.state("a"))
	require.NoError(t, c.status("a").Err)
	require.Equal(t, 1, c.Unhealthy())
	c.at = c.at.Add(time.Minute)
	require.Zero(t, c.Unhealthy(), "it would have all of its share, though nobody has asked")
	c.failed(c.send("a").Because(errors.New("EOF")), false)
	require.EqualError(t, c.status("a").Err, "EOF")
	c.silence("a")
	require.Equal(t, Silent, c.state("a"))
	require.NoError(t, c.status("a").Err)
}
