package health

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// What counts as slow is known after eight answers, and remembered for long.
func TestPatience(t *testing.T) {
	w := newWard("a")
	w.play("a", "sssssss")
	assert.Zero(t, w.Patience(true))
	w.play("a", "s")
	assert.Equal(t, minPatience, w.Patience(true))
	assert.Zero(t, w.Patience(false), "of answers at once nothing is known")
	w.Served(w.visit("a"), true, time.Minute)
	w.play("a", "s")
	assert.InDelta(t, 2*60, w.Patience(true).Seconds(), 2)
	for range 1000 {
		w.play("a", "s")
	}
	assert.Equal(t, minPatience, w.Patience(true), "but not for ever")
}

// silence puts an endpoint out for being silent.
func (w *ward) silence(id string) {
	visits := []Visit{w.visit(id), w.visit(id), w.visit(id)}
	for _, v := range visits {
		w.Overdue(v)
	}
}

// A silent endpoint is no longer worth asking after two trials, not before.
func TestSilenceInVain(t *testing.T) {
	w := newWard("a", "b", "c", "d")
	w.silence("a")
	for trials, want := range [][]string{nil, nil, {"a"}} {
		avoid, inVain := w.Health.Avoid(nil, nil)
		assert.Equal(t, []string{"a"}, avoid)
		assert.Equal(t, want, inVain, "after %d trials", trials)
		assert.Equal(t, want != nil, w.InVain(w.refs["a"]), "after %d trials", trials)
		w.at = w.status("a").NextTrial
		assert.False(t, w.InVain(w.refs["a"]), "a trial is due")
		w.visit("a")
	}
	assert.False(t, w.InVain(w.refs["b"]))
}

// Requests that were waiting before the endpoint was put out say nothing of it once it is back.
func TestOverdueSinceBefore(t *testing.T) {
	w := newWard("a", "b")
	waiting := []Visit{w.visit("a"), w.visit("a"), w.visit("a")}
	w.play("a", "uuu.s")
	for _, v := range waiting {
		w.Overdue(v)
	}
	assert.Equal(t, Returning, w.status("a").State)
}

// A number of refusals are checked elsewhere at once; a good answer between two of them
// shows that the requests were at fault, however long ago the first was checked.
func TestOpinions(t *testing.T) {
	w := newWard("a", "b")
	n := 0
	for range 20 {
		if w.Refused(w.visit("a")) {
			n++
		}
	}
	assert.Equal(t, opinionBurst, n)
	w = newWard("a", "b")
	assert.False(t, w.Refused(w.visit("a")))
	w.Avoid(nil)
	w.play("a", "s")
	assert.False(t, w.Refused(w.visit("a")))
	assert.True(t, w.Refused(w.visit("a")))
}

// A recovering endpoint that is full is spared, whatever its share.
func TestReturningAndFull(t *testing.T) {
	w := newWard("a", "b")
	w.play("a", "uuu.s")
	w.at = w.at.Add(12 * time.Second)
	w.Full(w.visit("a"))
	for range 20 {
		assert.Equal(t, []string{"a"}, w.Avoid(nil))
	}
}

// A second recovery begins with the share of the first.
func TestReturningTwice(t *testing.T) {
	w := newWard("a", "b")
	untilTried := func() (n int) {
		for n = 1; slices.Contains(w.Avoid(nil), "a"); n++ {
		}
		return n
	}
	w.play("a", "uuu.s")
	first := untilTried()
	assert.InDelta(t, 10, first, 1)
	for range 5 {
		w.Avoid(nil)
	}
	w.play("a", "uuu")
	w.at = w.status("a").NextTrial
	w.play("a", "s")
	assert.Equal(t, first, untilTried())
}

// An inconclusive trial is followed by the next, which waits as long as it would
// have; an earlier one is no longer a trial.
func TestTrialsThatSayNothing(t *testing.T) {
	for name, end := range map[string]func(w *ward, v Visit){
		"undecided": func(w *ward, v Visit) { w.Undecided(v) },
		"full":      func(w *ward, v Visit) { w.Full(v) },
	} {
		w := newWard("a", "b")
		w.play("a", "uuu.")
		end(w, w.visit("a"))
		assert.Equal(t, w.at, w.status("a").NextTrial, name)
		w.visit("a")
		assert.Equal(t, w.at.Add(2*time.Second), w.status("a").NextTrial, name)
	}
	w := newWard("a", "b")
	w.play("a", "uuu.")
	trial := w.visit("a")
	w.Served(trial, true, time.Millisecond)
	w.play("a", "uuu")
	assert.True(t, w.IsOut("a"))
	w.Undecided(trial)
	assert.True(t, w.status("a").NextTrial.After(w.at))
}

// A single failure of another endpoint, which has served since, excuses no other.
func TestOneFailureElsewhere(t *testing.T) {
	w := newWard("a", "b")
	w.play("b", "fs")
	w.play("a", "fff")
	assert.True(t, w.IsOut("a"))
}

// Failures fade with a clock that was set back as with any other.
func TestFadingWhenTheClockIsSetBack(t *testing.T) {
	w := newWard("a", "b")
	w.play("a", "ff")
	w.at = w.at.Add(-time.Hour)
	w.Avoid(nil)
	w.at = w.at.Add(2 * outcomesHalve)
	w.play("a", "ff")
	assert.False(t, w.IsOut("a"))
	w.play("a", "f")
	assert.True(t, w.IsOut("a"))
}

// The effect of checks on endpoints that requests have judged, or that are busy.
func TestChecksBesideRequests(t *testing.T) {
	w := newWard("a", "b")
	w.play("a", "uuu")
	w.Checked(w.Check("a", w.refs["a"]), errors.New("503"), 1)
	w.at = w.at.Add(time.Second)
	assert.False(t, w.status("a").Alive, "a trial is due, but its check has failed")
	w.Checked(w.Check("a", w.refs["a"]), nil, 1)
	assert.True(t, w.status("a").Alive)

	check := w.Check("b", w.refs["b"])
	w.Heard(w.visit("b"))
	w.Checked(check, timeout{}, 1)
	assert.NoError(t, w.status("b").CheckErr, "it was late, since it has answered others")
	assert.Equal(t, w.at, w.status("b").Checked)
}
