package main

import (
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
)

// programs are contests among clients that wait for answers, and fleets that the others lack.
func programs() []contest {
	const (
		tp2   = "qwen3-32b-h100-tp2"
		h100  = "llama-3.1-8b-h100"
		a100  = "llama-3.1-8b-a100"
		rtx   = "llama-3.1-8b-rtxpro6000"
		rtx32 = "qwen3-32b-rtxpro6000-tp2"
		moe   = "qwen3-30b-a3b-rtxpro6000-dp2"
		moe8  = "moe-480b-h200-tp8"
	)
	blocks := func(n int) func(*engine.Config) { return func(c *engine.Config) { c.Blocks = n } }
	// is, about and wide are lengths: always the same, within a third or so, and anything.
	is := func(n float64) sim.Length { return sim.Length{Mean: n} }
	about := func(n float64) sim.Length { return sim.Length{Mean: n, Std: n / 3} }
	wide := func(n float64, most int) sim.Length {
		return sim.Length{Mean: n, Std: n, Shape: sim.LogNormal, Max: most}
	}
	sessions := func(s sim.Sessions) func(float64, int) (sim.Workload, error) {
		return func(rate float64, requests int) (sim.Workload, error) {
			s.Rate, s.Requests = rate, requests
			return s, nil
		}
	}
	// The same kinds twice: documents, editors, voice, reasoning, parts of one task, agents that
	// start others, chats for large fleets, agents that fill the memory, and groups without room.
	// Pauses are in milliseconds.
	documents := sim.Sessions{Groups: 1, System: is(400), Own: sim.Length{Mean: 40_000, Std: 15_000, Max: 75_000}, Adds: about(80), Output: about(350), Turns: about(6), Pause: wide(20_000, 120_000)}
	library := sim.Sessions{Groups: 60, Skew: 0.8, System: sim.Length{Mean: 30_000, Std: 12_000, Max: 70_000}, Adds: about(120), Output: wide(250, 2000), Turns: about(3), Pause: wide(8000, 60_000)}
	editors := sim.Sessions{Groups: 40, System: about(2000), Own: about(3000), Adds: about(40), Edits: wide(600, 3000), Output: about(30), Turns: about(40), Pause: wide(1500, 20_000)}
	monorepo := sim.Sessions{Groups: 8, Skew: 1, System: about(6000), Own: about(1500), Adds: about(25), Edits: wide(300, 2000), Output: wide(50, 400), Turns: about(25), Pause: wide(3000, 30_000)}
	voice := sim.Sessions{Groups: 12, System: about(1200), Own: about(200), Adds: about(30), Output: about(60), Turns: about(15), Pause: about(6000)}
	hotline := sim.Sessions{Groups: 3, System: about(5000), Own: about(600), Adds: about(50), Output: about(40), Turns: about(10), Pause: about(4000)}
	reasoning := sim.Sessions{Groups: 10, System: about(800), Own: about(400), Adds: about(100), Output: wide(4000, 16_000), Turns: about(2), Pause: wide(30_000, 200_000)}
	proofs := sim.Sessions{Groups: 1, System: is(300), Own: wide(1500, 8000), Output: wide(7000, 30_000), Turns: is(1)}
	mapReduce := sim.Sessions{Groups: 20, System: about(1500), Adds: about(400), Output: about(300), Turns: is(2), Pause: is(50), Fan: about(14), FanEvery: 1, BranchTurns: 1, Part: about(3500)}
	shards := sim.Sessions{Groups: 6, System: about(500), Own: about(6000), Adds: about(200), Output: about(150), Turns: is(3), Pause: is(20), Fan: about(8), FanEvery: 1, BranchTurns: 1, Part: about(1200)}
	subAgents := sim.Sessions{Groups: 15, System: about(6000), Own: about(4000), Adds: wide(700, 6000), Output: about(220), Turns: about(12), Pause: wide(2500, 60_000), Fan: about(3), FanEvery: 4, BranchTurns: 4, Part: about(500)}
	crew := sim.Sessions{Groups: 4, System: about(3000), Own: about(12_000), Adds: wide(400, 3000), Output: about(350), Turns: about(9), Pause: wide(1000, 20_000), Fan: about(5), FanEvery: 3, BranchTurns: 2, Part: about(200)}
	chats := sim.Sessions{Groups: 80, Skew: 0.7, System: about(2500), Own: about(300), Adds: about(200), Output: about(280), Turns: about(5), Pause: wide(15_000, 120_000)}
	briefs := sim.Sessions{Groups: 200, Skew: 1, System: about(4000), Own: wide(1500, 15_000), Adds: about(150), Output: wide(350, 3000), Turns: about(3), Pause: wide(10_000, 90_000)}
	coding := sim.Sessions{Groups: 10, System: about(4000), Own: about(6000), Adds: wide(900, 8000), Output: about(250), Turns: about(22), Pause: wide(4000, 60_000)}
	reviews := sim.Sessions{Groups: 25, System: about(2000), Own: about(15_000), Adds: wide(1500, 10_000), Output: about(500), Turns: about(12), Pause: wide(8000, 90_000)}
	tight := sim.Sessions{Groups: 4, System: is(2000), Adds: about(300), Output: about(200), Turns: is(10), Pause: is(300)}
	tighter := sim.Sessions{Groups: 4, System: is(6000), Own: about(500), Adds: about(250), Output: about(120), Turns: is(8), Pause: about(700)}
	all := []contest{
		{name: "documents", about: "questions about one's own document of 40,000 tokens", fleet: profileFleet(8, h100), work: sessions(documents), saturation: 2.9},
		{name: "editors", about: "completions in files that change", fleet: profileFleet(8, a100), work: sessions(editors), saturation: 70},
		{name: "voice", about: "short exchanges", fleet: profileFleet(8, rtx), work: sessions(voice), saturation: 140},
		{name: "reasoning", about: "responses of 4,000 tokens", fleet: profileFleet(8, moe), work: sessions(reasoning), saturation: 1.8},
		{name: "map-reduce", about: "14 parts at once, then their sum", fleet: profileFleet(8, h100), work: sessions(mapReduce), saturation: 31},
		{name: "sub-agents", about: "agents whose sub-agents share their context", fleet: profileFleet(8, tp2), work: sessions(subAgents), saturation: 18},
		{name: "three", about: "chats on three kinds of server", fleet: mixedFleet(3, h100, a100, rtx), work: sessions(chats), saturation: 54},
		{name: "wide", about: "chats on 32 servers", fleet: profileFleet(32, rtx), work: sessions(chats), saturation: 125},
		{name: "memory", about: "coding agents that fill the memory", fleet: profileFleet(8, h100, blocks(12_000)), work: sessions(coding), saturation: 7.5},
		{name: "tight", about: "four groups, four servers without room", fleet: profileFleet(4, a100, blocks(1024)), work: sessions(tight), saturation: 6.5},

		{name: "library", about: "60 long documents that everybody asks about", fleet: profileFleet(8, tp2), work: sessions(library), saturation: 8},
		{name: "monorepo", about: "completions in a few large projects", fleet: profileFleet(8, moe), work: sessions(monorepo), saturation: 60},
		{name: "hotline", about: "short exchanges, long prompts of three kinds", fleet: profileFleet(10, h100), work: sessions(hotline), saturation: 230},
		{name: "proofs", about: "responses of 7,000 tokens", fleet: profileFleet(8, rtx32), work: sessions(proofs), saturation: 0.62},
		{name: "shards", about: "eight parts at once, in three rounds", fleet: profileFleet(10, rtx), work: sessions(shards), saturation: 38},
		{name: "crew", about: "many sub-agents", fleet: profileFleet(8, moe8), work: sessions(crew), saturation: 24},
		{name: "three-kinds", about: "longer prompts on three kinds of server", fleet: mixedFleet(4, tp2, rtx32, moe), work: sessions(briefs), saturation: 18},
		{name: "wide-briefs", about: "longer prompts on 32 servers", fleet: profileFleet(32, h100), work: sessions(briefs), saturation: 130},
		{name: "memory-reviews", about: "reviews that fill the memory", fleet: profileFleet(8, tp2, blocks(10_000)), work: sessions(reviews), saturation: 1.95},
		{name: "tighter", about: "four long system prompts, four servers without room", fleet: profileFleet(4, h100, blocks(1200)), work: sessions(tighter), saturation: 10.5},
	}
	for i := range all {
		all[i].set = sets[3+i/10]
	}
	return all
}
