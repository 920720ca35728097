package rig

import "testing"

// SkipUnderRace skips a test for which the race detector is too slow, or makes it fail.
func SkipUnderRace(t testing.TB, why string) {
	if Race {
		t.Skip(why)
	}
}
