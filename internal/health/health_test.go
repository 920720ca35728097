package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// ward is a health with a clock and endpoints a, b, c, …
type ward struct {
	*Health
	at   time.Time
	refs map[string]endpick.Ref
}

func newWard(ids ...string) *ward {
	w := &ward{Health: new(Health), at: time.Unix(1000, 0), refs: map[string]endpick.Ref{}}
	for i, id := range ids {
		w.refs[id] = endpick.Ref{Slot: uint32(i), Generation: 1}
	}
	w.clock = func() time.Time { return w.at }
	w.size = func() int { return len(w.refs) }
	w.current = func(id string) (endpick.Ref, bool) { ref, ok := w.refs[id]; return ref, ok }
	w.present = func(id string, ref endpick.Ref) bool { current, ok := w.refs[id]; return ok && current == ref }
	return w
}

func (w *ward) Avoid(dst []string) []string {
	avoid, _ := w.Health.Avoid(dst, nil)
	return avoid
}

func (w *ward) visit(id string) Visit { return w.Sent(id, w.refs[id]) }

// play ends requests at an endpoint: f failed, u unreachable, s served; a point
// waits a second.
func (w *ward) play(id, outcomes string) {
	for _, o := range outcomes {
		switch o {
		case 'f':
			w.Failed(w.visit(id), false)
		case 'u':
			w.Failed(w.visit(id), true)
		case 's':
			w.Served(w.visit(id), true, time.Millisecond)
		case '.':
			w.at = w.at.Add(time.Second)
		}
	}
}

// waits reports whether the endpoint is out and no trial is due.
func (w *ward) waits(id string) bool { return slices.Contains(w.Out(nil), id) }

func TestWhatPutsAnEndpointOut(t *testing.T) {
	many := strings.Repeat
	for _, tc := range []struct {
		name, a, b, c string // what happens at each, a last
		out           bool
	}{
		{name: "one failure", a: "f"},
		{name: "two failures", a: "ff"},
		{name: "three failures in a row", a: "fff", out: true},
		{name: "three that could not be reached", a: "uuu", out: true},
		{name: "three of six", a: "fsfsfsf", out: true},
		{name: "one of ten", a: many("f"+many("s", 9), 20)},
		{name: "one of five", a: many("fssss", 20)},
		{name: "one of three", a: many("fss", 20), out: true},
		{name: "three, each two minutes apart", a: many("f"+many(".", 120), 3), out: true},
		{name: "each ten minutes apart", a: many("f"+many(".", 600), 10)},
		{name: "all fail alike", a: many("fs", 20), b: many("fs", 20), c: many("fs", 20)},
		{name: "all fail, but one more often", a: "fff", b: "ffs", c: "ffs"},
		{name: "the only other that is not out fails, too", a: "fff", b: "ffs", c: "uuu"},
		{name: "one other fails now and then", a: "fff", b: many("fssssssss", 6), out: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWard("a", "b", "c")
			w.play("b", tc.b)
			w.play("c", tc.c)
			was := false
			for _, o := range tc.a {
				w.play("a", string(o))
				was = was || w.waits("a")
			}
			assert.Equal(t, tc.out, was)
		})
	}
}

// The boundaries, worked out by hand. With keep = 0.95 and 7.5 good answers at
// the start, b failures without an answer leave bad = 20·(1 − 0.95^b) and good
// = 7.5·0.95^b: 2.85 of 9.28 after three.
func TestFailuresAreRemembered(t *testing.T) {
	w := newWard("a", "b")
	w.play("a", "ff")
	s := w.remarked[0]
	assert.InDelta(t, 1.95, s.bad, 1e-9)
	assert.InDelta(t, 7.5*0.9025, s.good, 1e-9)
	w.at = w.at.Add(outcomesHalve - 1)
	s.fade(w.at)
	assert.InDelta(t, 1.95, s.bad, 1e-9)
	w.at = w.at.Add(1)
	s.fade(w.at)
	assert.InDelta(t, 0.975, s.bad, 1e-9)
	w.at = w.at.Add(time.Hour)
	assert.Empty(t, w.Avoid(nil))
	assert.Zero(t, w.known.Load(), "forgotten after an hour")
	assert.Empty(t, w.remarked)
}

