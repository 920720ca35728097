package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Named is a workload with its fleet: those of the papers, and coding agents.
type Named struct {
	Name     string
	Workload Paced // without an end; only production has arrivals of its own
	Servers  int
	Profile  string // of every server
	Loads    Loads
}

// Paced is a generated workload whose pace is set later.
type Paced interface {
	Workload
	// At returns the workload at a pace. The error is a [*ConfigError].
	At(Pace) (Workload, error)
	// HasArrivals reports whether it has arrivals of its own, which the pace may
	// scale.
	HasArrivals() bool
}

// Pace is the rate of a [Paced] workload, and where it ends.
type Pace struct {
	// Rate is requests per second, instead of the workload's own arrivals.
	Rate float64
	// RateScale multiplies the rates of the workload's own arrivals. 0 is 1.
	RateScale float64
	// Requests and Duration end the work, whichever comes first. 0: at the end of
	// the workload's own arrivals.
	Requests int
	Duration time.Duration
}

func (p Pace) check(arrivals bool) error {
	switch {
	case p.Rate > 0 && p.RateScale > 0:
		return &ConfigError{"Pace", "has both a Rate and a RateScale"}
	case p.Rate == 0 && !arrivals:
		return &ConfigError{"Pace.Rate", "is needed: the workload has no arrivals of its own"}
	}
	return nil
}

// Loads are rates for a scenario's fleet, in requests per second, or factors on the
// arrivals of a scenario that has its own. At Low servers are far from full, at Middle
// they are busy and queues stay short; High is just below the rate at which runs of
// 5,000 requests begin to queue, or to preempt, under every good policy.
type Loads struct{ Low, Middle, High float64 }

// Scenario returns a workload by name. The error lists all names.
func Scenario(name string) (Named, error) {
	for _, n := range scenarios() {
		if n.Name == name {
			return n, nil
		}
	}
	return Named{}, &ConfigError{"Scenario", fmt.Sprintf("%q is unknown (known: %s)", name, strings.Join(ScenarioNames(), ", "))}
}

// ScenarioNames returns the names that [Scenario] knows, sorted.
func ScenarioNames() []string {
	var names []string
	for _, n := range scenarios() {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}

func scenarios() []Named {
	shared := func(groups, users, system int, question float64) Conversations {
		return Conversations{
			Groups: groups, UsersPerGroup: users, SystemTokens: system,
			Question: Length{Mean: question, Std: 0.3 * question},
			Output:   Length{Mean: 1000, Std: 300},
		}
	}
	const tp2 = "qwen3-32b-h100-tp2"
	// The paper's normal distribution is below 0 for almost half of its weight; a
	// lognormal with the same moments keeps the mean.
	production := Conversations{
		Groups: 1, UsersPerGroup: 1000, SystemTokens: 1000,
		Question: Length{Mean: 729, Std: 13_550, Shape: LogNormal, Max: 131_072},
		Output:   Length{Mean: 300, Std: 2_213, Shape: LogNormal, Max: 8_192},
		Arrivals: Ladder(1, 5, 8, time.Minute),
	}
	return []Named{
		{"A", shared(6, 1000, 1000, 30), 10, tp2, Loads{8, 20, 56}},
		{"B", shared(6, 1000, 1000, 3000), 10, tp2, Loads{4, 8, 11}},
		{"C", shared(150, 5, 6000, 1200), 10, tp2, Loads{2, 4, 6.5}},
		{"D", shared(150, 5, 1000, 6200), 10, tp2, Loads{1, 2, 2.25}},
		// Lengths of the ShareGPT sessions in LLMServingSim's vLLM runs: input mean 857,
		// median 733, 95 % below 1,785; output 653, 633, 773. Nothing is shared.
		{"sharegpt", Conversations{
			Groups: 1, UsersPerGroup: 1 << 16, Turns: 1,
			Question: Length{Mean: 857, Std: 520, Shape: LogNormal, Max: 4096},
			Output:   Length{Mean: 653, Std: 75, Max: 1024},
		}, 8, "llama-3.1-8b-h100", Loads{20, 40, 95}},
		// Half the published lengths: contexts of 85,000 tokens on average that grow by
		// 900 per step, the longest almost as long as a server's cache.
		{"agents", Agents{Scale: 2}, 16, tp2, Loads{1, 2, 2.4}},
		// At High, TPOT with 3,2,2 is 28 ms on average, the paper's median. Its median TTFT
		// of 3.4 s is impossible with the lognormal, whose median question has 40 tokens.
		{"production", production, 13, "moe-480b-h200-tp8", Loads{4, 8, 16}},
	}
}
