// Command simulate is the laboratory of endpick. By itself it compares routing policies
// on simulated fleets of model servers: the papers' scenarios or a recorded trace, any
// number of policies, rates and seeds, as a table or as JSON.
//
//	simulate -workload B -policies round-robin,load-prefix,lmetric -rate 4,8,12
//	simulate -trace conversation.jsonl.gz -policies vllm,lmetric
//
// Its verbs:
//
//	simulate tournament   every policy on many workloads, at several loads
//	simulate oracle       how far policies are from a router that knows the future
//	simulate calibrate    a profile from a recording of a real server
//	simulate evaluate     how good latency predictions are, on recorded requests
//	simulate against      endpick's gateway beside other routers, over real HTTP
//	simulate soak         real HTTP through all adapters while everything fails
//	simulate ways         what differs on the wire behind each adapter
//
// See simulate -h, and the same of each verb: simulate tournament -h. The last two run
// real servers, and are built when they are asked for, which takes minutes the first time.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// verb is a command of its own. It gets the arguments after its name.
type verb func(args []string, stdout, stderr io.Writer) error

func verbs() map[string]verb {
	return map[string]verb{
		"against": against, "calibrate": calibrate, "oracle": runOracle, "tournament": playTournament, "evaluate": evaluate,
		"soak": built("soak"), "ways": built("ways"),
	}
}

func verbNames() string { return strings.Join(slices.Sorted(maps.Keys(verbs())), ", ") }

// run is the program: it returns 0 for success, or 2 for a mistake in the command
// or its input, which a line on stderr names. A verb that is a program of its own has its
// own status.
func run(args []string, stdout, stderr io.Writer) int {
	do := compare
	if len(args) > 0 {
		if v, ok := verbs()[args[0]]; ok {
			do, args = v, args[1:]
		}
	}
	err := do(args, stdout, stderr)
	var status exitStatus
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &status):
		return int(status)
	}
	fmt.Fprintln(stderr, "simulate:", strings.ReplaceAll(err.Error(), "\n", " "))
	return 2
}

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
