package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"strings"
)

const evaluateUsage = `simulate evaluate [flags]: how well latencies are predicted, on recorded requests

The file is read in the order of arrival: the predictor trains on what has been labelled
by then, refits every 1,000 rows and predicts the next 1,000. The first 1,000 only train.`

func evaluate(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet(evaluateUsage, flag.ContinueOnError)
	path := flags.String("csv", "", "the CSV `file` of finished requests, with the columns in samples.go, gzip or not (default: 4,500 synthetic ones)")
	format := flags.String("format", "table", "table or json")
	forget := flags.String("forget", "", "the `regime` whose first 2,000 rows show what has been forgotten")
	delay := flags.Bool("delay", false, "labels become known at the first token and at the end of the response, not at once")
	if _, err := parse(flags, args, stderr); err != nil {
		return err
	}
	switch {
	case *format != "table" && *format != "json":
		return fmt.Errorf("-format is %q, want table or json", *format)
	case flags.NArg() > 0:
		return fmt.Errorf("%q is one argument too many", flags.Arg(0))
	}
	samples, err := readSamples(*path)
	if err != nil {
		return err
	}
	report, err := assess(samples, *forget, *delay)
	if err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(*path, "the samples"), err)
	}
	if *format == "json" {
		return indented(stdout, report)
	}
	_, err = io.WriteString(stdout, accuracyTable(report))
	return err
}

func accuracyTable(r *accuracyReport) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	const row = "%-20s %9.2f%% %7.2f%% %9.2f%% %7.2f%%"
	line("%-20s %10s %8s %10s %8s", "", "TTFT MAPE", "p90", "TPOT MAPE", "p90")
	for _, name := range r.Order {
		of := r.Regimes[name]
		line(row, name, of.TTFT.MAPE, of.TTFT.P90, of.TPOT.MAPE, of.TPOT.P90)
	}
	line(row, fmt.Sprintf("all %d rows", r.TTFT.Rows), r.TTFT.MAPE, r.TTFT.P90, r.TPOT.MAPE, r.TPOT.P90)
	line(row, "  standard error", r.TTFT.MAPEError, r.TTFT.P90Error, r.TPOT.MAPEError, r.TPOT.P90Error)
	if f := r.Forgetting; f != nil {
		line("forgetting: MAPE %.2f%% TTFT, %.2f%% TPOT", f.TTFT, f.TPOT)
	}
	c := r.Coverage
	line("90%% upper bounds hold for %.1f%% TTFT, %.1f%% TPOT; in the worst regime seen before %.1f%%, in its worst 1,000 rows %.1f%%",
		c.TTFT, c.TPOT, c.WorstRegime, c.WorstBlock)
	return b.String()
}
