package endpick

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The router's time, in seconds since its epoch, as the host's clock goes on, and back.
func TestTimeNeverGoesBack(t *testing.T) {
	epoch := time.Unix(1_000_000, 0)
	c := newClock(func() time.Time { return epoch })
	for _, x := range []struct{ host, want float64 }{
		{0, 0}, {5, 5}, {4.5, 5}, {5, 5}, {6, 6},
		{5.001, 6}, {6.5, 6.5}, // behind by less than a second: it waits
		{5.5, 6.5}, {6, 7}, {5.9, 7}, {8, 9}, // set back by one second
		{-3600, 9}, {-3599, 10}, // by an hour
		{7200, 10_809}, {7201, 10_810}, // and ahead by three
		{7201, 10_810}, {-1e300, 10_810}, {-1e300, 10_810}, // beyond all measure
	} {
		host := epoch.Add(time.Duration(min(max(x.host, -1e10), 1e10) * 1e9))
		if x.host < -1e10 {
			host = time.Time{}.AddDate(-10_000, 0, 0)
		}
		assert.Equal(t, x.want, c.at(host).Sub(epoch).Seconds(), "at %v", x.host)
	}
}

// However many read the clock at once, none of them sees time go back, and one that is set back is
// noticed once.
func TestTimeNeverGoesBackConcurrently(t *testing.T) {
	epoch := time.Unix(0, 0)
	c := newClock(func() time.Time { return epoch })
	c.at(epoch.Add(time.Hour))
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			last := epoch
			for n := range 10_000 {
				at := c.at(epoch.Add(time.Duration(n*4 + i)))
				assert.False(t, at.Before(last))
				last = at
			}
		})
	}
	readers.Wait()
	assert.WithinRange(t, c.at(epoch.Add(40_000)), epoch.Add(time.Hour), epoch.Add(time.Hour+40_000))
}
