package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
	"github.com/endpick/endpick/scorer/preset/all"
)

// options is the command line of a comparison.
type options struct {
	experiment sim.Experiment // without Scenario, Rate and RateScale
	mixed      []part         // fleet with several profiles; nil: one profile
	policies   []string
	sweeps     []sweep // one for each workload
	seeds      []uint64
	format     string
	plot       string // file for a chart

	// Of simulate oracle.
	limit time.Duration
	moves int
}

// sweep is the rates of one workload.
type sweep struct {
	scenario string    // empty for a trace
	rates    []float64 // Experiment.Rate, or RateScale
	scaled   bool      // rates are values of RateScale
	loads    []string  // names of the rates; nil: none
}

// overview reports whether there are several workloads, or named loads, which go into
// a single table.
func (o *options) overview() bool {
	return o.format == "overview" || len(o.sweeps) > 1 || o.sweeps[0].loads != nil
}

const compareUsage = `simulate [flags]: compare policies on workloads, with several rates and seeds

Each (policy, rate, seed) is a run of the same router as in production over modelled
servers. The same command gives the same JSON bytes.`

func readOptions(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet(compareUsage+"\n\nOther verbs, each with a -h of its own: "+verbNames(), flag.ContinueOnError)
	x := &o.experiment
	trace := flags.String("trace", "", "replay this `file`: mooncake, azure, vllm or recorder format, .gz or not")
	workloads := listOf(readScenario)
	flags.Var(workloads, "workload", "generate these comma-separated `scenarios`, each by itself: "+strings.Join(sim.ScenarioNames(), ", "))
	loads := listOf(oneOf("load", "low", "middle", "high"))
	flags.Var(loads, "load", "comma-separated `loads` instead of rates: low, middle, high, of each scenario")
	policies := listOf(readPolicy, "round-robin", "lmetric", "marginal-delay")
	flags.Var(policies, "policies", "comma-separated `names`, with parameters such as linear:0.5, and after them conditions: "+conditionsUsage+"; "+all.Usage())
	flags.IntVar(&x.Servers, "endpoints", 0, "`number` of model servers (default: the scenario's, 8 for a trace)")
	profile := flags.String("profile", "", "`name` of the servers' profile, a .json file of calibrate, or a mixed fleet as name:servers,name:servers (default: the scenario's, "+engine.DefaultProfile+" for a trace): "+strings.Join(engine.ProfileNames(), ", "))
	flags.IntVar(&x.Engine.Blocks, "kv-blocks", 0, "`blocks` of 16 tokens in each server's KV cache (default 32000)")
	rate := listOf(positive)
	flags.Var(rate, "rate", "comma-separated `rates` of Poisson arrivals, in requests per second (default: the scenario's middle)")
	scale := listOf(positive)
	flags.Var(scale, "rate-scale", "comma-separated `factors` by which a trace, or a scenario's own arrivals, is sped up")
	flags.IntVar(&x.Requests, "requests", 0, "end after this many `requests` (default: 5000, or the whole trace)")
	flags.DurationVar(&x.Duration, "duration", 0, "end at this simulated `time`, instead of -requests")
	seeds := listOf(readSeed, uint64(1))
	flags.Var(seeds, "seed", "comma-separated `seeds`")
	slo := flags.String("slo", "", "comma-separated `classes`, each name:share:ttft_ms:tpot_ms, like tight:0.3:200:40,loose:0.7:2000:100; target 0: none")
	flags.StringVar(&o.format, "format", "table", "table, overview (fewer columns, policies below each other; the default for several workloads), or json")
	flags.StringVar(&o.plot, "plot", "", "`file` for a chart of TTFT and prefix hits over the rate, in SVG")

	flags.DurationVar(&o.limit, "time", 2*time.Minute, "oracle: `time` of the search")
	flags.IntVar(&o.moves, "moves", 0, "oracle: `number` of moves of the search, instead of its time")

	given, err := parse(flags, args, stderr)
	if err != nil {
		return nil, err
	}
	if err := o.check(flags, given, len(workloads.values), *trace); err != nil {
		return nil, err
	}
	o.policies, o.seeds = policies.values, seeds.values
	if *slo != "" {
		if x.Classes, err = readClasses(*slo); err != nil {
			return nil, fmt.Errorf("-slo: %v", err)
		}
	}
	if *profile != "" {
		parts, err := readFleet(*profile)
		if err != nil {
			return nil, fmt.Errorf("-profile: %v", err)
		}
		if parts[0].servers == 0 {
			x.Engine.Profile = parts[0].profile
		} else if o.mixed = parts; given["endpoints"] {
			return nil, fmt.Errorf("-endpoints and the numbers of servers in -profile can't both be given")
		}
	}
	if *trace != "" {
		if x.Trace, err = sim.OpenTrace(*trace); err != nil {
			return nil, err
		}
		o.sweeps = []sweep{{rates: recordedRate(scale.values), scaled: true}}
	}
	for _, name := range workloads.values {
		s, err := newSweep(name, loads.values, rate.values, scale.values)
		if err != nil {
			return nil, err
		}
		o.sweeps = append(o.sweeps, s)
	}
	return o, nil
}

