// Package scorertest checks that a scorer, or a whole policy, keeps what the
// router promises. A host application calls it from the tests of its own
// scorers:
//
//	func TestMyScorer(t *testing.T) {
//		scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return MyScorer{} })
//	}
//
// [Run] holds for every scorer, [RunWeighted] also for those that are combined
// by weight, and [RunPolicy] drives real routers with the whole policy. The
// checks are properties over random input by pgregory.net/rapid, whose flags
// apply (-rapid.checks, -rapid.seed). [Candidates] and [Requests] generate
// input for properties of your own.
//
// [Compare] judges policies: it runs them side by side on a simulated fleet, on
// a recording of your own or a scenario from the papers, and returns what came
// of it.
package scorertest
