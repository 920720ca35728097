// Evaluate measures how well the latency predictor does on recorded requests.
//
//	go run ./examples/evaluate -csv latency_samples.csv.gz -forget saturation
//
// It reads the file in the order of arrival: it trains on what has been labelled by then, refits
// every 1,000 rows and predicts the next 1,000. The first 1,000 rows are only for training.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "evaluate:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("evaluate", flag.ContinueOnError)
	path := flags.String("csv", "", "the `file` of finished requests, gzip or not")
	format := flags.String("format", "table", "table or json")
	forget := flags.String("forget", "", "the `regime` whose first 2,000 rows show what has been forgotten")
	delay := flags.Bool("delay", false, "labels become known at the first token and at the end of the response, not at once")
	measure := flags.Bool("timing", false, "also measure how long fitting and predicting take")
	plot := flags.String("plot", "", "draw predicted against actual latencies into this `file` (.png, .svg or .pdf)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *path == "":
		return errors.New("-csv is missing")
	case *format != "table" && *format != "json":
		return fmt.Errorf("-format is %q, want table or json", *format)
	case flags.NArg() > 0:
		return fmt.Errorf("%q is one argument too many", flags.Arg(0))
	}
	samples, err := readSamples(*path)
	if err != nil {
		return err
	}
	if len(samples) <= blockRows {
		return fmt.Errorf("%s: %d rows are too few, the first %d only train", *path, len(samples), blockRows)
	}
	report, targets, err := evaluate(samples, *forget, *delay)
	if err != nil {
		return err
	}
	if _, ok := report.Regimes[*forget]; *forget != "" && !ok {
		return fmt.Errorf("%s: no row has the regime %q", *path, *forget)
	}
	if *measure {
		t, ns, err := timing(samples)
		if err != nil {
			return err
		}
		report.Timing, report.NsPerRow = t, &ns
	}
	if *plot != "" {
		if err := plotFile(*plot, samples, targets); err != nil {
			return err
		}
	}
	if *format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(report)
	}
	return report.table(out)
}

func (r *Report) table(out io.Writer) error {
	var err error
	line := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(out, format+"\n", args...)
		}
	}
	line("%-20s %10s %8s %10s %8s", "", "TTFT MAPE", "p90", "TPOT MAPE", "p90")
	row := func(name string, ttft, tpot Accuracy) {
		line("%-20s %9.2f%% %7.2f%% %9.2f%% %7.2f%%", name, ttft.MAPE, ttft.P90, tpot.MAPE, tpot.P90)
	}
	for _, name := range r.order {
		row(name, r.Regimes[name].TTFT, r.Regimes[name].TPOT)
	}
	row(fmt.Sprintf("all %d rows", r.TTFT.Rows), r.TTFT, r.TPOT)
	line("%-20s %9.2f%% %7.2f%% %9.2f%% %7.2f%%", "  standard error", r.TTFT.MAPEError, r.TTFT.P90Error, r.TPOT.MAPEError, r.TPOT.P90Error)
	if f := r.Forgetting; f != nil {
		line("forgetting: MAPE %.2f%% TTFT, %.2f%% TPOT", f.TTFT, f.TPOT)
	}
	c := r.Coverage
	line("90%% upper bounds hold for %.1f%% TTFT, %.1f%% TPOT; in the worst regime seen before %.1f%%, in its worst 1,000 rows %.1f%%",
		c.TTFT, c.TPOT, c.WorstRegime, c.WorstBlock)
	if r.Timing != nil {
		line("fit: %.0f ms for 10,000 rows, %.0f ms for 50,000; predict: %.0f ns a row and model in batches of %d",
			r.Timing.Rows10k, r.Timing.Rows50k, *r.NsPerRow, timingBatch)
	}
	return err
}
