// Package mutants asks of the tests whether they would notice a fault.
//
// A mutant is one of the faults of testdata, such as a careful reader of a change
// fears: a copy that was forgotten, a generation that is not compared, a limit that
// does not apply. Each changes what the program does, and is applied alone.
//
//	ENDPICK_MUTANTS=all go test ./internal/mutants -run TestMutants -v -timeout 2h
//
// runs the test that has killed the mutant before, then those of the mutant's package,
// and then those of the packages that stand on it, the nearest first, until one fails.
// A mutant that no test notices fails. With -update, the test that has killed a mutant
// is written down beside it, which saves the next run hours.
// ENDPICK_MUTANTS=1 asks the mutant's own package alone, 2 the nearest one as well,
// and so on. -run TestMutants/prefix takes the mutants of package prefix, and
// -parallel says how many are looked at together.
//
// Without the variable it is only checked that each mutant can still be applied:
// that its old text stands in its package, once. Whoever changes that text changes the
// mutant with it, or writes another one; a few that are left behind are told of and
// no failure until TestMutants runs.
//
// # Files
//
// A file of testdata has mutants of some packages, one after the other:
//
//	prefix: each vote of a tenant weighs as much as the first
//	<<<
//	return 1 / float32(a.votes)
//	===
//	return 1
//	>>>
//
// The old and the new text are whole lines. A line "killed by: …" below the first has
// the directory of a package and a test of it. A line "survives: …" says instead why no
// test can see the difference; such a mutant is kept for those who would write it again.
package mutants
