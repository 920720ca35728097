package health

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
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

// In any run, retries are at most the bucket, the share of the requests, and
// the refill of the time that passed.
func TestBudgetBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(1000, 0)
		from := at
		b := NewBudget(0.2, 5, 10)
		requests, retries := 0, 0
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			at = at.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "retry") {
				if b.Retry(at) {
					retries++
				}
			} else {
				b.Request(at)
				requests++
			}
		}
		most := 10 + 0.2*float64(requests) + 5*at.Sub(from).Seconds()
		if float64(retries) > most+1e-6 {
			t.Fatalf("%d retries, at most %v", retries, most)
		}
	})
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
		{"it is full", func(c *cluster) { c.send("a").Full(0) },
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
