package health

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// cluster is a health with a clock and endpoints a, b, c, …
type cluster struct {
	*Health
	at time.Time
}

func newCluster(ids ...string) *cluster {
	c := &cluster{at: time.Unix(1000, 0)}
	c.Health = New(rig.Must(endpick.New(endpick.Config{Clock: func() time.Time { return c.at }})), 2)
	for _, id := range ids {
		c.add(id)
	}
	return c
}

func (c *cluster) add(id string) {
	if err := c.router.Add(endpick.Endpoint{ID: id}); err != nil {
		panic(err)
	}
}

func (c *cluster) remove(id string) {
	if err := c.router.Remove(id); err != nil {
		panic(err)
	}
}

func (c *cluster) ref(id string) endpick.EndpointRef {
	ref, ok := c.router.Ref(id)
	if !ok {
		panic("there is no " + id)
	}
	return ref
}

func (c *cluster) Avoid(dst []string) []string {
	avoid, _ := c.Health.Avoid(dst, nil, false, 0)
	return avoid
}

// What may be reported of an attempt.
func (c *cluster) failed(a Attempt, certainly bool) {
	if certainly {
		a.Ended(NotSent)
	} else {
		a.Ended(Erred)
	}
}

func (c *cluster) served(a Attempt, stream bool, waited time.Duration) {
	a.Waited(stream, waited)
	a.Ended(Served)
}

func (c *cluster) send(id string) Attempt { return c.Sent(id, c.ref(id)) }

// play ends requests at an endpoint: f failed, u unreachable, t the same in time, s served; a point
// waits a second.
func (c *cluster) play(id, outcomes string) {
	for _, o := range outcomes {
		switch o {
		case 'f':
			c.failed(c.send(id), false)
		case 'u':
			c.failed(c.send(id), true)
		case 't':
			c.failed(c.send(id).Because(os.ErrDeadlineExceeded), true)
		case 's':
			c.served(c.send(id), true, time.Millisecond)
		case '.':
			c.at = c.at.Add(time.Second)
		}
	}
}

// waits reports whether the endpoint is out and no trial is due.
func (c *cluster) waits(id string) bool { return slices.Contains(c.Out(nil), id) }

func TestWhatPutsAnEndpointOut(t *testing.T) {
	many := strings.Repeat
	for _, tc := range []struct {
		name, a, b, c string // what happens at each, a last
		out           bool
	}{
		{name: "one failure", a: "f"},
		{name: "two failures", a: "ff"},
		{name: "three failures in a row", a: "fff", out: true},
		{name: "one that could not be reached", a: "u", out: true},
		{name: "one that could not be reached in time", a: "t"},
		{name: "two such", a: "tt"},
		{name: "three such", a: "ttt", out: true},
		{name: "three of six", a: "fsfsfsf", out: true},
		{name: "one of ten", a: many("f"+many("s", 9), 20)},
		{name: "one of five", a: many("fssss", 20)},
		{name: "one of three", a: many("fss", 20), out: true},
		{name: "three, each two minutes apart", a: many("f"+many(".", 120), 3), out: true},
		{name: "each ten minutes apart", a: many("f"+many(".", 600), 10)},
		{name: "all fail alike", a: many("fs", 20), b: many("fs", 20), c: many("fs", 20)},
		{name: "all fail, but one more often", a: "fff", b: "ffs", c: "ffs"},
		{name: "the only other that is not out fails, too", a: "fff", b: "ffs", c: "uuu"},
		{name: "the only other that is not out failed once", a: "fff", b: "fs", c: "uuu", out: true},
		{name: "one other fails now and then", a: "fff", b: many("fssssssss", 6), out: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster("a", "b", "c")
			c.play("b", tc.b)
			c.play("c", tc.c)
			was := false
			for _, o := range tc.a {
				c.play("a", string(o))
				was = was || c.waits("a")
			}
			assert.Equal(t, tc.out, was)
		})
	}
}

// The boundaries, worked out by hand. With keep = 0.95 and 7.5 good answers at
// the start, b failures without an answer leave bad = 20·(1 − 0.95^b) and good
// = 7.5·0.95^b: 2.85 of 9.28 after three.
func TestFailuresAreRemembered(t *testing.T) {
	c := newCluster("a", "b")
	c.play("a", "ff")
	s := c.known[0]
	assert.InDelta(t, 1.95, s.bad, 1e-9)
	assert.InDelta(t, 7.5*0.9025, s.good, 1e-9)
	s.good = 1 // also if most have failed
	c.at = c.at.Add(outcomesHalve - 1)
	s.fade(c.at)
	assert.InDelta(t, 1.95, s.bad, 1e-9)
	c.at = c.at.Add(1)
	s.fade(c.at)
	assert.InDelta(t, 0.975, s.bad, 1e-9)
	c.at = c.at.Add(time.Hour)
	assert.Empty(t, c.Avoid(nil))
	assert.Zero(t, c.listed.Load(), "forgotten after an hour")
	assert.Empty(t, c.known)
}