func TestAtMostThreeQuartersAreAvoided(t *testing.T) {
	ids := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	w := newWard(ids...)
	for n, id := range ids {
		w.play(id, "fff")
		switch {
		case n < 6:
			assert.Equal(t, ids[:n+1], w.Avoid(nil))
		case n < 7:
			assert.Equal(t, ids[:6], w.Avoid(nil))
		default:
			assert.Equal(t, ids, w.Avoid(nil), "all: the router asks all of them")
		}
	}
	w = newWard(ids...)
	for _, id := range ids[:7] {
		w.play(id, "uuu")
	}
	assert.Equal(t, ids[:7], w.Avoid(nil), "who can't be reached is avoided in any case")
	w = newWard("a", "b")
	w.play("a", "fff")
	assert.Equal(t, []string{"a"}, w.Avoid(nil), "one of two")
}

func TestTrialsAreFurtherAndFurtherApart(t *testing.T) {
	w := newWard("a", "b")
	w.play("a", "fff")
	avoided := func() bool { return slices.Contains(w.Avoid(nil), "a") }
	for _, wait := range []time.Duration{1, 2, 4, 8, 15, 15, 15} {
		wait *= time.Second
		w.at = w.at.Add(wait - 1)
		assert.True(t, avoided(), "before %v", wait)
		w.at = w.at.Add(1)
		assert.False(t, avoided(), "offered to one request after %v", wait)
		assert.True(t, avoided(), "and to that alone")
		w.at = w.at.Add(offerFor)
		assert.False(t, avoided(), "to another if that one went elsewhere")
		v := w.visit("a")
		assert.True(t, v.trial)
		assert.False(t, w.visit("a").trial, "one trial at a time")
		w.Failed(v, false)
	}
	w.at = w.at.Add(maxBackoff)
	v := w.visit("a")
	w.Undecided(v)
	assert.False(t, avoided(), "a trial that says nothing is followed by another at once")
	w.Served(w.visit("a"), true, 0)
	assert.False(t, w.waits("a"))
	assert.Equal(t, 1, w.Unhealthy())

	// It gets a tenth of what the others may get, then more, then its full share.
	shares := []int{}
	for range 16 {
		w.at = w.at.Add(time.Second)
		got := 0
		for range 100 {
			if !avoided() {
				got++
			}
		}
		shares = append(shares, got)
	}
	assert.IsIncreasing(t, shares[:13])
	assert.InDelta(t, 17, shares[0], 1) // 0.1 + 1/15
	assert.InDelta(t, 57, shares[6], 1)
	assert.Equal(t, []int{100, 100}, shares[14:])
	assert.Zero(t, w.Unhealthy())
	w.play("a", "fff")
	w.at = w.at.Add(firstBackoff)
	assert.False(t, avoided(), "the first wait is short again")
}

// A request sent before an endpoint was put out has no effect on it any more.
func TestLateNewsIsNoNews(t *testing.T) {
	w := newWard("a", "b")
	before := w.visit("a")
	w.play("a", "fff")
	w.Served(before, true, 0)
	assert.True(t, w.waits("a"))
	w.at = w.at.Add(firstBackoff)
	w.Served(w.visit("a"), true, 0)
	for range 9 {
		w.Failed(before, false)
	}
	assert.False(t, w.waits("a"))
	w.play("a", "sfff")
	assert.True(t, w.waits("a"))
	w.play("a", "s")
	assert.False(t, w.waits("a"), "sent because nobody else was there, and served")
}

// The patience for a stream's first byte and for a whole response differ, each learned from its
// own kind.
func TestPatienceIsOfAKind(t *testing.T) {
	for _, stream := range []bool{true, false} {
		w := newWard("a")
		for range minSeen {
			w.Served(w.visit("a"), stream, time.Minute)
		}
		assert.Equal(t, 2*time.Minute, w.Patience(stream))
		assert.Zero(t, w.Patience(!stream))
		for range minSeen {
			w.Served(w.visit("a"), !stream, 5*time.Second)
		}
		assert.Equal(t, 10*time.Second, w.Patience(!stream))
		assert.Greater(t, w.Patience(stream), 119*time.Second)
	}
}

// The error shown is that of the latest failure, even if the endpoint is out already, and
// remains once it is healthy.
func TestTheNewestErrorIsTold(t *testing.T) {
	w := newWard("a", "b")
	fails := func(err error) {
		w.Failed(w.visit("a").Because(err), false)
		assert.Equal(t, err, w.Status("a", w.refs["a"]).Err)
	}
	for i := range 5 {
		fails(fmt.Errorf("failure %d", i))
	}
	assert.Equal(t, Out, w.Status("a", w.refs["a"]).State)
	assert.NoError(t, w.Status("b", w.refs["b"]).Err)
	w.at = w.at.Add(maxBackoff)
	w.Served(w.visit("a"), true, 0)
	assert.EqualError(t, w.Status("a", w.refs["a"]).Err, "failure 4")
}

