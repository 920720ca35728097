package health

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