func TestAtMostThreeQuartersAreAvoided(t *testing.T) {
	ids := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	c := newCluster(ids...)
	for n, id := range ids {
		c.play(id, "fff")
		switch {
		case n < 6:
			assert.Equal(t, ids[:n+1], c.Avoid(nil))
		case n < 7:
			assert.Equal(t, ids[:6], c.Avoid(nil))
		default:
			assert.Equal(t, ids, c.Avoid(nil), "all: the router asks all of them")
		}
	}
	c = newCluster(ids...)
	for _, id := range ids[:7] {
		c.play(id, "uuu")
	}
	assert.Equal(t, ids[:7], c.Avoid(nil), "who can't be reached is avoided in any case")
	c = newCluster("a", "b")
	c.play("a", "fff")
	assert.Equal(t, []string{"a"}, c.Avoid(nil), "one of two")
}

func TestTrialsAreFurtherAndFurtherApart(t *testing.T) {
	c := newCluster("a", "b")
	c.play("a", "fff")
	avoided := func() bool { return slices.Contains(c.Avoid(nil), "a") }
	for _, wait := range []time.Duration{1, 2, 4, 8, 15, 15, 15} {
		wait *= time.Second
		c.at = c.at.Add(wait - 1)
		assert.True(t, avoided(), "before %v", wait)
		c.at = c.at.Add(1)
		assert.False(t, avoided(), "offered to one request after %v", wait)
		assert.True(t, avoided(), "and to that alone")
		c.at = c.at.Add(offerFor)
		again, _ := c.Health.Avoid(nil, nil, true, 0)
		assert.Equal(t, []string{"a"}, again, "nor to one that has failed elsewhere")
		assert.False(t, avoided(), "to another if that one went elsewhere")
		v := c.send("a")
		assert.True(t, v.trial)
		assert.False(t, c.send("a").trial, "one trial at a time")
		c.failed(v, false)
	}
	c.at = c.at.Add(maxBackoff)
	c.send("a").Ended(Undecided)
	assert.False(t, avoided(), "a trial that says nothing is followed by another at once")
	c.served(c.send("a"), true, 0)
	assert.False(t, c.waits("a"))
	assert.Equal(t, 1, c.Unhealthy())

	// It gets a tenth of what the others may get, then more, then its full share.
	shares := []int{}
	for range 16 {
		c.at = c.at.Add(time.Second)
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
	assert.Zero(t, c.Unhealthy())
	c.play("a", "fff")
	c.at = c.at.Add(firstBackoff)
	assert.False(t, avoided(), "the first wait is short again")
}

func TestSilence(t *testing.T) {
	c := newCluster("a", "b")
	for range minSeen {
		assert.Zero(t, c.Patience(true), "nothing is known")
		c.served(c.send("b"), true, time.Second)
	}
	assert.Equal(t, minPatience, c.Patience(true))
	c.served(c.send("b"), true, 4*time.Second)
	c.served(c.send("b"), true, time.Millisecond)
	assert.Equal(t, 8*time.Second*127/128, c.Patience(true), "of the last 128")
	assert.Zero(t, c.Patience(false), "responses at once are another matter")
	for range 1000 {
		c.served(c.send("b"), true, time.Millisecond)
	}
	assert.Equal(t, minPatience, c.Patience(true))

	early := c.send("a")
	early.Heard()
	assert.False(t, early.Stuck())
	one, two, three := c.send("a"), c.send("a"), c.send("a")
	assert.True(t, one.Stuck())
	early.Overdue()
	one.Overdue()
	two.Overdue()
	assert.False(t, c.waits("a"), "it has sent something since the first was sent")
	c.Avoid(nil)
	assert.EqualValues(t, 1, c.listed.Load())
	one.Heard()
	c.Avoid(nil)
	assert.Zero(t, c.listed.Load(), "nothing to remember")
	three.Overdue()
	assert.False(t, c.waits("a"), "and now to another")
	for range 3 {
		c.send("a").Overdue()
	}
	assert.True(t, c.waits("a"))
	c.served(c.send("a"), true, time.Hour)
	assert.Equal(t, minPatience, c.Patience(true), "what was stuck shows nothing")
	c = newCluster("a", "b")
	old := c.send("a")
	for range 3 {
		c.send("a").Overdue()
	}
	require.True(t, c.waits("a"))
	old.Heard()
	assert.False(t, c.IsOut("a"), "any byte brings it back")
	assert.Equal(t, 1, c.Unhealthy(), "by and by")
	next := c.send("a")
	next.Overdue()
	next.Overdue()
	assert.False(t, c.IsOut("a"), "what was overdue before does not count")
	old.Heard()
	c.play("a", "ffff")
	old.Heard()
	assert.True(t, c.waits("a"), "but not one that fails")
}

func TestRefusalsAreCheckedNowAndThen(t *testing.T) {
	c := newCluster("a", "b")
	asked := func(n int) (yes int) {
		for range n {
			if c.send("a").Ended(Refused) {
				yes++
			}
		}
		return yes
	}
	assert.Equal(t, 0, asked(1), "the first is the client's")
	assert.Equal(t, opinionBurst, asked(100))
	c.at = c.at.Add(2 * time.Second)
	assert.Equal(t, 2, asked(100))
	c.at = c.at.Add(time.Second)
	c.play("a", "s")
	assert.Equal(t, 0, asked(1), "it has served somebody")
	assert.Equal(t, 1, asked(100))
	c.play("a", "fff")
	c.at = c.at.Add(firstBackoff)
	assert.True(t, c.send("a").Ended(Refused), "a trial is always checked")
}

func TestOnlyATrialBringsTheNextForward(t *testing.T) {
	c := newCluster("a", "b")
	c.play("a", "fff")
	v := c.send("a")
	require.False(t, v.trial)
	v.Ended(Undecided)
	v.Full(0, 0)
	c.at = c.at.Add(firstBackoff - 1)
	assert.True(t, c.waits("a"))
	c.at = c.at.Add(1)
	assert.False(t, c.waits("a"))
}

func TestHealthForgetsEndpointsThatAreGone(t *testing.T) {
	c := newCluster("a", "b")
	late, ref := c.send("a"), c.ref("a")
	c.play("a", "uuu")
	require.True(t, c.status("a").State.Out())
	c.remove("a")
	assert.Zero(t, c.Unhealthy())
	c.add("a")
	assert.Zero(t, c.Unhealthy())
	assert.False(t, c.IsOut("a"))
	assert.Empty(t, c.Avoid(nil), "another under the same name starts anew")
	assert.Equal(t, Status{Share: 1, Alive: true}, c.Health.Status(ref))
	assert.Empty(t, c.known)
	c.failed(late, true)
	assert.Empty(t, c.Avoid(nil))
	c.play("a", "ff")
	assert.Empty(t, c.Out(nil))
	c.play("a", "f")
	assert.True(t, c.waits("a"))

	c = newCluster()
	for range 1000 {
		c.add("x")
		c.play("x", "uuu")
		c.remove("x")
		c.Avoid(nil)
		assert.LessOrEqual(t, len(c.known), 1)
	}
}

// Whatever an endpoint is out for when the clock is set back by an hour, it is used again after its
// normal time.
func TestClockThatIsSetBackKeepsNobodyOut(t *testing.T) {
	for _, out := range []func(c *cluster){
		func(c *cluster) { c.play("a", "fff") },
		func(c *cluster) { c.play("a", "u") },
		func(c *cluster) { c.silence("a") },
		func(c *cluster) { c.send("a").Full(maxFull, 0) },
		func(c *cluster) { c.check("a", nil); c.check("a", errors.New("bad")); c.check("a", errors.New("bad")) },
	} {
		c := newCluster("a", "b")
		out(c)
		require.Equal(t, []string{"a"}, c.Avoid(nil))
		c.at = c.at.Add(-time.Hour)
		assert.Equal(t, []string{"a"}, c.Avoid(nil))
		c.at = c.at.Add(checksCount) // the longest of them
		assert.Empty(t, c.Avoid(nil))
		c.play("a", "s")
		c.at = c.at.Add(-time.Hour)
		c.Avoid(nil)
		c.at = c.at.Add(rampTime)
		c.Avoid(nil)
		assert.Equal(t, Well, c.state("a"))
	}
}

// Whatever happens, no endpoint is out without failures of its own, nor for
// longer than the longest wait without a trial, and not all are out for
// failures that requests might have caused.
func TestHealthProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []string{"a", "b", "c", "d"}
		c := newCluster(ids...)
		id := rapid.SampledFrom(ids)
		attempts := map[string][]Attempt{}
		failures := map[string]int{}
		certain, full := false, 0
		attemptOf := func(t *rapid.T) (string, Attempt) {
			id := id.Draw(t, "id")
			if n := len(attempts[id]); n > 0 && rapid.Bool().Draw(t, "old") {
				return id, attempts[id][rapid.IntRange(0, n-1).Draw(t, "which")]
			}
			attempts[id] = append(attempts[id], c.send(id))
			return id, attempts[id][len(attempts[id])-1]
		}
		t.Repeat(map[string]func(*rapid.T){
			"failed": func(t *rapid.T) {
				id, v := attemptOf(t)
				sure := rapid.IntRange(0, 9).Draw(t, "sure") == 0
				certain = certain || sure
				c.failed(v, sure)
				if failures[id]++; sure {
					failures[id] += 2 // one is enough
				}
			},
			"overdue":   func(t *rapid.T) { id, v := attemptOf(t); v.Overdue(); failures[id]++ },
			"served":    func(t *rapid.T) { _, v := attemptOf(t); c.served(v, rapid.Bool().Draw(t, "stream"), time.Second) },
			"heard":     func(t *rapid.T) { _, v := attemptOf(t); v.Heard() },
			"full":      func(t *rapid.T) { _, v := attemptOf(t); v.Full(0, 0); full++ },
			"refused":   func(t *rapid.T) { _, v := attemptOf(t); v.Ended(Refused) },
			"undecided": func(t *rapid.T) { _, v := attemptOf(t); v.Ended(Undecided) },
			"avoid":     func(t *rapid.T) { c.Avoid(nil) },
			"wait": func(t *rapid.T) {
				c.at = c.at.Add(time.Duration(rapid.Int64Range(0, int64(maxBackoff)).Draw(t, "for")))
			},
			"": func(t *rapid.T) {
				outs := c.Out(nil)
				for _, id := range outs {
					require.GreaterOrEqual(t, failures[id], 3, id)
				}
				if avoided := c.Avoid(nil); !certain && full == 0 && len(avoided) > 3 && len(outs) < len(ids) {
					t.Fatalf("%v are avoided, %v are out", avoided, outs)
				}
				require.Len(t, c.known, int(c.listed.Load()))
				require.LessOrEqual(t, len(c.known), len(ids))
				for _, id := range outs {
					require.LessOrEqual(t, c.status(id).NextTrial.Sub(c.at), maxBackoff, id)
				}
			},
		})
	})
}

