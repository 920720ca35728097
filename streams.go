package endpick

import "sync/atomic"

// streams notices a host that sets Request.Stream and never says that a token has arrived: its
// prompts all seem to be in prefill until their responses end, and nobody learns how long the
// first token takes.
type streams struct {
	told   atomic.Bool  // a token has been reported
	untold atomic.Int32 // streams that have completed before that
}

// mostUntold is how many streams complete before the host is told. Where tokens are reported,
// none does, unless the very first responses are empty.
const mostUntold = 16

// tell records that a token has been reported.
func (s *streams) tell() {
	if !s.told.Load() {
		s.told.Store(true)
	}
}

// untell records a stream that has completed without a token. It is true once, when there have
// been too many and none with a token.
func (s *streams) untell() bool {
	return !s.told.Load() && s.untold.Load() < mostUntold && s.untold.Add(1) == mostUntold
}
