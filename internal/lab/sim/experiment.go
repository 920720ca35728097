package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/endpick/endpick/internal/lab/engine"
)

// Experiment describes a workload and a fleet as briefly as a command line or a
// test. One of Scenario and Trace is required; the zero value of everything else
// is its default.
type Experiment struct {
	// Scenario is a name for [Scenario].
	Scenario string
	// Trace is a recording. It is not changed.
	Trace *Trace

	// Pace is that of the scenario, or of the trace, which has its own arrivals and takes no Rate.
	Pace
	// Classes are the SLO classes of requests. None: as in the trace.
	Classes []MixClass

	// Servers is the size of the fleet; 0 is the scenario's own, and 8 for a trace.
	Servers int
	// Engine describes each server. The zero Profile is the scenario's own, or the
	// default of package engine for a trace.
	Engine engine.Config
}

// defaultServers is the size of the fleet for a trace.
const defaultServers = 8

// Config returns the fleet and the workload as a Config without a Router.
func (x Experiment) Config() (Config, error) {
	if (x.Scenario == "") == (x.Trace == nil) {
		return Config{}, &ConfigError{"Experiment", "needs a scenario or a trace, and not both"}
	}
	for _, f := range []struct {
		name  string
		value float64
		most  float64
	}{
		{"Rate", x.Rate, 1e6}, {"RateScale", x.RateScale, 1e6}, {"Requests", float64(x.Requests), 1 << 40},
		{"Duration", x.Duration.Seconds(), engine.MaxTime.Seconds()}, {"Servers", float64(x.Servers), 1 << 16},
	} {
		if !(f.value >= 0 && f.value <= f.most) {
			return Config{}, &ConfigError{"Experiment." + f.name, fmt.Sprintf("%v is not within [0, %v]", f.value, f.most)}
		}
	}
	var cfg Config
	var err error
	if x.Trace != nil {
		cfg.Workload, err = x.replay()
		x.Servers = cmp.Or(x.Servers, defaultServers)
	} else {
		cfg.Workload, err = x.generate()
	}
	if err != nil {
		return Config{}, err
	}
	cfg.Fleet = Fleet(x.Servers, x.Engine)
	if len(x.Classes) > 0 {
		cfg.Workload = Mix{cfg.Workload, x.Classes}
	}
	return cfg, nil
}

// generate returns a scenario's workload and sets its fleet.
func (x *Experiment) generate() (Workload, error) {
	n, err := Scenario(x.Scenario)
	if err != nil {
		return nil, err
	}
	if x.Engine.Profile == (engine.Profile{}) {
		if x.Engine.Profile, err = engine.ProfileByName(n.Profile); err != nil {
			return nil, err
		}
	}
	x.Servers = cmp.Or(x.Servers, n.Servers)
	return n.Workload.At(x.Pace)
}

// replay returns the requested part of the trace.
func (x *Experiment) replay() (Workload, error) {
	if x.Rate > 0 {
		return nil, &ConfigError{"Experiment.Rate", "is for scenarios: a trace takes a RateScale"}
	}
	t := *x.Trace
	t.RateScale = x.RateScale
	if x.Requests == 0 && x.Duration == 0 {
		return &t, nil
	}
	t.Records = slices.Clone(t.Records)
	slices.SortStableFunc(t.Records, func(a, b Record) int { return cmp.Compare(a.ArrivalMillis, b.ArrivalMillis) })
	if x.Requests > 0 {
		t.Records = t.Records[:min(x.Requests, len(t.Records))]
	}
	if x.Duration > 0 {
		scale := cmp.Or(x.RateScale, 1)
		end, _ := slices.BinarySearchFunc(t.Records, millis(x.Duration)*scale, func(r Record, at float64) int {
			return cmp.Compare(r.ArrivalMillis, at)
		})
		if t.Records = t.Records[:end]; end == 0 {
			return nil, &ConfigError{"Experiment.Duration", fmt.Sprintf("%v is over before the first request of %s", x.Duration, t.Name)}
		}
	}
	return &t, nil
}
