package health

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An endpoint that returns is judged by what it does from then on: earlier failed checks
// do not delay a trial after requests have put it out again.
func TestChecksOfBeforeAreForgotten(t *testing.T) {
	bad := errors.New("bad")
	w := newWard("a", "b", "c")
	w.check("a", nil)
	w.check("a", bad)
	w.check("a", bad)
	require.True(t, w.IsOut("a"))
	assert.False(t, w.IsOut("b"))
	w.at = w.at.Add(checksCount)
	w.play("a", "s") // a trial
	st := w.status("a")
	assert.Equal(t, Returning, st.State)
	assert.Equal(t, w.at, st.Since)
	assert.Zero(t, st.Failed)
	assert.True(t, st.Alive)
	w.check("a", bad)
	assert.Equal(t, Returning, w.status("a").State, "one is none")
	w.play("a", "fff")
	assert.Equal(t, Failing, w.status("a").Reason)
	assert.True(t, w.waits("a"))
	w.at = w.status("a").NextTrial
	assert.False(t, w.waits("a"), "a trial is due, whatever the last check said")
	w.play("a", "s")
	w.at = w.at.Add(rampTime)
	w.Avoid(nil)
	assert.Equal(t, Well, w.status("a").State)
	assert.Equal(t, w.at, w.status("a").Since)
}

// An endpoint that was once unreachable is not considered gone at its next failure: of
// five that fail, three are spared.
func TestWhoWasGoneIsNotGoneForEver(t *testing.T) {
	w := newWard("a", "b", "c", "d", "e")
	w.play("a", "uuu.s")
	w.at = w.at.Add(time.Hour)
	w.Avoid(nil)
	require.Equal(t, Well, w.status("a").State)
	for _, id := range []string{"a", "b", "c", "d"} {
		w.play(id, "fff")
		require.True(t, w.IsOut(id))
	}
	assert.Len(t, w.Avoid(nil), 3)
	w.play("e", "s")
	w = newWard("a", "b", "c", "d", "e")
	for _, id := range []string{"a", "b", "c", "d"} {
		w.play(id, "uuu")
	}
	assert.Len(t, w.Avoid(nil), 4, "nobody can be sent where nobody is")
}

// The number of trials at a silent endpoint counts from its latest silence.
func TestTrialsCountFromTheLastIllness(t *testing.T) {
	w := newWard("a", "b", "c")
	for range 2 {
		w.silence("a")
		for range vainTrials {
			assert.Empty(t, w.inVain())
			w.at = w.status("a").NextTrial
			w.visit("a")
		}
		assert.Equal(t, []string{"a"}, w.inVain())
		w.Heard(w.visit("a"))
		w.at = w.at.Add(time.Hour)
		assert.Empty(t, w.inVain())
	}
}

// An endpoint that was not worth asking is worth it again once it passes a check.
func TestAPassedCheckIsNotInVain(t *testing.T) {
	w := newWard("a", "b")
	for range 3 {
		w.Failed(w.visit("a").Because(timeout{}), true)
	}
	assert.Equal(t, []string{"a"}, w.inVain())
	assert.True(t, w.InVain(w.refs["a"]))
	w.check("a", nil)
	assert.False(t, w.InVain(w.refs["a"]))
	assert.Empty(t, w.inVain(), "a trial is offered")
	avoid, inVain := w.Health.Avoid(nil, nil)
	assert.Equal(t, []string{"a"}, avoid)
	assert.Empty(t, inVain, "and if nobody else is left it may be asked")
}

// A check that fails with a response counts, however busy the endpoint is.
func TestChecksThatFailWithWords(t *testing.T) {
	w := newWard("a", "b", "c")
	w.check("a", nil)
	for _, err := range []error{timeout{}, timeout{}, timeout{}, errors.New("503"), errors.New("503")} {
		assert.False(t, w.IsOut("a"))
		v := w.Check("a", w.refs["a"])
		w.Heard(w.visit("a"))
		w.Checked(v, err, 2)
	}
	assert.True(t, w.IsOut("a"))
}

// What is shown of an endpoint that is full, or due for a trial.
func TestWhatIsShown(t *testing.T) {
	w := newWard("a", "b")
	w.Full(w.visit("a"))
	assert.True(t, w.status("a").Full)
	assert.True(t, w.status("a").Alive)
	w.at = w.at.Add(fullFor)
	assert.False(t, w.status("a").Full)
	w.play("a", "uuu")
	assert.False(t, w.status("a").Alive)
	w.at = w.at.Add(firstBackoff)
	assert.True(t, w.status("a").Alive, "a request may go there")
	w.check("a", errors.New("bad"))
	assert.False(t, w.status("a").Alive, "of which a check says that it will fail")
}

// A trial that waits long does not make an unhealthy endpoint unhealthy again.
func TestOverdueTrials(t *testing.T) {
	w := newWard("a", "b")
	w.play("a", "fff.")
	next := w.status("a").NextTrial
	visits := []Visit{w.visit("a"), w.visit("a"), w.visit("a")}
	require.True(t, w.status("a").NextTrial.After(next))
	next = w.status("a").NextTrial
	for _, v := range visits {
		w.Overdue(v)
	}
	assert.Equal(t, Failing, w.status("a").Reason)
	assert.Equal(t, next, w.status("a").NextTrial)
}

// The others' failures fade while they get no requests.
func TestFailuresOfOthersFade(t *testing.T) {
	w := newWard("a", "b")
	w.play("b", "ff")
	w.play("a", "fff")
	assert.False(t, w.IsOut("a"), "the other is no better")
	w = newWard("a", "b")
	w.play("b", "ff")
	w.at = w.at.Add(outcomesHalve)
	w.play("a", "fff")
	assert.True(t, w.IsOut("a"))
	s := w.remarked[slices.IndexFunc(w.remarked, func(s *standing) bool { return s.id == "b" })]
	assert.InDelta(t, 1.95/2, s.bad, 1e-9)
	assert.InDelta(t, 7.5*0.95*0.95/2, s.good, 1e-9)
}

// Tokens that flow in with time are added to what is left.
func TestBudgetsAddUp(t *testing.T) {
	at := time.Unix(1000, 0)
	b := NewBudget(0.5, 10, 100)
	b.Request(at)
	for range 50 {
		require.True(t, b.Retry(at))
	}
	at = at.Add(time.Second)
	b.Request(at)
	n := 0
	for b.Retry(at) {
		n++
	}
	assert.Equal(t, 60, n, "50 were left, 10 have come, and half a one")
}