// check refuses flags that contradict each other, or are too small.
func (o *options) check(flags *flag.FlagSet, given map[string]bool, workloads int, trace string) error {
	x := &o.experiment
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("what is %q? There are flags, and the verbs %s", flags.Arg(0), verbNames())
	case (workloads == 0) == (trace == ""):
		return fmt.Errorf("one of -workload and -trace is needed, and not both (workloads: %s)", strings.Join(sim.ScenarioNames(), ", "))
	case given["rate"] && given["rate-scale"]:
		return fmt.Errorf("-rate and -rate-scale can't both be given")
	case given["rate"] && trace != "":
		return fmt.Errorf("-rate is for -workload: a trace has its own times, use -rate-scale")
	case given["load"] && (given["rate"] || given["rate-scale"] || trace != ""):
		return fmt.Errorf("-load is for -workload, without -rate and -rate-scale")
	case workloads > 1 && (given["rate"] || given["rate-scale"]):
		return fmt.Errorf("-rate and -rate-scale are for one workload: several have their own rates, use -load")
	case given["requests"] && given["duration"]:
		return fmt.Errorf("-requests and -duration can't both be given")
	case o.plot != "" && workloads > 1:
		return fmt.Errorf("-plot is for one workload")
	case !slices.Contains([]string{"table", "overview", "json"}, o.format):
		return fmt.Errorf("-format %q is unknown (known: table, overview, json)", o.format)
	}
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"endpoints", x.Servers < 1}, {"requests", x.Requests < 1}, {"duration", x.Duration <= 0},
		{"kv-blocks", x.Engine.Blocks < 1}, {"time", o.limit <= 0}, {"moves", o.moves < 1},
	} {
		if given[f.name] && f.bad {
			return fmt.Errorf("-%s %s is too small", f.name, flags.Lookup(f.name).Value)
		}
	}
	return nil
}

// newSweep uses the given rates, or those of the scenario.
func newSweep(scenario string, loads []string, rates, scales []float64) (sweep, error) {
	n, err := sim.Scenario(scenario)
	if err != nil {
		return sweep{}, err
	}
	s := sweep{scenario: scenario, loads: loads, rates: rates}
	own := n.Workload.HasArrivals()
	switch {
	case len(scales) > 0 && !own:
		return s, fmt.Errorf("-rate-scale: scenario %s has no arrivals of its own to scale, use -rate", scenario)
	case len(loads) > 0:
		s.scaled = own
		for _, name := range loads {
			s.rates = append(s.rates, map[string]float64{"low": n.Loads.Low, "middle": n.Loads.Middle, "high": n.Loads.High}[name])
		}
	case len(rates) > 0:
	case own:
		s.rates, s.scaled = recordedRate(scales), true
	default:
		s.rates = []float64{n.Loads.Middle}
	}
	return s, nil
}

// recordedRate is the default of the rate factors.
func recordedRate(scales []float64) []float64 {
	if len(scales) == 0 {
		return []float64{1}
	}
	return scales
}

// defaultRequests ends a workload that has no end of its own.
const defaultRequests = 5000

func readScenario(s string) (string, error) {
	_, err := sim.Scenario(s)
	return s, err
}

func positive(s string) (float64, error) {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !(x > 0) || math.IsInf(x, 1) {
		return 0, fmt.Errorf("%q is not a number above 0", s)
	}
	return x, nil
}

func readSeed(s string) (uint64, error) {
	x, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number of at least 0", s)
	}
	return x, nil
}