// Nobody is asked for like that before its trial has been due for long, for another model, where requests would
// hang, or again within a second.
func TestOnly(t *testing.T) {
	for name, x := range map[string]struct {
		how   func(c *cluster)
		model string
		want  []string
	}{
		"failing":                {func(c *cluster) {}, "m", []string{"b", "c"}},
		"for its adapter":        {func(c *cluster) {}, "l", []string{"b", "c"}},
		"for any model":          {func(c *cluster) {}, "", []string{"b", "c"}},
		"for a model it lacks":   {func(c *cluster) {}, "n", nil},
		"just due":               {func(c *cluster) { c.at = c.at.Add(-time.Second) }, "m", nil},
		"drained":                {func(c *cluster) { _ = c.router.Drain("a") }, "m", nil},
		"gone":                   {func(c *cluster) { c.remove("a") }, "m", nil},
		"full":                   {func(c *cluster) { c.attempt("a", c.ref("a")).e.fullUntil = c.at.Add(1) }, "m", nil},
		"silent":                 {func(c *cluster) { c.attempt("a", c.ref("a")).e.state.Store(uint32(Silent)) }, "m", nil},
		"it hangs":               {func(c *cluster) { c.attempt("a", c.ref("a")).e.hangs = true }, "m", nil},
		"within the last second": {func(c *cluster) { c.Only("m") }, "m", nil},
		"returning":              {func(c *cluster) { c.attempt("a", c.ref("a")).e.comeBack(c.at) }, "m", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster("b", "c")
			require.NoError(t, c.router.Add(endpick.Endpoint{ID: "a", Models: []string{"m"}, Adapters: []string{"l"}}))
			require.Nil(t, c.Only("m"))
			e := c.attempt("a", c.ref("a")).e
			e.list(c.at)
			e.putOut(Failing, c.at, false)
			c.at = c.at.Add(firstBackoff + neglect)
			x.how(c)
			require.Equal(t, x.want, c.Only(x.model))
		})
	}
}

