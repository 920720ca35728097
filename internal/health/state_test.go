package health

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type timeout struct{}

func (timeout) Error() string { return "timeout" }
func (timeout) Timeout() bool { return true }

// check is a check of an endpoint that fails with err.
func (w *ward) check(id string, err error) { w.Checked(w.Check(id, w.refs[id]), err, 2) }

func (w *ward) status(id string) Status { return w.Status(id, w.refs[id]) }

func (w *ward) inVain() []string {
	_, inVain := w.Health.Avoid(nil, nil)
	return inVain
}

func TestChecks(t *testing.T) {
	bad := errors.New("bad")
	w := newWard("a", "b", "c")
	assert.Equal(t, Status{Share: 1, Alive: true}, w.status("a"))
	w.check("a", nil)
	w.check("a", bad)
	assert.Empty(t, w.Avoid(nil), "one is none")
	assert.True(t, w.status("a").Alive)
	w.check("a", nil)
	w.check("a", bad)
	assert.Empty(t, w.Avoid(nil), "in a row")
	w.check("a", bad)
	assert.Equal(t, []string{"a"}, w.Avoid(nil))
	assert.Equal(t, Status{
		State: Out, Reason: Unfit, Since: w.at, NextTrial: w.at.Add(firstBackoff), Checked: w.at, CheckErr: bad, Failed: 2,
	}, w.status("a"))
	assert.Empty(t, w.inVain(), "it answers")
	for range 3 {
		w.at = w.at.Add(maxBackoff)
		w.check("a", bad)
		assert.Equal(t, []string{"a"}, w.Avoid(nil), "no trial")
		assert.Equal(t, []string{"a"}, w.Out(nil))
	}
	w.check("a", nil)
	assert.True(t, w.status("a").Alive)
	assert.Empty(t, w.Avoid(nil), "a trial at once")
	assert.Equal(t, []string{"a"}, w.Avoid(nil), "one")
	v := w.visit("a")
	require.True(t, v.trial)
	w.Served(v, true, 0)
	assert.Equal(t, Returning, w.status("a").State)
	assert.InDelta(t, rampFrom, w.status("a").Share, 1e-9)
	assert.Equal(t, Fine, w.status("a").Reason)

	// Checks have stopped.
	w.check("a", bad)
	w.check("a", bad)
	w.at = w.at.Add(checksCount)
	assert.Empty(t, w.Avoid(nil), "a trial is due")
}

func TestChecksThatSayNothing(t *testing.T) {
	w := newWard("a", "b", "c")
	for range 5 {
		w.check("a", timeout{})
	}
	assert.Empty(t, w.Avoid(nil), "it has never passed one")
	assert.False(t, w.status("a").Alive, "and has never sent anything")
	w.Heard(w.visit("a"))
	assert.True(t, w.status("a").Alive)
	w.check("a", nil)
	for range 5 {
		v := w.Check("a", w.refs["a"])
		w.Heard(w.visit("a"))
		w.Checked(v, timeout{}, 2)
	}
	assert.Empty(t, w.Avoid(nil), "it has sent something meanwhile")
	w.check("a", timeout{})
	w.check("a", timeout{})
	assert.Equal(t, []string{"a"}, w.inVain())
	w.check("a", nil)
	assert.Empty(t, w.inVain())
}

