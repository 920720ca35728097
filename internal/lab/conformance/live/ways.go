package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/endpick/endpick/internal/lab/suite"
)

// waysOptions are the flags of ways.
type waysOptions struct {
	name    string
	verbose bool
}

func waysFlags(f *flag.FlagSet) verb {
	o := &waysOptions{}
	f.StringVar(&o.name, "run", "", "only scenarios with this `text` in their names")
	f.BoolVar(&o.verbose, "v", false, "print each difference")
	return o
}

func (*waysOptions) check() error { return nil }

// comparedWays are those of which docs/clients.md tells.
func comparedWays() []suite.Way {
	return []suite.Way{
		suite.ReverseProxy(),
		{
			Name: "Caddy",
			Open: func(servers []string) (*suite.Front, error) {
				return openCaddy(suite.Router(servers).Endpoints)
			},
		},
	}
}

func (o *waysOptions) run(ctx context.Context, out, progress io.Writer) error {
	scenarios := slices.DeleteFunc(suite.Scenarios(), func(s suite.Scenario) bool { return !strings.Contains(s.Name, o.name) })
	if len(scenarios) == 0 {
		return errors.New("no scenario has this in its name")
	}
	r, err := suite.Compare(ctx, comparedWays(), scenarios, progress)
	if err != nil {
		return err
	}
	if o.name != "" {
		r.Unused = nil // in these scenarios
	}
	fmt.Fprint(out, r.Markdown())
	if o.verbose {
		fmt.Fprintln(out)
		for _, one := range r.Results {
			for _, d := range one.Differences {
				fmt.Fprintf(out, "%s, %s: %s\n", one.Scenario, one.Way, d)
			}
		}
	}
	if err := r.Err(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nok: %d scenarios, directly and on %d ways; all that differs is documented, nothing is left\n", len(scenarios), len(r.Ways))
	return err
}
