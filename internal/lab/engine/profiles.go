package engine

import (
	"fmt"
	"slices"
	"strings"
)

// ProfileByName returns a built-in profile. The error lists their names.
func ProfileByName(name string) (Profile, error) {
	for i := range profiles {
		if profiles[i].Name == name {
			return profiles[i], nil
		}
	}
	return Profile{}, fmt.Errorf("engine: unknown profile %q (known: %s)", name, strings.Join(ProfileNames(), ", "))
}

// ProfileNames returns the names of the built-in profiles, sorted.
func ProfileNames() []string {
	names := make([]string, len(profiles))
	for i := range profiles {
		names[i] = profiles[i].Name
	}
	slices.Sort(names)
	return names
}

// Peaks are dense bf16 with 32-bit accumulation from the vendors' data sheets:
// A100 312, H100 and H200 SXM 989, RTX 4090 165, RTX PRO 6000 Blackwell 504
// (fp16 accumulation, as the faster kernels use). Operations per token are twice
// the weights without the embeddings; per pair 4·heads·head size·layers.
var profiles = [...]Profile{
	{
		// Sum of the kernels of one step without attention, by tokens in the step:
		// 7.6 ms at 1, 8.9 at 64, 16.3 at 512, 27.0 at 1,024, 56.1 at 2,048
		// (LLMServingSim, profiler/v0, MIT), and 1 ms for the CPU. 131 kB of KV a token
		// at 80 % of 3.35 TB/s.
		Name:       "llama-3.1-8b-h100",
		StepMicros: 2000, WeightMicros: 6600, TokenMicros: 26.7, SequenceMicros: 15, ContextNanos: 49, PairNanos: 1.1,
		PeakTFLOPS: 989, GFLOPsPerToken: 14, MFLOPsPerPair: 0.524,
	},
	{
		// The same sum on an A100: 9.7 ms at 1, 11.2 at 64, 34.6 at 512, 75 at 1,024,
		// 146 at 2,048, 545 at 8,192 (Vidur, mlp.csv, MIT), and 1 ms for the CPU.
		Name:       "llama-3.1-8b-a100",
		StepMicros: 1500, WeightMicros: 9200, TokenMicros: 67.5, SequenceMicros: 15, ContextNanos: 82, PairNanos: 3.0,
		PeakTFLOPS: 312, GFLOPsPerToken: 14, MFLOPsPerPair: 0.524,
	},
	{
		// Fitted to the first half of a vLLM 0.19.0 run of LLMServingSim (bench/examples,
		// MIT), 300 ShareGPT sessions, at most 128 sequences: decode steps of 10.9 ms below
		// 16 sequences, 27.0 at 128.
		Name:       "llama-3.1-8b-rtxpro6000",
		StepMicros: 1240, WeightMicros: 11380, TokenMicros: 48.6, SequenceMicros: 45.4, ContextNanos: 65, PairNanos: 2.67,
		PeakTFLOPS: 504, GFLOPsPerToken: 14, MFLOPsPerPair: 0.524,
	},
	{
		// The same source: decode steps of 18.0 ms below 16 sequences, 25.6 at 32. Its KV
		// cache had about 2,612 blocks.
		Name:       "llama-3.1-8b-rtx4090",
		StepMicros: 2010, WeightMicros: 15340, TokenMicros: 104.5, SequenceMicros: 32.5, ContextNanos: 143, PairNanos: 6.73,
		PeakTFLOPS: 165, GFLOPsPerToken: 14, MFLOPsPerPair: 0.524,
	},
	{
		// The same source: one of two data-parallel ranks with experts in parallel.
		Name:       "qwen3-30b-a3b-rtxpro6000-dp2",
		StepMicros: 1330, WeightMicros: 17530, TokenMicros: 70.2, SequenceMicros: 124, ContextNanos: 98, PairNanos: 5.07,
		PeakTFLOPS: 504, GFLOPsPerToken: 5.4, MFLOPsPerPair: 0.786,
	},
	{
		// The same source: decode steps of 24.2 ms below 16 sequences, 37.9 at 32, 58.8 at 128.
		Name:       "qwen3-32b-rtxpro6000-tp2",
		StepMicros: 810, WeightMicros: 20860, TokenMicros: 163, SequenceMicros: 167, ContextNanos: 123, PairNanos: 9.44,
		PeakTFLOPS: 1008, GFLOPsPerToken: 62.4, MFLOPsPerPair: 2.1,
	},
	{
		// Splitwise (ISCA 2024), perf_model.csv medians, MIT: prefill 54, 78, 137 ms at 512,
		// 1,024, 2,048 tokens; decode 30.6, 34.2, 38.6, 50.2 ms at batch 1, 16, 32, 64. An
		// engine of 2023. Its jump between 2,048 and 4,096 tokens (137 to 390 ms) is not in
		// the formula: chunks hide it.
		Name:       "llama-2-70b-h100-tp8",
		StepMicros: 20000, WeightMicros: 10000, TokenMicros: 58, SequenceMicros: 300, ContextNanos: 15, PairNanos: 1,
		PeakTFLOPS: 7912, GFLOPsPerToken: 137, MFLOPsPerPair: 2.62,
	},
	{
		// Splitwise: prefill 60, 106, 201 ms; decode 29.4, 32.8, 36.9, 52.4 ms.
		Name:       "llama-2-70b-h100-tp4",
		StepMicros: 13000, WeightMicros: 16000, TokenMicros: 91, SequenceMicros: 310, ContextNanos: 30, PairNanos: 1.3,
		PeakTFLOPS: 3956, GFLOPsPerToken: 137, MFLOPsPerPair: 2.62,
	},
	{
		// Splitwise: prefill 93, 155, 274 ms; decode 45.0, 50.4, 53.0, 71.6 ms.
		Name:       "llama-2-70b-a100-tp8",
		StepMicros: 33000, WeightMicros: 11700, TokenMicros: 117, SequenceMicros: 350, ContextNanos: 25, PairNanos: 2,
		PeakTFLOPS: 2496, GFLOPsPerToken: 137, MFLOPsPerPair: 2.62,
	},
	{
		// Splitwise: prefill 127, 227, 403 ms; decode 44.5, 48.5, 52.3, 72.9 ms.
		Name:       "llama-2-70b-a100-tp4",
		StepMicros: 35000, WeightMicros: 9200, TokenMicros: 178, SequenceMicros: 350, ContextNanos: 50, PairNanos: 4,
		PeakTFLOPS: 1248, GFLOPsPerToken: 137, MFLOPsPerPair: 2.62,
	},
	{
		// No measurement: a dense 32B model (64 layers, 262 kB of KV a token) on the 2×H100
		// server of scenarios A to D of the predicted-latency paper. Weights at 80 % of
		// 6.7 TB/s, half of the peak in linear layers, 40 % in attention.
		Name:       "qwen3-32b-h100-tp2",
		StepMicros: 3000, WeightMicros: 12200, TokenMicros: 63, SequenceMicros: 30, ContextNanos: 49, PairNanos: 2.65,
		PeakTFLOPS: 1978, GFLOPsPerToken: 62.4, MFLOPsPerPair: 2.1,
	},
	{
		// No measurement: a mixture of experts with 480B weights, 35B active (62 layers,
		// 254 kB of KV a token), as on the 8×H200 server of the predicted-latency paper's
		// production workload. A step of few sequences reads few experts, hence a floor of
		// half the weights and a high cost per sequence; 35 % of the peak in linear layers.
		Name:       "moe-480b-h200-tp8",
		StepMicros: 6000, WeightMicros: 14000, TokenMicros: 25, SequenceMicros: 150, ContextNanos: 9.4, PairNanos: 0.96,
		PeakTFLOPS: 7912, GFLOPsPerToken: 70, MFLOPsPerPair: 3.05,
	},
}
