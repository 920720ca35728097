package scorertest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
)

// Workload is a workload, and the fleet of simulated servers that serves it.
// Set Recording or Scenario; everything else is optional.
type Workload struct {
	// Recording is a file of requests to replay: of package transport (Config.Record),
	// of the Mooncake traces (JSON lines) or of the Azure traces (CSV); gzipped or not.
	Recording string
	// Scenario generates a workload: "A", "B", "C", "D", "sharegpt" or "production" of the
	// predicted-latency paper, or another one; the error for an unknown name lists them.
	Scenario string

	// Rate is a scenario's mean arrivals per second, Poisson; all but
	// "production" need one.
	Rate float64
	// RateScale makes a recording arrive this many times as fast. Zero: as
	// recorded.
	RateScale float64
	// Requests ends the run after this many. Zero: the whole recording, or
	// for a scenario 5,000 requests or its own end.
	Requests int

	// Endpoints is the number of servers. Zero: the scenario's own, 8 for a recording.
	Endpoints int
	// Describe describes a server to the router, by its number from 0; only Labels and
	// Variant are used. It is called before the run. Nil: servers have no labels, and the
	// Profile as Variant.
	Describe func(server int) endpick.Endpoint
	// Profile is the step time of a server by name, such as "llama-3.1-8b-h100", the
	// default for a recording; the error for an unknown name lists those there are.
	Profile string
	// ReportInterval is the time between two load reports. Zero: every decision
	// sees the current load.
	ReportInterval time.Duration
	// Seed seeds all random choices: the same seed gives the same reports.
	Seed uint64
}

// defaultRequests is the length of a scenario without an end of its own.
const defaultRequests = 5000

// Report is the result of a workload under one policy. Latencies are in
// milliseconds. It depends only on the workload, its seed and the policy.
type Report struct {
	Policy string // its name

	Requests  int // requests that arrived; all have ended
	Completed int
	Rejected  int // by an Admitter, or longer than any server's KV cache

	TTFT Latency // arrival to first token
	TPOT Latency // per output token after the first
	E2E  Latency // arrival to last token

	Throughput     float64 // requests completed per second
	OutputTPS      float64 // output tokens per second
	PrefixHitRatio float64 // share of prompt tokens found in a server's cache
	Preemptions    int64
	// Jain is the fairness over tenants, by output tokens: 1 is even, 1/n if one of n
	// gets everything.
	Jain float64
	// Imbalance is the standard deviation between servers of the time spent on
	// prefill, as a share of the mean, over windows of 10 s (LMetric, figure 10).
	Imbalance float64
	// WithSLO are the requests with a target, MetSLO those that met it. A rejected one
	// has not.
	WithSLO, MetSLO int
}

// Latency describes the latencies of all completed requests, in milliseconds.
type Latency struct {
	Mean, P50, P90, P95, P99 float64
}

// Compare runs the workload once with each policy and returns the reports in
// the order of the configs. A run uses the real router, on a virtual clock,
// with simulated servers; runs are independent and use all cores.
//
// A config is used for one run: its stages must not be shared with another
// config, nor used again; a config with state that another router uses, or has
// used, is refused. Its Endpoints, Clock and Seed are ignored. A policy that
// learns must do so synchronously (predict.LatencyConfig) to make the same
// decisions every time. The error names what is wrong with the workload, the
// file or a config.
func Compare(w Workload, configs ...endpick.Config) ([]Report, error) {
	if len(configs) == 0 {
		return nil, check.Bad("scorertest.Compare", "needs a config")
	}
	if (w.Scenario == "") == (w.Recording == "") {
		return nil, check.Bad("scorertest.Workload", "needs a Scenario or a Recording, and not both")
	}
	if w.ReportInterval < 0 { // nobody would report
		return nil, check.Bad("scorertest.Workload.ReportInterval", "is negative")
	}
	x := sim.Experiment{
		Scenario: w.Scenario, Pace: sim.Pace{Rate: w.Rate, RateScale: w.RateScale, Requests: w.Requests}, Servers: w.Endpoints,
	}
	if w.Profile != "" {
		profile, err := engine.ProfileByName(w.Profile)
		if err != nil {
			return nil, check.Bad("scorertest.Workload.Profile", "%q is unknown (known: %s)", w.Profile, strings.Join(engine.ProfileNames(), ", "))
		}
		x.Engine.Profile = profile
	}
	if w.Recording != "" {
		trace, err := sim.OpenTrace(w.Recording)
		if err != nil {
			return nil, fmt.Errorf("scorertest: Workload.Recording: %w", err)
		}
		x.Trace = trace
	} else if w.Requests == 0 && w.Rate > 0 {
		x.Requests = defaultRequests
	}
	reports := make([]Report, len(configs))
	errs := make([]error, len(configs))
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i, config := range configs {
		run, err := x.Config()
		if err != nil {
			return nil, ofWorkload(err)
		}
		if w.Describe != nil {
			for i := range run.Fleet {
				e := w.Describe(i)
				run.Fleet[i].Endpoint.Labels, run.Fleet[i].Endpoint.Variant = e.Labels, e.Variant
			}
		}
		run.Router = func() (endpick.Config, error) { return config, nil }
		run.Seed, run.ReportInterval = w.Seed, w.ReportInterval
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			r, err := sim.Run(run)
			if err != nil {
				errs[i] = err
				return
			}
			reports[i] = newReport(r)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("scorertest: configs[%d] (%s): %w", i, configs[i].Policy.Name, err)
		}
	}
	return reports, nil
}

// ofWorkload replaces the experiment's field in an error by that of the Workload.
func ofWorkload(err error) error {
	var own *sim.ConfigError
	if !errors.As(err, &own) {
		return err
	}
	field := own.Field[strings.LastIndexByte(own.Field, '.')+1:]
	switch field {
	case "Servers":
		field = "Endpoints"
	case "Pace":
		return &endpick.ConfigError{Field: "scorertest.Workload", Reason: own.Reason}
	}
	return &endpick.ConfigError{Field: "scorertest.Workload." + field, Reason: own.Reason}
}

// String returns the report in one line.
func (r Report) String() string {
	return fmt.Sprintf("%s: %d of %d requests completed, TTFT %.0f ms (p90 %.0f, p99 %.0f), TPOT %.1f ms, %.1f requests/s, %.0f %% of prompt tokens from caches",
		r.Policy, r.Completed, r.Requests, r.TTFT.Mean, r.TTFT.P90, r.TTFT.P99, r.TPOT.Mean, r.Throughput, 100*r.PrefixHitRatio)
}

func newReport(r *sim.Report) Report {
	latency := func(s sim.Summary) Latency { return Latency{s.Mean, s.P50, s.P90, s.P95, s.P99} }
	out := Report{
		Policy: r.Policy, Requests: r.Requests, Completed: r.Completed, Rejected: r.Rejected,
		TTFT: latency(r.TTFT), TPOT: latency(r.TPOT), E2E: latency(r.E2E),
		Throughput: r.ThroughputRPS, OutputTPS: r.OutputTPS, PrefixHitRatio: r.PrefixHitRatio,
		Preemptions: r.Preemptions, Jain: r.Jain, Imbalance: r.Imbalance,
	}
	for _, c := range r.Classes {
		out.WithSLO += c.Requests
		out.MetSLO += c.Met
	}
	return out
}