// A request is sent there after a while although checks pass again and again meanwhile.
func TestOnlyWhileChecksPass(t *testing.T) {
	bad := errors.New("503")
	for name, putOut := range map[string]func(c *cluster){
		"unfit for long": func(c *cluster) {
			c.check("a", nil)
			c.check("a", bad)
			c.check("a", bad)
			c.at = c.at.Add(10 * time.Minute)
			c.check("a", bad)
		},
		"unreachable, with a trial to come": func(c *cluster) { c.failed(c.send("a"), true) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster("a", "b")
			putOut(c)
			require.True(t, c.state("a").Out())
			for range 8 {
				c.check("a", nil)
				require.Nil(t, c.Only("m"))
				c.at = c.at.Add(2 * time.Second)
			}
			require.Equal(t, []string{"b"}, c.Only("m"))
		})
	}
}

// check is a check of an endpoint that fails with err.
func (c *cluster) check(id string, err error) { c.Check(id, c.ref(id), false).Checked(err, true) }

func (c *cluster) status(id string) Status { return c.Health.Status(c.ref(id)) }

func (c *cluster) hanging() []string {
	_, hanging := c.Health.Avoid(nil, nil, false, 0)
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

	// One that has answered a request meanwhile, with a failure, is not well because a check passes.
	c = newCluster("a", "b")
	apart(c, "a", refused)
	apart(c, "a", refused)
	c.send("a").Heard()
	c.check("a", nil)
	assert.Equal(t, Unreachable, c.status("a").State)
	assert.Empty(t, c.Avoid(nil), "a trial")

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

// takeAll is how many retries there are.
func (b *Budget) takeAll(now time.Time) (n int) {
	for b.Retry(now) {
		n++
	}
	return n
}

func TestBudget(t *testing.T) {
	at := time.Unix(1000, 0)
	b := NewBudget(0.2, 0, 2)
	take := func() int { return b.takeAll(at) }
	assert.Equal(t, 2, take(), "full at the start")
	for range 4 {
		b.Request(at)
	}
	assert.Equal(t, 0, take(), "four requests pay 0.8 of a retry")
	b.Request(at)
	b.Request(at)
	assert.Equal(t, 1, take())

	for range 1000 { // at one moment
		b.Request(at)
	}
	assert.Equal(t, 2, take(), "never more than the bucket holds")

	b = NewBudget(0, 10, 2)
	b.Request(at)
	assert.Equal(t, 2, take())
	at = at.Add(-time.Hour)
	assert.Equal(t, 0, take(), "a clock that steps back pays nothing")
	at = at.Add(time.Hour + 150*time.Millisecond)
	assert.Equal(t, 1, take(), "1.5 came back")
	at = at.Add(time.Hour)
	assert.Equal(t, 2, take(), "never more than the bucket holds")
}

// A clock that is set back takes nothing out of the bucket and refills nothing twice.
func TestBudgetWhereTheClockIsSetBack(t *testing.T) {
	start := time.Unix(1000, 0)
	b := NewBudget(0, 1, 10)
	assert.Equal(t, 10, b.takeAll(start))
	assert.Equal(t, 3, b.takeAll(start.Add(3*time.Second)))
	b.Request(start.Add(7 * time.Second)) // four more
	b.Request(start.Add(-time.Hour))
	assert.Equal(t, 4, b.takeAll(start.Add(time.Second)))
	assert.Zero(t, b.takeAll(start.Add(7*time.Second)))
	assert.Equal(t, 2, b.takeAll(start.Add(9*time.Second)))
}

// The table of Health: what becomes of an endpoint in each state, by what happens there. A trial is
// due in all of them.
func TestTheTable(t *testing.T) {
	bad := errors.New("bad")
	unreached := func(c *cluster) { c.Check("a", c.ref("a"), false).Checked(bad, false) }
	begins := map[State]func(c *cluster){
		Well:        func(*cluster) {},
		Returning:   func(c *cluster) { c.play("a", "uuu.s") },
		Failing:     func(c *cluster) { c.play("a", "fff") },
		Silent:      func(c *cluster) { c.silence("a") },
		Unreachable: func(c *cluster) { c.play("a", "uuu") },
		Unfit:       func(c *cluster) { c.check("a", nil); c.check("a", bad); c.check("a", bad) },
		absent:      func(c *cluster) { unreached(c); unreached(c) },
	}
	in := func(w, r, f, s, u, x, a State) map[State]State {
		return map[State]State{Well: w, Returning: r, Failing: f, Silent: s, Unreachable: u, Unfit: x, absent: a}
	}
	for _, tc := range []struct {
		name string
		do   func(c *cluster)
		want map[State]State
	}{
		{"nothing", func(*cluster) {}, in(Well, Returning, Failing, Silent, Unreachable, Unfit, absent)},
		{"a request is served", func(c *cluster) { c.play("a", "s") },
			in(Well, Returning, Returning, Returning, Returning, Returning, Returning)},
		{"requests fail", func(c *cluster) { c.play("a", "fff") },
			in(Failing, Failing, Failing, Silent, Unreachable, Unfit, absent)},
		{"requests reach nobody", func(c *cluster) { c.play("a", "uuu") },
			in(Unreachable, Unreachable, Failing, Silent, Unreachable, Unfit, absent)},
		{"requests wait for long", func(c *cluster) { c.silence("a") },
			in(Silent, Silent, Failing, Silent, Unreachable, Unfit, absent)},
		{"a byte arrives", func(c *cluster) { c.send("a").Heard() },
			in(Well, Returning, Failing, Returning, Unreachable, Unfit, absent)},
		{"there are no files left here", func(c *cluster) {
			for _, err := range []error{os.NewSyscallError("socket", syscall.EMFILE), &net.DNSError{Err: "dial udp: socket: " + syscall.EMFILE.Error()}} {
				err = &net.OpError{Op: "dial", Err: err}
				for range 3 {
					c.send("a").Because(err).Ended(NotSent)
					c.Check("a", c.ref("a"), false).Checked(err, false)
				}
			}
		}, in(Well, Returning, Failing, Silent, Unreachable, Unfit, absent)},
		{"it is full", func(c *cluster) { c.send("a").Full(0, 0) },
			in(Well, Returning, Failing, Silent, Unreachable, Unfit, absent)},
		{"it refuses", func(c *cluster) { c.send("a").Ended(Refused); c.send("a").Ended(Refused) },
			in(Well, Returning, Failing, Silent, Unreachable, Unfit, absent)},
		{"a check passes", func(c *cluster) { c.check("a", nil) },
			in(Well, Returning, Failing, Silent, Unreachable, Unfit, Well)},
		{"checks fail", func(c *cluster) { c.check("a", bad); c.check("a", bad) },
			in(Well, Returning, Failing, Silent, Unreachable, Unfit, absent)},
		{"checks pass, and then fail", func(c *cluster) { c.check("a", nil); c.check("a", bad); c.check("a", bad) },
			in(Unfit, Unfit, Failing, Silent, Unreachable, Unfit, Unfit)},
		{"checks find no connection", func(c *cluster) { unreached(c); unreached(c) },
			in(absent, absent, Failing, Silent, Unreachable, Unfit, absent)},
		{"checks are late while it may be busy", func(c *cluster) {
			c.check("a", nil)
			c.send("a")
			c.at = c.at.Add(minPatience)
			for range maxOverdue {
				c.check("a", os.ErrDeadlineExceeded)
			}
		}, in(Silent, Silent, Failing, Silent, Unreachable, Unfit, Silent)},
		{"other gateways report failures", func(c *cluster) { c.Elsewhere("a", 3, 0) },
			in(Failing, Failing, Failing, Silent, Unreachable, Unfit, absent)},
		{"the time of returning passes", func(c *cluster) { c.at = c.at.Add(rampTime*9/10 - firstBackoff); c.Avoid(nil) },
			in(Well, Well, Failing, Silent, Unreachable, Unfit, absent)},
	} {
		for from, begin := range begins {
			c := newCluster("a", "b", "c")
			begin(c)
			c.at = c.at.Add(firstBackoff)
			require.Equal(t, from, c.state("a"))
			tc.do(c)
			assert.Equal(t, tc.want[from], c.state("a"), "%s: from %d", tc.name, from)
			share := 1.0
			switch s := c.state("a"); {
			case s.Out():
				share = 0
			case s == Returning:
				share = c.status("a").Share
				assert.True(t, share >= rampFrom && share < 1)
			}
			assert.Equal(t, share, c.status("a").Share)
		}
	}
}

// state is the state of an endpoint, as a row of the table.
func (c *cluster) state(id string) State {
	if at := c.of.Find(c.ref(id)); at != nil && *at != nil {
		return (*at).current()
	}
	return Well
}
