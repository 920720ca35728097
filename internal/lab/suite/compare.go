package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Result is the result of a scenario on a way.
type Result struct {
	Way, Scenario string
	Meant         []string     // names of meanings that explain differences
	Differences   []Difference // all
	Unexplained   []Difference // those without an explanation
	Err           error        // it could not be played, or left something behind
}

// Report has the results of all scenarios on all ways.
type Report struct {
	Ways      []Way
	Scenarios []Scenario
	Results   []Result // by scenario, then by way
	// Left is what a way left behind after all scenarios.
	Left []error
	// Unused are meanings without a difference: the documentation is wrong.
	Unused []string
}

// Compare plays the scenarios directly and on each way, one way after the other, so
// that goroutines can be counted. It calls progress for each way.
func Compare(ctx context.Context, ways []Way, scenarios []Scenario, progress io.Writer) (*Report, error) {
	r := &Report{Ways: ways, Scenarios: scenarios, Results: make([]Result, len(scenarios)*len(ways))}
	direct := Direct()
	expected := make([]expectation, len(scenarios))
	for i, s := range scenarios {
		if err := expected[i].play(ctx, direct, s); err != nil {
			return nil, fmt.Errorf("suite: %s, directly: %w", s.Name, err)
		}
	}
	used := map[string]bool{}
	for k, w := range ways {
		fmt.Fprintf(progress, "%s\n", w.Name)
		// What a way starts once per process is not counted.
		if _, err := Play(ctx, w, scenarios[0]); err != nil {
			return nil, fmt.Errorf("suite: %s: %w", w.Name, err)
		}
		before := goroutines()
		for i, s := range scenarios {
			one := r.result(ctx, w, s, &expected[i])
			for _, name := range one.Meant {
				used[name] = true
			}
			r.Results[i*len(ways)+k] = one
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := goroutinesBack(w.patience(), before); err != nil {
			r.Left = append(r.Left, fmt.Errorf("%s: %w", w.Name, err))
		}
	}
	for _, m := range Meant() {
		concerned := m.Ways == nil || slices.ContainsFunc(ways, func(w Way) bool { return slices.Contains(m.Ways, w.Name) })
		if concerned && !used[m.Name] {
			r.Unused = append(r.Unused, m.Name)
		}
	}
	return r, nil
}

// expectation is the direct result of a scenario.
type expectation struct {
	first *Transcript
	last  *Transcript // as if the last reply had come first, which is what a retry should get
}

func (e *expectation) play(ctx context.Context, direct Way, s Scenario) (err error) {
	if e.first, err = Play(ctx, direct, s); err != nil {
		return err
	}
	if e.first.Late != nil {
		return fmt.Errorf("waited in vain: %s", strings.Join(e.first.Late, "; "))
	}
	s.Replies = s.Replies[len(s.Replies)-1:]
	e.last, err = Play(ctx, direct, s)
	return err
}

func (r *Report) result(ctx context.Context, w Way, s Scenario, expected *expectation) Result {
	one := Result{Way: w.Name, Scenario: s.Name}
	t, err := Play(ctx, w, s)
	if err != nil {
		one.Err = err
		return one
	}
	against := expected.first
	if len(t.Attempts) > 1 && len(s.Replies) > 1 {
		against = expected.last
	}
	one.Differences = t.Differences(against)
	meant := Meant()
	for _, d := range one.Differences {
		found := false
		for _, m := range meant {
			if m.covers(w.Name, s.Name) && m.explains(d) {
				found = true
				if !slices.Contains(one.Meant, m.Name) {
					one.Meant = append(one.Meant, m.Name)
				}
			}
		}
		if !found {
			one.Unexplained = append(one.Unexplained, d)
		}
	}
	return one
}

// Err returns everything that is wrong; nil: all differences are documented, nothing
// is left, and no documentation is out of date.
func (r *Report) Err() error {
	errs := slices.Clone(r.Left)
	for _, one := range r.Results {
		if one.Err != nil {
			errs = append(errs, fmt.Errorf("%s, %s: %w", one.Way, one.Scenario, one.Err))
		}
		for _, d := range one.Unexplained {
			errs = append(errs, fmt.Errorf("%s, %s: %s", one.Way, one.Scenario, d))
		}
	}
	for _, name := range r.Unused {
		errs = append(errs, fmt.Errorf("nothing differs in the way that %q documents", name))
	}
	return errors.Join(errs...)
}
