// Package mutants checks that the tests would notice a fault.
//
// A mutant is one of the faults in testdata, such as a careful reviewer fears: a
// forgotten copy, a generation that is not compared, a limit that does not apply. Each
// changes the program's behaviour, and is applied alone.
//
//	ENDPICK_MUTANTS=all go test ./internal/mutants -run TestMutants -v -timeout 2h
//
// runs the test that has killed the mutant before, then those of the mutant's package,
// and then those of the packages that depend on it, the nearest first, until one fails.
// A mutant that no test notices fails. With -update, the test that has killed a mutant
// is written down with it, which saves the next run hours. ENDPICK_MUTANTS=1 only tries
// the mutant's own package, 2 the nearest one as well, and so on. -run
// TestMutants/prefix takes the mutants of package prefix, and -parallel says how many
// are tried at once.
//
// Without the variable, the test only checks that each mutant can still be applied: its
// old text must be in its package, once. If you change that text, change the mutant with
// it, or write another one; a few outdated ones are reported without failing until
// TestMutants runs.
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
// test can see the difference; such a mutant is kept so that nobody writes it again.
package mutants
