package sim

import (
	"testing"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
)

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
			simulated := rig.Must(Replay(trace.Records, fitted))
			f := rig.Must(Assess(trace.Records[half:], simulated[half:]))
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
