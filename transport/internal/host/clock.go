package host

import "time"

// Clock returns a host's clock that does not panic, or time.Now for nil. A panic would end
// the process wherever a timer or a goroutine of ours asks for the time; time.Now is asked
// instead, after panicked, which may be nil, has been called with the panic's value.
func Clock(own func() time.Time, panicked func(v any)) func() time.Time {
	if own == nil {
		return time.Now
	}
	return func() (now time.Time) {
		defer func() {
			if v := recover(); v != nil {
				if panicked != nil {
					panicked(v)
				}
				now = time.Now()
			}
		}()
		return own()
	}
}