// An endpoint that was never reached is out but gets trials, since the check may be
// wrong; once reached it is like a new one.
func TestChecksThatNeverGetAConnection(t *testing.T) {
	refused := errors.New("refused")
	apart := func(w *ward, id string, err error) { w.Checked(w.Check(id, w.refs[id]).Apart(), err, 2) }
	w := newWard("a", "b", "c")
	apart(w, "a", refused)
	assert.Equal(t, Well, w.status("a").State, "once is none")
	apart(w, "a", refused)
	assert.Equal(t, Status{
		State: Out, Reason: Unreachable, Since: w.at, NextTrial: w.at.Add(firstBackoff), Checked: w.at, CheckErr: refused, Failed: 2,
	}, w.status("a"))
	assert.Equal(t, 1, w.Unhealthy())
	assert.Equal(t, []string{"a"}, w.Avoid(nil))
	assert.Empty(t, w.inVain(), "asking costs nothing")
	w.at = w.at.Add(firstBackoff)
	apart(w, "a", refused)
	assert.Equal(t, w.at.Add(-firstBackoff), w.status("a").Since, "it is put out once")
	assert.Empty(t, w.Avoid(nil), "a trial, though no check has passed")
	v := w.visit("a")
	require.True(t, v.trial)
	w.Failed(v, true)
	assert.Equal(t, 2*firstBackoff, w.status("a").NextTrial.Sub(w.at))
	w.check("a", nil)
	assert.Equal(t, Status{State: Well, Since: w.at, Share: 1, Alive: true, Checked: w.at}, w.status("a"), "it has come")
	assert.Empty(t, w.Avoid(nil))
	assert.Zero(t, w.Unhealthy())

	// The page is at another port: an endpoint that serves is judged by that alone.
	w = newWard("a", "b")
	for range 2 {
		apart(w, "a", refused)
		apart(w, "b", refused)
	}
	assert.Equal(t, []string{"a", "b"}, w.Avoid(nil), "all: they are asked all the same")
	assert.Empty(t, w.inVain())
	v = w.visit("a")
	w.Heard(v)
	w.Served(v, true, time.Millisecond)
	assert.Equal(t, Returning, w.status("a").State)
	for range 5 {
		apart(w, "a", refused)
	}
	assert.Equal(t, Returning, w.status("a").State)
	assert.True(t, w.status("a").Alive)

	// An endpoint that has answered, if only in its own way, may be alive.
	w = newWard("a", "b")
	w.Heard(w.visit("a"))
	for range 5 {
		apart(w, "a", refused)
		w.check("b", refused)
	}
	assert.Equal(t, Well, w.status("a").State)
	assert.Equal(t, Well, w.status("b").State, "connected, and not understood")

	// An endpoint whose packets are dropped gets no requests but trials.
	w = newWard("a")
	for range 2 {
		apart(w, "a", timeout{})
	}
	assert.Equal(t, []string{"a"}, w.inVain())
	w.at = w.at.Add(firstBackoff)
	assert.Empty(t, w.inVain())

	// What requests have shown since is not overruled by a check.
	w = newWard("a", "b", "c")
	w.play("a", "uuu")
	apart(w, "a", refused)
	apart(w, "a", refused)
	w.check("a", nil)
	assert.Equal(t, Out, w.status("a").State)
	w.play("a", "s")
	for range 2 {
		w.check("a", refused)
	}
	assert.Equal(t, Unfit, w.status("a").Reason)
	w.check("a", nil)
	assert.Equal(t, Out, w.status("a").State, "it is tried")
}

// An endpoint that was put out because of requests gets no earlier trial for passing
// checks, unless it was unreachable.
func TestChecksAndRequests(t *testing.T) {
	w := newWard("a", "b", "c")
	w.play("a", "fff")
	w.play("b", "uuu")
	w.check("a", nil)
	w.check("b", nil)
	assert.Equal(t, []string{"a"}, w.Avoid(nil))
	assert.Equal(t, Failing, w.status("a").Reason)
	assert.Equal(t, Unreachable, w.status("b").Reason)

	// All are out: those that answer are used, those that don't are not.
	w = newWard("a", "b")
	for _, id := range []string{"a", "b"} {
		w.check(id, nil)
	}
	for range 2 {
		w.check("a", errors.New("bad"))
		w.check("b", timeout{})
	}
	w.at = w.at.Add(firstBackoff)
	assert.Equal(t, []string{"b"}, w.Avoid(nil))
	assert.Equal(t, []string{"b"}, w.inVain())
}

// A silent endpoint is not worth asking after two trials, and one that could not be
// connected to in time from the first.
func TestWhoIsAskedInVain(t *testing.T) {
	w := newWard("a")
	for range minSeen {
		w.Served(w.visit("a"), true, time.Millisecond)
	}
	for range maxOverdue {
		w.Overdue(w.visit("a"))
	}
	assert.Equal(t, Silent, w.status("a").Reason)
	for trial := range vainTrials {
		assert.Empty(t, w.inVain(), "after %d trials", trial)
		w.at = w.at.Add(maxBackoff)
		require.True(t, w.visit("a").trial)
	}
	assert.Equal(t, []string{"a"}, w.inVain())
	w.at = w.at.Add(maxBackoff)
	assert.Empty(t, w.inVain(), "a trial is due")
	v := w.visit("a")
	assert.Equal(t, []string{"a"}, w.inVain())
	w.Heard(v)
	assert.Empty(t, w.inVain())

	w = newWard("a", "b")
	for range 3 {
		w.Failed(w.visit("a").Because(timeout{}), true)
		w.Failed(w.visit("b").Because(errors.New("refused")), true)
	}
	assert.Equal(t, []string{"a"}, w.inVain())
	assert.EqualError(t, w.status("b").Err, "refused")
}
