package health

import (
	"errors"
	"fmt"
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
		avoid, hanging := c.Health.Avoid(nil, nil, false, 0)
		assert.Equal(t, []string{"a", "b", "c"}, avoid, "d is well")
		assert.Empty(t, hanging)
		c.at = c.status("a").NextTrial.Add(-1)
		assert.True(t, c.status("a").Alive)
	}
	c.play("d", "uuu")
	for range 5 {
		avoid, hanging := c.Health.Avoid(nil, nil, false, 0)
		assert.Equal(t, []string{"b", "c", "d"}, avoid)
		assert.Empty(t, hanging)
		require.False(t, c.send("a").trial)
	}
	c.send("a").Full(0, 0)
	assert.Len(t, c.Avoid(nil), 4)
}

// Requests that were waiting before the endpoint was put out say nothing of it once it is back.
func TestOverdueSinceBefore(t *testing.T) {
	c := newCluster("a", "b")
	waiting := []Attempt{c.send("a"), c.send("a"), c.send("a")}
	c.play("a", "uuu.s")
	for _, v := range waiting {
		v.Overdue()
		c.failed(v, false)
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
		"full of others' work":       {func(c *cluster) { v := c.send("a"); v.Heard(); v.Full(0, 0) }, false, Silent},
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
		c.served(c.send("b"), true, 30*time.Second)
	}
	assert.Equal(t, 30*time.Second, c.usual())
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
		for range minSeen { // but no whole response does, and one was under way
			c.served(c.send("b"), false, time.Second)
		}
		assert.Equal(t, minPatience, c.usual())
	}
	c.failed(c.send("b"), true)
	assert.False(t, c.Answers(c.ref("b")), "nor does one that is out")

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
	c.check("a", nil)
	c.send("a") // a trial
	assert.Empty(t, c.hanging())
}

// How long a full endpoint is avoided: for as long as it says, or a moment.
func TestHowLongFullIsAvoided(t *testing.T) {
	for said, want := range map[time.Duration]time.Duration{0: fullFor, time.Second: time.Second, time.Hour: maxFull} {
		c := newCluster("a", "b")
		c.send("a").Full(0, 0)
		c.send("a").Full(said, 0)
		c.send("a").Full(0, 0)
		c.at = c.at.Add(want - 1)
		assert.Equal(t, []string{"a"}, c.Avoid(nil))
		assert.Equal(t, Status{Share: 1, Alive: true, Full: true}, c.status("a"))
		c.at = c.at.Add(1)
		assert.Empty(t, c.Avoid(nil))
	}
}

// What one client has asked too much is about that client, unless the endpoint then says so to all.
func TestFullForOneClient(t *testing.T) {
	c := newCluster("a", "b")
	for key, avoided := range []int{0, 0, 1, 0} {
		c.send("a").Full(time.Second, 2)
		avoid, _ := c.Health.Avoid(nil, nil, false, uint64(key))
		assert.Len(t, avoid, avoided, "%d", key)
	}
	c.send("a").Full(0, 0)
	assert.Equal(t, []string{"a"}, c.Avoid(nil))
}

// A recovering endpoint that is full is spared, whatever its share.
func TestReturningAndFull(t *testing.T) {
	c := newCluster("a", "b")
	c.play("a", "uuu.s")
	c.at = c.at.Add(12 * time.Second)
	c.send("a").Full(0, 0)
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
		"full":      func(c *cluster, v Attempt) { v.Full(0, 0) },
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
	trial.Ended(Served)
	c.send("a").Because(os.ErrClosed).Ended(Broken)
	assert.True(t, c.IsOut("a"), "it was served before")
	assert.Equal(t, os.ErrClosed, c.status("a").Err)
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
	assert.False(t, c.status("a").Alive)
	c.at = c.status("a").NextTrial
	c.play("a", "s")
	for _, want := range []float64{rampFrom, 0.5 + rampFrom, 1} {
		assert.InDelta(t, want, c.status("a").Share, 1e-9)
		assert.Equal(t, want == 1, c.status("a").State == Well)
		c.at = c.at.Add(rampTime / 2)
	}
}

func TestElsewhere(t *testing.T) {
	for _, x := range []struct {
		name string
		do   func(c *cluster)
		out  []string
	}{
		{"three failures", func(c *cluster) { c.Elsewhere("a", 3, 0) }, []string{"a"}},
		{"in three parts", func(c *cluster) { c.Elsewhere("a", 1, 0); c.Elsewhere("a", 1, 0); c.Elsewhere("a", 1, 0) }, []string{"a"}},
		{"two", func(c *cluster) { c.Elsewhere("a", 2, 5) }, nil},
		{"none, or fewer", func(c *cluster) { c.Elsewhere("a", 0, 0); c.Elsewhere("a", -5, 0) }, nil},
		{"few among many", func(c *cluster) { c.Elsewhere("a", 3, 9) }, nil},
		{"somebody who is not here", func(c *cluster) { c.Elsewhere("z", 9, 0) }, nil},
		{"it serves us", func(c *cluster) {
			c.Elsewhere("a", 2, 0)
			c.send("a").Heard()
			c.Elsewhere("a", 1, 0)
		}, nil},
		{"it served us before", func(c *cluster) {
			c.send("a").Heard()
			c.Elsewhere("a", 2, 0)
			c.Elsewhere("a", 1, 0)
		}, []string{"a"}},
		{"long ago", func(c *cluster) {
			c.Elsewhere("a", 2, 0)
			c.at = c.at.Add(time.Minute)
			c.Elsewhere("a", 2, 0)
		}, nil},
		{"half of the endpoints", func(c *cluster) { c.Elsewhere("a", 2, 0); c.Elsewhere("b", 3, 0) }, []string{"b"}},
		{"more than half of them", func(c *cluster) {
			c.Elsewhere("a", 2, 0)
			c.Elsewhere("b", 2, 0)
			c.Elsewhere("c", 3, 0)
		}, nil},
		{"all of them, one after the other", func(c *cluster) {
			for _, id := range []string{"a", "b", "c", "d"} {
				c.Elsewhere(id, 20, 0)
			}
		}, []string{"a", "b"}},
		{"as many failed as served", func(c *cluster) { c.Elsewhere("a", 3, 3) }, []string{"a"}},
		{"although requests go on", func(c *cluster) {
			c.Elsewhere("a", 2, 0)
			c.Avoid(nil)
			c.Elsewhere("b", 2, 0)
			c.Avoid(nil)
			c.Elsewhere("c", 3, 0)
		}, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newCluster("a", "b", "c", "d")
			x.do(c)
			assert.Equal(t, x.out, c.Out(nil))
			c.at = c.at.Add(firstBackoff)
			assert.Empty(t, c.Out(nil), "a trial is due")
		})
	}
	c := newCluster("a")
	c.Elsewhere("a", 9, 0)
	assert.Empty(t, c.Out(nil), "there is nobody else")
	c.add("b")
	assert.True(t, c.Answers(c.ref("b")), "nothing is known of it")
	c.at = c.at.Add(time.Second)
	c.Elsewhere("a", 9, 0)
	assert.Equal(t, []string{"a"}, c.Out(nil))
}

