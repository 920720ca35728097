package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
)

const calibrateUsage = `simulate calibrate [flags] FILE: fit a profile to a recording of a real server

FILE has the requests of one server with the times of their first and last tokens, as
a gateway records them (transport.Config.Record) or as LLMServingSim recorded vLLM. The profile that
comes closest is printed, or written with -out for simulate -profile, and how well
simulated latencies agree with the recorded ones.`

// calibration is the JSON output of the verb.
type calibration struct {
	Profile  engine.Profile `json:"profile"`
	KVBlocks int            `json:"kv_blocks"`
	Fitted   int            `json:"fitted_requests"`
	Judged   int            `json:"judged_requests"`
	Before   sim.Fidelity   `json:"before"` // with the initial profile
	After    sim.Fidelity   `json:"after"`
}

func calibrate(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet(calibrateUsage, flag.ContinueOnError)
	start := flags.String("profile", engine.DefaultProfile, "`name` or .json file of the profile to begin with; its peaks bound the fit")
	endpoint := flags.String("endpoint", "", "`id` of the server to fit, where the recording has several")
	ranks := flags.Int("ranks", 1, "`number` of data-parallel ranks of the server")
	sequences := flags.Int("max-sequences", 256, "`sequences` that a rank runs together")
	batched := flags.Int("max-batched-tokens", 2048, "`tokens` in a step of a rank")
	blocks := flags.Int("kv-blocks", engine.DefaultBlocks, "`blocks` of 16 tokens in the KV cache of a rank")
	fitBlocks := flags.Bool("fit-kv", false, "fit -kv-blocks too, for a server that was short of them")
	first := flags.Bool("first-half", false, "fit to the first half of the requests")
	second := flags.Bool("judge-second", false, "judge by the second half, which the fit has not seen; with -first-half")
	format := flags.String("format", "table", "table or json")
	path := flags.String("out", "", "write the profile to this `file`")
	if _, err := parse(flags, args, stderr); err != nil {
		return err
	}
	switch {
	case flags.NArg() != 1:
		return fmt.Errorf("calibrate needs one FILE, after its flags")
	case *second && !*first:
		return fmt.Errorf("-judge-second needs -first-half: the fit would have seen what it is judged by")
	case *format != "table" && *format != "json":
		return fmt.Errorf("-format %q is unknown (known: table, json)", *format)
	}
	profile, err := readProfile(*start)
	if err != nil {
		return fmt.Errorf("-profile: %v", err)
	}
	file := flags.Arg(0)
	trace, err := sim.OpenTrace(file)
	if err != nil {
		return err
	}
	records, err := recordsOf(trace, *endpoint)
	if err != nil {
		return err
	}
	profile.Name, _, _ = strings.Cut(trace.Name, ".")
	c, err := fit(records, *first, *second, *fitBlocks, sim.Deployment{
		Ranks:  *ranks,
		Engine: engine.Config{Profile: profile, MaxSequences: *sequences, MaxBatchedTokens: *batched, Blocks: *blocks},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if *path != "" {
		var b bytes.Buffer
		if err := errors.Join(indented(&b, c.Profile), os.WriteFile(*path, b.Bytes(), 0o666)); err != nil {
			return err
		}
	}
	if *format == "json" {
		return indented(stdout, c)
	}
	return c.write(stdout)
}

// recordsOf returns the records of one server.
func recordsOf(trace *sim.Trace, endpoint string) ([]sim.Record, error) {
	ids := map[string]bool{}
	var own []sim.Record
	for _, r := range trace.Records {
		ids[r.Endpoint] = true
		if endpoint == "" || r.Endpoint == endpoint {
			own = append(own, r)
		}
	}
	known := strings.Join(slices.Sorted(maps.Keys(ids)), ", ")
	switch {
	case endpoint == "" && len(ids) > 1:
		return nil, fmt.Errorf("%s has several servers, name one with -endpoint (known: %s)", trace.Name, known)
	case len(own) == 0:
		return nil, fmt.Errorf("-endpoint %q is not in %s (known: %s)", endpoint, trace.Name, known)
	}
	return own, nil
}

func fit(records []sim.Record, first, second, fitBlocks bool, start sim.Deployment) (*calibration, error) {
	known, from := len(records), 0
	if first {
		known = (len(records) + 1) / 2
	}
	if second {
		from = known
	}
	fitted, err := sim.Fit(records, known, start, fitBlocks)
	if err != nil {
		return nil, err
	}
	c := &calibration{
		Profile: fitted.Engine.Profile, KVBlocks: fitted.Engine.Blocks,
		Fitted: known, Judged: len(records) - from,
	}
	for _, s := range []struct {
		with sim.Deployment
		to   *sim.Fidelity
	}{{start, &c.Before}, {fitted, &c.After}} {
		replayed, err := sim.Replay(records, s.with)
		if err != nil {
			return nil, err
		}
		if *s.to, err = sim.Assess(records[from:], replayed[from:]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// write prints the calibration as text.
func (c *calibration) write(w io.Writer) error {
	p := &c.Profile
	fmt.Fprintf(w, "Profile %s, fitted to %d requests: step %.0f µs, weights %.0f µs, token %.1f µs, sequence %.1f µs, context %.1f ns, pair %.2f ns; %d KV blocks.\n\n",
		p.Name, c.Fitted, p.StepMicros, p.WeightMicros, p.TokenMicros, p.SequenceMicros, p.ContextNanos, p.PairNanos, c.KVBlocks)
	fmt.Fprintf(w, "Judged by %d requests:\n\n", c.Judged)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tMAPE\terror of mean\terror of p90\tPearson r\t")
	write := func(name string, a sim.Agreement) {
		if a != (sim.Agreement{}) { // else nothing streamed
			fmt.Fprintf(t, "%s\t%.1f %%\t%.1f %%\t%.1f %%\t%.3f\t\n", name, 100*a.MAPE, 100*a.MeanError, 100*a.P90Error, a.Pearson)
		}
	}
	for i, f := range [...]sim.Fidelity{c.Before, c.After} {
		when := [...]string{" before", " fitted"}[i]
		write("TTFT"+when, f.TTFT)
		write("ITL"+when, f.ITL)
		write("E2E"+when, f.E2E)
	}
	return t.Flush()
}

func indented(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
