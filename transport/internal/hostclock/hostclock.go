// Package hostclock guards the clocks that hosts put into a Config.
package hostclock

import "time"

// Guard returns a host's clock that does not panic, or time.Now for nil. A panic would
// end the process wherever a timer or a goroutine of ours asks for the time; time.Now is
// asked instead, after told, which may be nil, has heard what the clock panicked with.
func Guard(host func() time.Time, told func(v any)) func() time.Time {
	if host == nil {
		return time.Now
	}
	return func() (now time.Time) {
		defer func() {
			if v := recover(); v != nil {
				if told != nil {
					told(v)
				}
				now = time.Now()
			}
		}()
		return host()
	}
}