func TestSilence(t *testing.T) {
	w := newWard("a", "b")
	for range minSeen {
		assert.Zero(t, w.Patience(true), "nothing is known")
		w.Served(w.visit("b"), true, time.Second)
	}
	assert.Equal(t, minPatience, w.Patience(true))
	w.Served(w.visit("b"), true, 4*time.Second)
	assert.Equal(t, 8*time.Second, w.Patience(true))
	assert.Zero(t, w.Patience(false), "responses at once are another matter")
	for range 1000 {
		w.Served(w.visit("b"), true, time.Millisecond)
	}
	assert.Equal(t, minPatience, w.Patience(true))

	early := w.visit("a")
	w.Heard(early)
	assert.False(t, w.Stuck(early))
	one, two, three := w.visit("a"), w.visit("a"), w.visit("a")
	assert.True(t, w.Stuck(one))
	w.Overdue(early)
	w.Overdue(one)
	w.Overdue(two)
	assert.False(t, w.waits("a"), "it has sent something since the first was sent")
	w.Avoid(nil)
	assert.EqualValues(t, 1, w.known.Load())
	w.Heard(one)
	w.Avoid(nil)
	assert.Zero(t, w.known.Load(), "nothing to remember")
	w.Overdue(three)
	assert.False(t, w.waits("a"), "and now to another")
	for range 3 {
		w.Overdue(w.visit("a"))
	}
	assert.True(t, w.waits("a"))
	w.Served(w.visit("a"), true, time.Hour)
	assert.Equal(t, minPatience, w.Patience(true), "what was stuck shows nothing")
	w = newWard("a", "b")
	old := w.visit("a")
	for range 3 {
		w.Overdue(w.visit("a"))
	}
	require.True(t, w.waits("a"))
	w.Heard(old)
	assert.False(t, w.IsOut("a"), "any byte brings it back")
	assert.Equal(t, 1, w.Unhealthy(), "by and by")
	next := w.visit("a")
	w.Overdue(next)
	w.Overdue(next)
	assert.False(t, w.IsOut("a"), "what was overdue before does not count")
	w.Heard(old)
	w.play("a", "ffff")
	w.Heard(old)
	assert.True(t, w.waits("a"), "but not one that fails")
}

func TestRefusalsAreCheckedNowAndThen(t *testing.T) {
	w := newWard("a", "b")
	asked := func(n int) (yes int) {
		for range n {
			if w.Refused(w.visit("a")) {
				yes++
			}
		}
		return yes
	}
	assert.Equal(t, 0, asked(1), "the first is the client's")
	assert.Equal(t, opinionBurst, asked(100))
	w.at = w.at.Add(2 * time.Second)
	assert.Equal(t, 2, asked(100))
	w.at = w.at.Add(time.Second)
	w.play("a", "s")
	assert.Equal(t, 0, asked(1), "it has served somebody")
	assert.Equal(t, 1, asked(100))
	w.play("a", "fff")
	w.at = w.at.Add(firstBackoff)
	w.play("a", "")
	assert.True(t, w.Refused(w.visit("a")), "a trial is always checked")
}

// A request at an endpoint that is out, because there is no other, is not a trial and leaves the
// time of the next one unchanged. A refused trial is always retried elsewhere: whose fault it was
// is unknown, and the client that made the trial must not pay for it. No second opinion is spent on
// that.
func TestATrialThatIsRefusedIsNoAnswer(t *testing.T) {
	w := newWard("a", "b")
	w.play("a", "fff")
	for range 3 * opinionBurst {
		w.at = w.at.Add(maxBackoff)
		trial := w.visit("a")
		assert.True(t, w.Refused(trial))
		assert.False(t, w.Refused(w.visit("b")), "its first")
		w.Served(w.visit("b"), true, 0)
	}
	another := w.visit("a")
	asked := 0
	for range 3 * opinionBurst {
		if w.Refused(another) {
			asked++
		}
	}
	assert.Equal(t, opinionBurst, asked, "who goes there because nobody else was left is another matter")
}

func TestOnlyATrialBringsTheNextForward(t *testing.T) {
	w := newWard("a", "b")
	w.play("a", "fff")
	v := w.visit("a")
	require.False(t, v.trial)
	w.Undecided(v)
	w.Full(v)
	w.at = w.at.Add(firstBackoff - 1)
	assert.True(t, w.waits("a"))
	w.at = w.at.Add(1)
	assert.False(t, w.waits("a"))
}

