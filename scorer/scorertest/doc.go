// Package scorertest checks that stages, and whole policies, keep what the router
// promises. Call it from your own tests:
//
//	func TestMyScorer(t *testing.T) {
//		scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return MyScorer{} })
//	}
//
// What is checked, by what is written:
//
//	a scorer           Run; RunWeighted, if it is combined by weight
//	a filter           RunFilter
//	a picker           RunPicker
//	a matcher          RunMatcher
//	a predictor        RunPredictor
//	an admitter        RunAdmitter
//	an observer        RunObserver
//	a policy           RunPolicy, which drives real routers with it
//
// Those for a single method take the labels that a stage reads, so that some servers have them:
//
//	scorertest.RunWeighted(t, newCheap, map[string]string{"price": "low"})
//
// A stage that is two of these, such as a matcher that observes, is given to both. One that
// wraps another, and keeps it from hearing of requests, fails.
// Package transport/transporttest does the same for a host: what a program with a
// connection of its own does with leases.
//
// The checks are properties over random input by pgregory.net/rapid, whose flags
// apply (-rapid.checks, -rapid.seed). A kit ends with the first that fails, which is made
// small; the message says what is wrong and with which input:
//
//	Filter keeps [server-0] of candidates in this order and [server-1] in the
//	order [server-1 server-0]: it must not depend on the order of candidates
//	The smallest case:
//	  request: 0 tokens
//	  server-0: W 0, R 0, K 0, no report
//	  server-1: W 0, R 0, K 0, no report
//
// What several goroutines may do to a stage is seen if the tests run with -race.
//
// [Requests] and [Candidates] generate input for properties of your own, and become
// small in them, without labels. A rule for whole policies, such
// as "this tenant never reaches that server", is a property over a router: route and
// close Requests in the actions of rapid's T.Repeat. Set Config.Seed and Config.Clock, or
// rapid can't repeat what has failed.
//
// [Compare] judges policies: it runs them side by side on a simulated fleet, on
// a recording of your own or a scenario from the papers, and returns what came
// of it.
package scorertest
