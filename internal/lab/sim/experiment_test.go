package sim

import (
	"fmt"
	"hash/fnv"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
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
		cfg := rig.Must(x.Config())
		for _, r := range requestsOf(cfg.Workload, 0) {
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
		require.EqualError(t, rig.Err(c.x.Config()), c.want)
	}
}

// Figures of different versions can be compared, because each scenario is still the same work: the
// sum of its first requests. A workload that is changed on purpose gets another sum.
func TestScenariosAreStillTheSame(t *testing.T) {
	sums := map[string]uint64{}
	for _, n := range scenarios() {
		pace := Pace{Rate: n.Loads.Middle, Requests: 2000}
		if n.Workload.HasArrivals() {
			pace = Pace{RateScale: n.Loads.Middle, Requests: 2000}
		}
		w := rig.Must(n.Workload.At(pace))
		h := fnv.New64a()
		for _, r := range requestsOf(w, 3*time.Second) {
			last := append([]uint64{0}, r.Blocks...)[len(r.Blocks)] // which depends on those before
			fmt.Fprintln(h, r.Arrival, r.InputTokens, r.OutputTokens, len(r.Blocks), last, r.SystemTokens, r.Tenant, r.Session)
		}
		sums[n.Name] = h.Sum64()
	}
	assert.Equal(t, map[string]uint64{
		"A": 0x8a589d30e541239a, "B": 0x95bde9920b78ac75, "C": 0x503a3aab73bd1ca9, "D": 0xcd44a8fd02f2493,
		"sharegpt": 0x2b2f1f134e3ae7e1, "agents": 0x1789b1120b0a6923, "production": 0xfeed6e8dc782a055,
	}, sums)
}

// On the second halves of four real vLLM runs, the profile fitted to the first half
// is within the limits: means and 90th percentiles of E2E and ITL within 10 %, of
// TTFT within 20 %. The search starts far away, at the same place for all.
func TestFitRealRuns(t *testing.T) {
	for _, run := range []struct {
		name   string
		peak   float64 // TFLOPS of a rank
		gflops float64 // per token
		mflops float64 // per pair
		ranks  int
		blocks int // 0: more than the run needs
	}{
		{"llama31_8b_rtxpro6000_tp1", 504, 14, 0.524, 1, 0},
		{"llama31_8b_rtx4090_tp1", 165, 14, 0.524, 1, 3000},
		{"qwen3_30b_a3b_rtxpro6000_dp2ep", 504, 5.4, 0.786, 2, 0},
		{"qwen3_32b_rtxpro6000_tp2", 1008, 62.4, 2.1, 1, 0},
	} {
		t.Run(run.name, func(t *testing.T) {
			sparingly(t)
			trace := rig.Must(OpenTrace(sharedTrace(t, "calib_vllm_"+run.name+"_requests.csv.gz")))
			d := Deployment{Ranks: run.ranks, Engine: engine.Config{
				MaxSequences: 128, MaxBatchedTokens: 2048, Blocks: run.blocks, // as recorded
				Profile: engine.Profile{
					Name: run.name, StepMicros: 1000, WeightMicros: 15_000, TokenMicros: 100, SequenceMicros: 100,
					ContextNanos: 100, PairNanos: 5, PeakTFLOPS: run.peak, GFLOPsPerToken: run.gflops, MFLOPsPerPair: run.mflops,
				},
			}}
			half := len(trace.Records) / 2
			fitted := rig.Must(Fit(trace.Records, half, d, run.blocks > 0))
			f := rig.Must(Assess(trace.Records[half:], rig.Must(Replay(trace.Records, fitted))[half:]))
			t.Logf("%+v, %d blocks", fitted.Engine.Profile, fitted.Engine.Blocks)
			for _, m := range []struct {
				name  string
				got   Agreement
				limit float64
			}{{"TTFT", f.TTFT, 0.20}, {"ITL", f.ITL, 0.10}, {"E2E", f.E2E, 0.10}} {
				t.Logf("%-4s errors: mean %.1f %%, p90 %.1f %%, MAPE %.1f %%; r %.3f",
					m.name, 100*m.got.MeanError, 100*m.got.P90Error, 100*m.got.MAPE, m.got.Pearson)
				require.LessOrEqual(t, m.got.MeanError, m.limit, m.name)
				require.LessOrEqual(t, m.got.P90Error, m.limit, m.name)
			}
		})
	}
}