func TestFullIsNotUnhealthy(t *testing.T) {
	w := newWard("a", "b")
	for range 100 {
		w.Full(w.visit("a"))
	}
	assert.Empty(t, w.Out(nil))
	assert.Equal(t, []string{"a"}, w.Avoid(nil))
	w.at = w.at.Add(fullFor)
	assert.Empty(t, w.Avoid(nil))
	assert.Zero(t, w.known.Load())
}

func TestHealthForgetsEndpointsThatAreGone(t *testing.T) {
	w := newWard("a", "b")
	late := w.visit("a")
	w.play("a", "uuu")
	w.refs["a"] = endpick.Ref{Slot: 0, Generation: 2}
	assert.Empty(t, w.Avoid(nil), "another under the same name starts anew")
	assert.Empty(t, w.remarked)
	w.Failed(late, true)
	assert.Empty(t, w.Avoid(nil))
	w.play("a", "uu")
	assert.Empty(t, w.Out(nil))
	w.play("a", "u")
	assert.True(t, w.waits("a"))

	w = newWard()
	for i := range 1000 {
		clear(w.refs)
		w.refs["x"] = endpick.Ref{Slot: uint32(i % 3), Generation: uint32(i/3 + 1)}
		w.play("x", "uuu")
		w.Avoid(nil)
		assert.LessOrEqual(t, len(w.remarked), 1)
	}
}

func TestClockThatIsSetBackKeepsNobodyOut(t *testing.T) {
	w := newWard("a", "b")
	w.at = w.at.Add(time.Hour)
	w.play("a", "fff")
	w.Full(w.visit("b"))
	w.at = w.at.Add(-time.Hour)
	assert.Empty(t, w.Avoid(nil))
	w.play("a", "s")
	w.at = w.at.Add(-time.Hour)
	assert.Empty(t, w.Avoid(nil), "nor does it come back forever")
	w.play("a", "fff")
	assert.True(t, w.waits("a"))
}

// Whatever happens, no endpoint is out without failures of its own, nor for
// longer than the longest wait without a trial, and not all are out for
// failures that requests might have caused.
func TestHealthProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []string{"a", "b", "c", "d"}
		w := newWard(ids...)
		id := rapid.SampledFrom(ids)
		visits := map[string][]Visit{}
		failures := map[string]int{}
		certain, full := false, 0
		visitOf := func(t *rapid.T) (string, Visit) {
			id := id.Draw(t, "id")
			if n := len(visits[id]); n > 0 && rapid.Bool().Draw(t, "old") {
				return id, visits[id][rapid.IntRange(0, n-1).Draw(t, "which")]
			}
			visits[id] = append(visits[id], w.visit(id))
			return id, visits[id][len(visits[id])-1]
		}
		t.Repeat(map[string]func(*rapid.T){
			"failed": func(t *rapid.T) {
				id, v := visitOf(t)
				sure := rapid.IntRange(0, 9).Draw(t, "sure") == 0
				certain = certain || sure
				w.Failed(v, sure)
				failures[id]++
			},
			"overdue":   func(t *rapid.T) { id, v := visitOf(t); w.Overdue(v); failures[id]++ },
			"served":    func(t *rapid.T) { _, v := visitOf(t); w.Served(v, rapid.Bool().Draw(t, "stream"), time.Second) },
			"heard":     func(t *rapid.T) { _, v := visitOf(t); w.Heard(v) },
			"full":      func(t *rapid.T) { _, v := visitOf(t); w.Full(v); full++ },
			"refused":   func(t *rapid.T) { _, v := visitOf(t); w.Refused(v) },
			"undecided": func(t *rapid.T) { _, v := visitOf(t); w.Undecided(v) },
			"avoid":     func(t *rapid.T) { w.Avoid(nil) },
			"wait": func(t *rapid.T) {
				w.at = w.at.Add(time.Duration(rapid.Int64Range(0, int64(maxBackoff)).Draw(t, "for")))
			},
			"": func(t *rapid.T) {
				outs := w.Out(nil)
				for _, id := range outs {
					if failures[id] < 3 {
						t.Fatalf("%s is out after %d failures", id, failures[id])
					}
				}
				if avoided := w.Avoid(nil); !certain && full == 0 && len(avoided) > 3 && len(outs) < len(ids) {
					t.Fatalf("%v are avoided, %v are out", avoided, outs)
				}
				if int(w.known.Load()) != len(w.remarked) || len(w.remarked) > len(ids) {
					t.Fatalf("%d known, %d listed", w.known.Load(), len(w.remarked))
				}
				at := w.at
				w.at = at.Add(maxBackoff)
				if left := w.Out(nil); len(left) > 0 {
					t.Fatalf("%v wait for a trial too long", left)
				}
				w.at = at
			},
		})
	})
}
