package main

import (
	"fmt"
	"io"
	"time"

	"github.com/endpick/endpick"
)

// report is the result.
type report struct {
	leases        int
	leasesTook    time.Duration
	took          time.Duration
	before, after held
	ways          []*way
	direct        *way
	stats         []endpick.Stats // of the ways
	did           [faults]int64
	errs          []error // violations
}

// small is how much a heap may grow anyway: pools, and tables that are not full after a
// short time.
const small = 4 << 20

func (r *report) broken(err error) { r.errs = append(r.errs, err) }

// examine collects the violations.
func (r *report) examine(w *setup) {
	r.ways, r.direct = w.ways, w.direct
	for f := range w.did {
		r.did[f] = w.did[f].Load()
	}
	for _, one := range r.ways {
		r.stats = append(r.stats, one.router.Stats())
		if err := account(one.router); err != nil {
			r.broken(fmt.Errorf("%s: %w", one.name, err))
		}
	}
	for _, one := range append(r.ways[:len(r.ways):len(r.ways)], r.direct) {
		t := &one.tally
		if n := t.fates[lost].Load() + t.fates[puzzled].Load(); n > 0 {
			r.broken(fmt.Errorf("%s: %d requests were lost or are not whole", one.name, n))
		}
		for _, what := range t.wrong {
			r.broken(fmt.Errorf("%s", what))
		}
	}
	r.examineHeld()
}

func (r *report) examineHeld() {
	if r.after.heap > r.before.heap+max(r.before.heap/10, small) {
		r.broken(fmt.Errorf("the heap has grown from %s to %s", megabytes(r.before.heap), megabytes(r.after.heap)))
	}
	if r.after.goroutines > r.before.goroutines {
		r.broken(fmt.Errorf("there were %d goroutines, and are %d", r.before.goroutines, r.after.goroutines))
	}
}

func megabytes(b int64) string { return fmt.Sprintf("%.1f MB", float64(b)/1e6) }

func (r *report) write(w io.Writer) {
	if len(r.ways) > 0 {
		r.tables(w)
	}
	verdict := "ok"
	if len(r.errs) > 0 {
		verdict = fmt.Sprintf("BROKEN, %d promises", len(r.errs))
	}
	var requests, hopeless, gone, streams int64
	for _, one := range r.ways {
		t := &one.tally
		requests += t.requests()
		hopeless += t.fates[failed].Load()
		gone += t.fates[lost].Load()
		streams += t.most.Load()
	}
	fmt.Fprintf(w, "%s: %d leases in %v in the process; %d requests on %d ways in %v, %d lost, %d failed at each attempt, up to %d streams at a time; heap %s, then %s; goroutines %d, then %d\n",
		verdict, r.leases, r.leasesTook.Round(100*time.Millisecond), requests, len(r.ways), r.took.Round(time.Second), gone, hopeless, streams,
		megabytes(r.before.heap), megabytes(r.after.heap), r.before.goroutines, r.after.goroutines)
}

func (r *report) tables(w io.Writer) {
	fmt.Fprint(w, "| way | requests a second |")
	for _, name := range fateNames {
		fmt.Fprintf(w, " %s |", name)
	}
	fmt.Fprint(w, " streams at a time | leases |\n|---|---|")
	for range fateNames {
		fmt.Fprint(w, "---|")
	}
	fmt.Fprintln(w, "---|---|")
	for i, one := range append(r.ways[:len(r.ways):len(r.ways)], r.direct) {
		t := &one.tally
		fmt.Fprintf(w, "| %s | %.0f |", one.name, float64(t.requests())/r.took.Seconds())
		for f := range t.fates {
			fmt.Fprintf(w, " %d |", t.fates[f].Load())
		}
		opened := "–"
		if i < len(r.stats) {
			opened = fmt.Sprint(r.stats[i].Routed)
		}
		fmt.Fprintf(w, " %d | %s |\n", t.most.Load(), opened)
	}
	fmt.Fprint(w, "\n| what a server did | attempts |\n|---|---|\n")
	for f, n := range r.did {
		fmt.Fprintf(w, "| %s | %d |\n", about[f].name, n)
	}
	fmt.Fprintln(w)
}
