// Command simulate judges routing policies on simulated fleets of model servers:
// the papers' scenarios or a recorded trace, any number of policies, rates and
// seeds, as a table, as JSON or as an HTML page.
//
//	simulate -workload B -policies round-robin,load-prefix,lmetric -rate 4,8,12
//	simulate -trace conversation.jsonl.gz -policies vllm,lmetric -format html -out report.html
//	simulate capacity
//	simulate calibrate recording.csv.gz
//	simulate tournament -quick
//	simulate oracle -contests C-qwe
//	simulate agents
//
// See simulate -h, and the same of each verb: simulate tournament -h.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program: it returns 0 for success, or 2 for a mistake in the command
// or its input, which a line on stderr names.
func run(args []string, stdout, stderr io.Writer) int {
	verb := compare
	if len(args) > 0 {
		switch args[0] {
		case "capacity":
			verb, args = capacity, args[1:]
		case "calibrate":
			verb, args = calibrate, args[1:]
		case "tournament":
			verb, args = playTournament, args[1:]
		case "agents":
			verb, args = describeAgents, args[1:]
		case "oracle":
			verb, args = playOracle, args[1:]
		}
	}
	err := verb(args, stdout, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "simulate:", strings.ReplaceAll(err.Error(), "\n", " "))
		return 2
	}
	return 0
}

// usageError is a mistake in the command line.
type usageError struct{ reason string }

func (e *usageError) Error() string { return e.reason }

func usage(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// parse parses flags, printing nothing except requested help. It returns the
// names of the flags that were given.
func parse(flags *flag.FlagSet, args []string, stderr io.Writer) (map[string]bool, error) {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(stderr)
		fmt.Fprintf(stderr, "%s\n\nFlags:\n", flags.Name())
		flags.PrintDefaults()
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return given, err
}
