// Ways plays a list of exchanges with model servers, from a chat to an upgrade, directly
// and through everything that contains endpick: httputil.ReverseProxy, Caddy, and an
// endpoint picker in both modes. It prints what differs from the direct exchange.
//
//	simulate ways              a table, in half a minute
//	simulate ways -v           each difference as well
//	simulate ways -run abort   scenarios with this in their names
//
// It exits with 0 if all differences are documented, and no exchange leaves a lease or a
// goroutine behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/endpick/endpick/internal/lab/conformance/adapters"
	"github.com/endpick/endpick/internal/lab/suite"
)

func main() {
	name := flag.String("run", "", "only scenarios with this `text` in their names")
	verbose := flag.Bool("v", false, "print each difference")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *name, *verbose, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "ways:", err)
		os.Exit(1)
	}
}

// ways returns those that are compared.
func ways() []suite.Way {
	const endless = "an Envoy that buffers a body waits for its end, which an upgraded connection does not have: " +
		"set the body modes of such routes to `NONE`"
	return []suite.Way{
		suite.ReverseProxy(),
		{
			Name: "Caddy", About: "`reverse_proxy` with `transport endpick`",
			Open: func(servers []string) (*suite.Front, error) {
				return adapters.OpenCaddy(suite.Router(servers).Endpoints)
			},
		},
		{
			Name: "picker", About: "the endpoint picker, `FULL_DUPLEX_STREAMED`",
			Open: func(servers []string) (*suite.Front, error) { return adapters.OpenPicker(suite.Router(servers), false) },
		},
		{
			Name: "picker, buffered", About: "the endpoint picker, `BUFFERED`", Buffers: true,
			Without: map[string]string{"upgrade": endless, "upgrade, refused": endless},
			Open:    func(servers []string) (*suite.Front, error) { return adapters.OpenPicker(suite.Router(servers), true) },
		},
	}
}

func run(ctx context.Context, name string, verbose bool, out, progress io.Writer) error {
	scenarios := slices.DeleteFunc(suite.Scenarios(), func(s suite.Scenario) bool { return !strings.Contains(s.Name, name) })
	if len(scenarios) == 0 {
		return errors.New("no scenario has this in its name")
	}
	r, err := suite.Compare(ctx, ways(), scenarios, progress)
	if err != nil {
		return err
	}
	if name != "" {
		r.Unused = nil // in these scenarios
	}
	fmt.Fprint(out, r.Markdown())
	if verbose {
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
