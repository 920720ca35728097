package main

import (
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
)

// engineFleet is n servers of one profile, modified by change.
func engineFleet(n int, profile string, change func(*engine.Config)) func() ([]sim.Server, error) {
	return func() ([]sim.Server, error) {
		p, err := engine.ProfileByName(profile)
		c := engine.Config{Profile: p}
		change(&c)
		return sim.Fleet(n, c), err
	}
}

// flat has the step times of BLIS's coefficients for Llama-3.1-8B on two H100: 6.91 ms,
// 17.67 µs per prompt token, and almost nothing for each decoding request. Its servers
// hold two million tokens.
func flat(c *engine.Config) {
	c.Profile = engine.Profile{Name: "flat", StepMicros: 2387, WeightMicros: 4523, TokenMicros: 17.67, SequenceMicros: 2.84}
	c.Blocks = 132_139
}

// straight has step times proportional to the tokens, as BLIS's coefficients for
// Qwen3-14B on one H100: decoding has no floor, and attention costs nothing.
func straight(c *engine.Config) {
	c.Profile = engine.Profile{Name: "straight", StepMicros: 13_578, TokenMicros: 27.32, SequenceMicros: 12}
	c.Blocks = 17_600
}

// foreign are contests on engines that work differently from those the library was tuned
// on, or report less.
func foreign(chat, document, group sim.Conversations) []contest {
	const (
		h100 = "llama-3.1-8b-h100"
		tp2  = "qwen3-32b-h100-tp2"
	)
	prefillFirst := func(c *engine.Config) { c.PrefillFirst = true }
	blocks := func(n int) func(*engine.Config) { return func(c *engine.Config) { c.Blocks = n } }
	batch := func(sequences, budget int) func(*engine.Config) {
		return func(c *engine.Config) { c.MaxSequences, c.MaxBatchedTokens = sequences, budget }
	}
	steep := func(c *engine.Config) { c.Profile.Name, c.Profile.PairNanos = "steep", 10*c.Profile.PairNanos }
	agents := func(scale int) func(float64, int) (sim.Workload, error) {
		return func(rate float64, requests int) (sim.Workload, error) {
			return sim.Agents{Scale: float64(scale), Rate: rate, Requests: requests}, nil
		}
	}
	unnamed := func(c *sim.Config) {
		for i := range c.Fleet {
			c.Fleet[i].Undescribed = true
		}
	}
	blind := func(c *sim.Config) {
		unnamed(c)
		c.NoUsage, c.PromptsOnly = true, true
		c.ReportInterval, c.MeterInterval = 1000*time.Hour, 1000*time.Hour
	}
	mixture := bursts(2, []float64{0.9, 0.1}, chat, document)
	all := []contest{
		{name: "flat-A", about: "scenario A, steps of one length", fleet: engineFleet(10, h100, flat), work: scenarioWork("A"), guess: 300},
		{name: "flat-C", about: "scenario C, steps of one length", fleet: engineFleet(10, h100, flat), work: scenarioWork("C"), guess: 120},
		{name: "flat-D", about: "scenario D, steps of one length", fleet: engineFleet(10, h100, flat), work: scenarioWork("D"), guess: 60},
		{name: "flat-shift", about: "groups that change, steps of one length", fleet: engineFleet(10, h100, flat), work: zipf(150, 1, 4, group), guess: 200},
		{name: "straight-B", about: "scenario B, steps by tokens", fleet: engineFleet(10, h100, straight), work: scenarioWork("B"), guess: 40},
		{name: "straight-C", about: "scenario C, steps by tokens", fleet: engineFleet(10, h100, straight), work: scenarioWork("C"), guess: 25},
		{name: "first-C", about: "scenario C, prompts before decoding", fleet: engineFleet(8, h100, prefillFirst), work: scenarioWork("C"), guess: 20},
		{name: "first-bursts", about: "documents among chats in bursts, prompts before decoding", fleet: engineFleet(10, tp2, prefillFirst), work: mixture, guess: 60},
		{name: "first-agents", about: "coding agents, prompts before decoding", fleet: engineFleet(8, h100, prefillFirst), work: agents(4), saturation: 6},
		{name: "steep-docs", about: "documents among chats, ten times the attention, chunks of 512", fleet: engineFleet(8, h100, func(c *engine.Config) { steep(c); batch(256, 512)(c) }), work: mixture, guess: 60},
		{name: "narrow-B", about: "scenario B, 32 at a time, chunks of 8,192", fleet: engineFleet(10, h100, batch(32, 8192)), work: scenarioWork("B"), guess: 25},
		{name: "narrow-C", about: "scenario C, 32 at a time, chunks of 8,192", fleet: engineFleet(10, h100, batch(32, 8192)), work: scenarioWork("C"), guess: 25},
		{name: "tiny-C", about: "scenario C, memory for 40,000 tokens", fleet: engineFleet(10, h100, blocks(2500)), work: scenarioWork("C"), guess: 10},
		{name: "tiny-zipf", about: "400 groups by Zipf, memory for 20,000 tokens", fleet: engineFleet(10, tp2, blocks(1250)), work: zipf(400, 1, 1, group), guess: 15},
		{name: "vast-D", about: "scenario D, memory for a million tokens", fleet: engineFleet(10, tp2, blocks(62_500)), work: scenarioWork("D"), guess: 6},
		{name: "bare-flat-A", about: "flat-A, servers whose size is not known", fleet: engineFleet(10, h100, flat), work: scenarioWork("A"), guess: 300, config: unnamed},
		{name: "bare-narrow-C", about: "narrow-C, servers whose size is not known", fleet: engineFleet(10, h100, batch(32, 8192)), work: scenarioWork("C"), guess: 25, config: unnamed},
		{name: "bare-tiny-zipf", about: "tiny-zipf, servers whose size is not known", fleet: engineFleet(10, tp2, blocks(1250)), work: zipf(400, 1, 1, group), guess: 15, config: unnamed},
		{name: "blind-C", about: "scenario C, servers that tell nothing", fleet: engineFleet(10, tp2, func(*engine.Config) {}), work: scenarioWork("C"), guess: 10, config: blind},
		{name: "blind-bursts", about: "documents among chats in bursts, servers that tell nothing", fleet: engineFleet(8, h100, func(*engine.Config) {}), work: mixture, guess: 60, config: blind},
		{name: "blind-agents", about: "coding agents, servers that tell nothing", fleet: engineFleet(8, h100, func(*engine.Config) {}), work: agents(4), saturation: 6, config: blind},
	}
	for i := range all {
		all[i].foreign = true
	}
	return all
}
