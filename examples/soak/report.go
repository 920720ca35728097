package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
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
	had           [moods]int64
	errs          []error // violations
}

// small is how much a heap may grow anyway: pools, and tables that are not full after a
// short time.
const small = 4 << 20

// judge collects the violations.
func (r *report) judge(w *world) {
	r.ways, r.direct = w.ways, w.direct
	for m := range w.had {
		r.had[m] = w.had[m].Load()
	}
	for _, one := range r.ways {
		r.stats = append(r.stats, one.router.Stats())
		if err := account(one.router); err != nil {
			r.errs = append(r.errs, fmt.Errorf("%s: %w", one.name, err))
		}
	}
	for _, one := range append(r.ways[:len(r.ways):len(r.ways)], r.direct) {
		t := &one.tally
		if n := t.fates[lost].Load() + t.fates[puzzled].Load(); n > 0 {
			r.errs = append(r.errs, fmt.Errorf("%s: %d requests were lost or are not whole", one.name, n))
		}
		for _, what := range t.wrong {
			r.errs = append(r.errs, fmt.Errorf("%s", what))
		}
	}
	r.judgeHeld()
}

func (r *report) judgeHeld() {
	if r.after.heap > r.before.heap+max(r.before.heap/10, small) {
		r.errs = append(r.errs, fmt.Errorf("the heap has grown from %s to %s", megabytes(r.before.heap), megabytes(r.after.heap)))
	}
	if r.after.goroutines > r.before.goroutines {
		r.errs = append(r.errs, fmt.Errorf("there were %d goroutines, and are %d", r.before.goroutines, r.after.goroutines))
	}
}

func megabytes(b uint64) string { return fmt.Sprintf("%.1f MB", float64(b)/1e6) }

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
		for f := range t.fates {
			requests += t.fates[f].Load()
		}
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
	fmt.Fprint(w, " streams at a time | decision, p50 / p99 / p99.9 | there and back | leases |\n|---|---|")
	for range fateNames {
		fmt.Fprint(w, "---|")
	}
	fmt.Fprintln(w, "---|---|---|---|")
	for i, one := range append(r.ways[:len(r.ways):len(r.ways)], r.direct) {
		t := &one.tally
		var all int64
		for f := range t.fates {
			all += t.fates[f].Load()
		}
		fmt.Fprintf(w, "| %s | %.0f |", one.name, float64(all)/r.took.Seconds())
		for f := range t.fates {
			fmt.Fprintf(w, " %d |", t.fates[f].Load())
		}
		opened := "–"
		if i < len(r.stats) {
			opened = fmt.Sprint(r.stats[i].Routed)
		}
		fmt.Fprintf(w, " %d | %v | %v | %s |\n", t.most.Load(), &t.decision, &t.path, opened)
	}
	fmt.Fprint(w, "\n| what a server did | attempts |\n|---|---|\n")
	for m, n := range r.had {
		fmt.Fprintf(w, "| %s | %d |\n", about[m].name, n)
	}
	fmt.Fprint(w, "\n| requests that failed at each attempt | how many |\n|---|---|\n")
	causes := map[string]int{}
	for _, one := range r.ways {
		for cause, n := range one.tally.causes {
			causes[cause] += n
		}
	}
	names := slices.SortedFunc(maps.Keys(causes), func(a, b string) int { return cmp.Or(causes[b]-causes[a], cmp.Compare(a, b)) })
	rest := 0
	for i, cause := range names {
		if i < 12 {
			fmt.Fprintf(w, "| %s | %d |\n", cause, causes[cause])
		} else {
			rest += causes[cause]
		}
	}
	fmt.Fprintf(w, "| in %d other ways | %d |\n\n", max(len(names)-12, 0), rest)
}