func TestTell(t *testing.T) {
	c := newCluster("a", "b")
	var reported []string
	c.Tell(func(id string, failed bool) {
		if failed {
			id += " failed"
		}
		reported = append(reported, id)
	})
	c.served(c.send("a"), true, 0)
	assert.Empty(t, reported, "all is well")
	c.failed(c.send("a"), false)
	c.served(c.send("a"), true, 0)
	c.served(c.send("b"), true, 0)
	assert.Equal(t, []string{"a failed", "a"}, reported)
	c.failed(c.send("a"), false)
	c.failed(c.send("a"), false)
	c.failed(c.send("a"), false)
	c.failed(c.send("a"), false)
	assert.Equal(t, []string{"a"}, c.Out(nil))
	assert.Len(t, reported, 4, "what is known already is not told")
	other := 0
	c.Tell(func(string, bool) { other++ })
	c.failed(c.send("b"), false)
	c.Tell(nil)
	c.failed(c.send("b"), false)
	assert.Equal(t, 1, other)
	assert.Len(t, reported, 4, "another is told")
}

// A refusal for lack of a model counts once another endpoint has served it: then the endpoint is avoided
// for that model, for a while, and its refusals are not believed.
func TestWhoLacksAModel(t *testing.T) {
	c := newCluster("a", "b")
	refuse := func(model string, served bool) (ask bool) {
		a := c.send("a").Lacking(Lack{Model: model})
		ask = a.Ended(Refused)
		var s Suspects
		s.Add(a, Refused)
		if served {
			s.Served()
		}
		return ask
	}
	for range opinionBurst {
		assert.True(t, refuse("m", false), "even the first, of which there may be many")
	}
	assert.False(t, refuse("m", false), "but not all")
	assert.Empty(t, c.AvoidFor(nil, "m", ""))
	refuse("m", true)
	assert.Equal(t, []string{"x", "a"}, c.AvoidFor([]string{"x"}, "m", ""))
	assert.Empty(t, c.AvoidFor(nil, "n", ""))
	for range 10 {
		assert.True(t, refuse("m", true), "it is known to be wrong")
		assert.False(t, refuse("n", false))
	}
	assert.False(t, c.send("b").Lacking(Lack{Model: "m"}).knownToLack())
	assert.Zero(t, c.Unhealthy())
	assert.Len(t, c.lacks, 1)
	c.at = c.at.Add(lacksFor - 1)
	assert.Equal(t, []string{"a"}, c.AvoidFor(nil, "m", ""))
	c.at = c.at.Add(1)
	assert.Empty(t, c.AvoidFor(nil, "m", ""))
	assert.True(t, refuse("m", false))

	for i := range maxLacks {
		refuse(fmt.Sprint(i), true)
		if i == maxLacks/2 {
			refuse("m", true) // so that others are older
		}
	}
	assert.Len(t, c.lacks, maxLacks)
	assert.Equal(t, []string{"a"}, c.AvoidFor(nil, "m", ""))
	assert.Empty(t, c.AvoidFor(nil, "0", ""), "the oldest has given way")
	assert.Equal(t, []string{"a"}, c.AvoidFor(nil, "1", ""))
	c.lacks = nil
	for _, l := range []Lack{{"m", "/v1/messages"}, {}} {
		s := Suspects{{c.send("a").Lacking(l), Refused}}
		s.Served()
	}
	assert.Equal(t, []string{"a"}, c.AvoidFor(nil, "m", "/v1/messages"))
	assert.Empty(t, c.AvoidFor(nil, "m", "/v1/responses"))
	assert.Empty(t, c.AvoidFor(nil, "n", "/v1/messages"), "names are clients' to invent")
	assert.Empty(t, c.AvoidFor(nil, "", ""))
	s := Suspects{{c.send("b").Lacking(Lack{"m", "/v1/messages"}), Refused}}
	s.Served()
	assert.Equal(t, []string{"a", "b"}, c.AvoidFor(nil, "m", "/v1/messages"))
	c.remove("a")
	c.add("a")
	assert.Equal(t, []string{"b"}, c.AvoidFor(nil, "m", "/v1/messages"), "it may be another one")
}
