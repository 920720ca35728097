package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExperiment(t *testing.T) {
	trace := &Trace{Name: "t", Records: []Record{ // not in order of arrival
		{ArrivalMillis: 3000, InputTokens: 30, OutputTokens: 1},
		{ArrivalMillis: 1000, InputTokens: 10, OutputTokens: 1},
		{ArrivalMillis: 2000, InputTokens: 20, OutputTokens: 1},
	}}
	inputs := func(x Experiment) (tokens []int, fleet int) {
		cfg, err := x.Config()
		require.NoError(t, err)
		for _, r := range requestsOf(t, cfg.Workload, 0) {
			tokens = append(tokens, r.InputTokens)
		}
		return tokens, len(cfg.Fleet)
	}
	got, fleet := inputs(Experiment{Trace: trace})
	assert.Equal(t, []int{10, 20, 30}, got)
	assert.Equal(t, 8, fleet)
	got, _ = inputs(Experiment{Trace: trace, Pace: Pace{Requests: 2}})
	assert.Equal(t, []int{10, 20}, got, "the first by arrival, not by line")
	got, _ = inputs(Experiment{Trace: trace, Pace: Pace{Duration: 2 * time.Second}})
	assert.Equal(t, []int{10}, got)
	got, fleet = inputs(Experiment{Trace: trace, Pace: Pace{Duration: 1100 * time.Millisecond, RateScale: 2}, Servers: 3})
	assert.Equal(t, []int{10, 20}, got, "2.2 s of the trace in 1.1")
	assert.Equal(t, 3, fleet)
	assert.Equal(t, 3000.0, trace.Records[0].ArrivalMillis, "the trace is as it was")

	got, fleet = inputs(Experiment{Scenario: "A", Pace: Pace{Rate: 5, Requests: 7}})
	assert.Len(t, got, 7)
	assert.Equal(t, 10, fleet)
	half, _ := inputs(Experiment{Scenario: "production", Pace: Pace{RateScale: 0.5, Duration: time.Minute}})
	whole, _ := inputs(Experiment{Scenario: "production", Pace: Pace{Duration: time.Minute}})
	assert.InDelta(t, 30, len(half), 17)
	assert.InDelta(t, 60, len(whole), 24)
}

func TestExperimentErrors(t *testing.T) {
	trace := &Trace{Name: "t", Records: []Record{{ArrivalMillis: 1000, InputTokens: 1, OutputTokens: 1}}}
	for _, c := range []struct {
		x    Experiment
		want string
	}{
		{Experiment{}, "sim: Experiment needs a scenario or a trace, and not both"},
		{Experiment{Scenario: "A", Trace: trace}, "sim: Experiment needs a scenario or a trace, and not both"},
		{Experiment{Scenario: "A"}, "sim: Pace.Rate is needed: the workload has no arrivals of its own"},
		{Experiment{Scenario: "A", Pace: Pace{RateScale: 2}}, "sim: Pace.Rate is needed: the workload has no arrivals of its own"},
		{Experiment{Scenario: "production", Pace: Pace{Rate: 1, RateScale: 2}}, "sim: Pace has both a Rate and a RateScale"},
		{Experiment{Trace: trace, Pace: Pace{Rate: 1}}, "sim: Experiment.Rate is for scenarios: a trace takes a RateScale"},
		{Experiment{Trace: trace, Pace: Pace{Duration: time.Second}}, "sim: Experiment.Duration 1s is over before the first request of t"},
		{Experiment{Trace: trace, Servers: -1}, "sim: Experiment.Servers -1 is not within [0, 65536]"},
		{Experiment{Trace: trace, Pace: Pace{RateScale: -1}}, "sim: Experiment.RateScale -1 is not within [0, 1e+06]"},
	} {
		_, err := c.x.Config()
		require.EqualError(t, err, c.want)
	}
}
