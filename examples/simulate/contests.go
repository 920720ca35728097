package main

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/sim"
)

// sets are the names of groups of contests: the library was tuned on the first, and on
// nothing of held and foreign. The engines of foreign work differently. In programs and
// sealed, clients wait for answers: both have each kind of program once, and sealed was
// only looked at when everything else was done.
var sets = []string{"tuned", "held", "foreign", "programs", "sealed"}

// A contest is a workload and a fleet on which policies are compared.
type contest struct {
	name  string
	about string // what it is
	set   string // one of sets
	// config changes other parts of a run. Nil: nothing.
	config func(*sim.Config)

	fleet func() ([]sim.Server, error)
	// work is the workload with so many requests per second, and about so many
	// requests in total.
	work func(rate float64, requests int) (sim.Workload, error)
	// guess is a rate above what the fleet can serve, from which to start.
	guess float64
	// saturation is the rate at which the fleet is full, if that can't be searched
	// for because requests wait for one another. Zero: search.
	saturation float64
}

// profileFleet is n servers of one profile, with these changes.
func profileFleet(n int, profile string, changes ...func(*engine.Config)) func() ([]sim.Server, error) {
	return func() ([]sim.Server, error) {
		p, err := engine.ProfileByName(profile)
		c := engine.Config{Profile: p}
		for _, change := range changes {
			change(&c)
		}
		return sim.Fleet(n, c), err
	}
}

// mixedFleet is n servers of each profile.
func mixedFleet(n int, profiles ...string) func() ([]sim.Server, error) {
	return func() (all []sim.Server, err error) {
		for _, p := range profiles {
			fleet, err := profileFleet(n, p)()
			if err != nil {
				return nil, err
			}
			all = append(all, fleet...)
		}
		return all, nil
	}
}

// lameFleet is n servers of one profile, the last of which silently takes twice as
// long for everything.
func lameFleet(n int, profile string) func() ([]sim.Server, error) {
	return func() ([]sim.Server, error) {
		fleet, err := profileFleet(n, profile)()
		if err != nil {
			return nil, err
		}
		p := &fleet[n-1].Engine.Profile
		for _, t := range []*float64{&p.StepMicros, &p.WeightMicros, &p.TokenMicros, &p.SequenceMicros, &p.ContextNanos, &p.PairNanos} {
			*t *= 2
		}
		return fleet, nil
	}
}

func scenarioWork(name string) func(float64, int) (sim.Workload, error) {
	return func(rate float64, requests int) (sim.Workload, error) {
		n, err := sim.Scenario(name)
		if err != nil {
			return nil, err
		}
		return n.Workload.At(sim.Pace{Rate: rate, Requests: requests})
	}
}

// span is how long so many requests take to arrive.
func span(rate float64, requests int) time.Duration {
	return time.Duration(float64(requests) / rate * float64(time.Second))
}

// zipf is conversations in groups whose shares fall with their rank, which is
// redrawn so many times during the run.
func zipf(groups, periods int, one sim.Conversations) func(float64, int) (sim.Workload, error) {
	return func(rate float64, requests int) (sim.Workload, error) {
		sum := 0.0
		for g := range groups {
			sum += 1 / float64(g+1)
		}
		var all sim.Merge
		length := span(rate, requests) / time.Duration(periods)
		for period := range periods {
			for g := range groups {
				c := one
				c.Groups = 1
				c.Arrivals.Stages = []sim.Stage{{Duration: length, Rate: rate * (1 / float64(g+1)) / sum}}
				if period > 0 {
					quiet := sim.Stage{Duration: length * time.Duration(period), Rate: 1e-9}
					c.Arrivals.Stages = append([]sim.Stage{quiet}, c.Arrivals.Stages...)
				}
				all = append(all, c)
			}
		}
		return all, nil
	}
}

// bursts is several workloads together, each with its share of the rate, with
// bursty arrivals.
func bursts(cv float64, shares []float64, parts ...sim.Conversations) func(float64, int) (sim.Workload, error) {
	return func(rate float64, requests int) (sim.Workload, error) {
		var all sim.Merge
		for i, c := range parts {
			c.Arrivals = sim.Arrivals{CV: cv, Stages: []sim.Stage{{Duration: span(rate, requests), Rate: rate * shares[i]}}}
			all = append(all, c)
		}
		return all, nil
	}
}

// flash is a crowd at time zero: a fifth of all requests in a twentieth of the time.
func flash(c sim.Conversations) func(float64, int) (sim.Workload, error) {
	return func(rate float64, requests int) (sim.Workload, error) {
		c, length := c, span(rate, requests) // runs are at the same time
		c.Arrivals.Stages = []sim.Stage{
			{Duration: length / 20, Rate: 4 * rate}, {Duration: length - length/20, Rate: rate * 0.8 / 0.95},
		}
		return c, nil
	}
}

// traceWork replays the beginning of a recorded trace, which is read once, at another
// speed.
func traceWork(path string) func(float64, int) (sim.Workload, error) {
	open := sync.OnceValues(func() (*sim.Trace, error) { return sim.OpenTrace(path) })
	return func(rate float64, requests int) (sim.Workload, error) {
		whole, err := open()
		if err != nil {
			return nil, err
		}
		t := *whole
		t.Records = t.Records[:min(requests, len(t.Records))]
		if len(t.Records) < 2 {
			return nil, fmt.Errorf("%s: is too short", path)
		}
		own := float64(len(t.Records)) / (t.Records[len(t.Records)-1].ArrivalMillis / 1000)
		t.RateScale = rate / own
		return &t, nil
	}
}

// agents are coding agents with a quarter of the published lengths.
func agents(rate float64, requests int) (sim.Workload, error) {
	return sim.Agents{Scale: 4, Rate: rate, Requests: requests}, nil
}

func contests() []contest {
	const (
		tp2  = "qwen3-32b-h100-tp2"
		h100 = "llama-3.1-8b-h100"
		a100 = "llama-3.1-8b-a100"
		b200 = "llama-3.1-8b-rtxpro6000"
		moe  = "moe-480b-h200-tp8"
	)
	length := func(mean float64) sim.Length { return sim.Length{Mean: mean, Std: 0.3 * mean} }
	chat := sim.Conversations{Groups: 15, UsersPerGroup: 40, SystemTokens: 1500, Question: length(200), Output: length(300)}
	document := sim.Conversations{
		Groups: 15, UsersPerGroup: 40, SystemTokens: 500, Turns: 3,
		Question: sim.Length{Mean: 12_000, Std: 9_000, Shape: sim.LogNormal, Max: 60_000}, Output: length(500),
	}
	group := sim.Conversations{UsersPerGroup: 60, SystemTokens: 4000, Question: length(500), Output: length(400)}
	ladder := func(name, profile string, servers int, guess float64) contest {
		return contest{name: name + "-" + profile[:3], about: "scenario " + name + " on " + profile, fleet: profileFleet(servers, profile), work: scenarioWork(name), guess: guess}
	}
	shared := "../shared/traces/"
	all := []contest{
		ladder("A", tp2, 10, 80), ladder("B", tp2, 10, 20), ladder("C", tp2, 10, 10), ladder("D", tp2, 10, 4),
		ladder("A", h100, 8, 120), ladder("B", h100, 8, 30), ladder("C", h100, 8, 20), ladder("D", h100, 8, 8),
		{name: "sharegpt", about: "ShareGPT lengths, nothing shared", fleet: profileFleet(8, h100), work: scenarioWork("sharegpt"), guess: 120},
		{name: "agents", about: "coding agents", fleet: profileFleet(16, tp2), work: scenarioWork("agents"), saturation: 2.5},
		{name: "zipf", about: "400 groups by Zipf, a tenth of them fit", fleet: profileFleet(10, tp2), work: zipf(400, 1, group), guess: 30},
		{name: "bursts", about: "gamma arrivals, CV 3.5, documents among chats", fleet: profileFleet(10, tp2), work: bursts(3.5, []float64{0.9, 0.1}, chat, document), guess: 60},
		{name: "mixed", about: "scenario C on H100 and A100", fleet: mixedFleet(5, h100, a100), work: scenarioWork("C"), guess: 20},
		{name: "lame", about: "scenario B, one server half as fast without saying so", fleet: lameFleet(8, b200), work: scenarioWork("B"), guess: 20},
		{name: "conversation", about: "Mooncake's conversation trace", fleet: profileFleet(8, tp2), work: traceWork(shared + "mooncake_conversation_first_half.jsonl.gz"), guess: 10},

		{name: "shift", set: "held", about: "groups by Zipf that change three times", fleet: profileFleet(10, tp2), work: zipf(150, 4, group), guess: 30},
		{name: "flash", set: "held", about: "150 groups, a flash crowd at time zero", fleet: profileFleet(10, tp2), guess: 30,
			work: flash(sim.Conversations{Groups: 150, UsersPerGroup: 20, SystemTokens: 5000, Question: length(400), Output: length(300)})},
		{name: "bursts-15", set: "held", about: "gamma arrivals, CV 4, 15 groups", fleet: profileFleet(8, h100), work: bursts(4, []float64{1}, chat), guess: 120},
		{name: "mixed-docs", set: "held", about: "documents among chats on H100 and RTX PRO 6000", fleet: mixedFleet(4, h100, b200), work: bursts(1, []float64{0.8, 0.2}, chat, document), guess: 60},
		{name: "moe", set: "held", about: "long lognormal prompts on a mixture of experts", fleet: profileFleet(8, moe), guess: 40,
			work: bursts(1, []float64{1}, sim.Conversations{
				Groups: 1, UsersPerGroup: 2000, SystemTokens: 1000,
				Question: sim.Length{Mean: 2000, Std: 6000, Shape: sim.LogNormal, Max: 100_000}, Output: sim.Length{Mean: 300, Std: 900, Shape: sim.LogNormal, Max: 8192},
			})},
		{name: "tools", set: "held", about: "a trace like Mooncake's of tools and agents", fleet: profileFleet(8, tp2), work: traceWork(shared + "mooncake_toolagent_like_first_half.jsonl.gz"), guess: 10},
		{name: "azure-code", set: "held", about: "Azure's trace of code", fleet: profileFleet(8, h100), work: traceWork(shared + "azure_2023_code.csv.gz"), guess: 60},
		{name: "agents-8", set: "held", about: "coding agents, shorter, on 8 servers", fleet: profileFleet(8, h100), saturation: 6, work: agents},
	}
	for i := range all {
		all[i].set = cmp.Or(all[i].set, "tuned")
	}
	return slices.Concat(all, otherEngines(chat, document, group), programs())
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

// otherEngines are contests on engines that work differently from those the library was
// tuned on, or report less.
func otherEngines(chat, document, group sim.Conversations) []contest {
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
		{name: "flat-A", about: "scenario A, steps of one length", fleet: profileFleet(10, h100, flat), work: scenarioWork("A"), guess: 300},
		{name: "flat-C", about: "scenario C, steps of one length", fleet: profileFleet(10, h100, flat), work: scenarioWork("C"), guess: 120},
		{name: "flat-D", about: "scenario D, steps of one length", fleet: profileFleet(10, h100, flat), work: scenarioWork("D"), guess: 60},
		{name: "flat-shift", about: "groups that change, steps of one length", fleet: profileFleet(10, h100, flat), work: zipf(150, 4, group), guess: 200},
		{name: "straight-B", about: "scenario B, steps by tokens", fleet: profileFleet(10, h100, straight), work: scenarioWork("B"), guess: 40},
		{name: "straight-C", about: "scenario C, steps by tokens", fleet: profileFleet(10, h100, straight), work: scenarioWork("C"), guess: 25},
		{name: "first-C", about: "scenario C, prompts before decoding", fleet: profileFleet(8, h100, prefillFirst), work: scenarioWork("C"), guess: 20},
		{name: "first-bursts", about: "documents among chats in bursts, prompts before decoding", fleet: profileFleet(10, tp2, prefillFirst), work: mixture, guess: 60},
		{name: "first-agents", about: "coding agents, prompts before decoding", fleet: profileFleet(8, h100, prefillFirst), work: agents, saturation: 6},
		{name: "steep-docs", about: "documents among chats, ten times the attention, chunks of 512", fleet: profileFleet(8, h100, steep, batch(256, 512)), work: mixture, guess: 60},
		{name: "narrow-B", about: "scenario B, 32 at a time, chunks of 8,192", fleet: profileFleet(10, h100, batch(32, 8192)), work: scenarioWork("B"), guess: 25},
		{name: "narrow-C", about: "scenario C, 32 at a time, chunks of 8,192", fleet: profileFleet(10, h100, batch(32, 8192)), work: scenarioWork("C"), guess: 25},
		{name: "tiny-C", about: "scenario C, memory for 40,000 tokens", fleet: profileFleet(10, h100, blocks(2500)), work: scenarioWork("C"), guess: 10},
		{name: "tiny-zipf", about: "400 groups by Zipf, memory for 20,000 tokens", fleet: profileFleet(10, tp2, blocks(1250)), work: zipf(400, 1, group), guess: 15},
		{name: "vast-D", about: "scenario D, memory for a million tokens", fleet: profileFleet(10, tp2, blocks(62_500)), work: scenarioWork("D"), guess: 6},
		{name: "bare-flat-A", about: "flat-A, servers whose size is not known", fleet: profileFleet(10, h100, flat), work: scenarioWork("A"), guess: 300, config: unnamed},
		{name: "bare-narrow-C", about: "narrow-C, servers whose size is not known", fleet: profileFleet(10, h100, batch(32, 8192)), work: scenarioWork("C"), guess: 25, config: unnamed},
		{name: "bare-tiny-zipf", about: "tiny-zipf, servers whose size is not known", fleet: profileFleet(10, tp2, blocks(1250)), work: zipf(400, 1, group), guess: 15, config: unnamed},
		{name: "blind-C", about: "scenario C, servers that tell nothing", fleet: profileFleet(10, tp2), work: scenarioWork("C"), guess: 10, config: blind},
		{name: "blind-bursts", about: "documents among chats in bursts, servers that tell nothing", fleet: profileFleet(8, h100), work: mixture, guess: 60, config: blind},
		{name: "blind-agents", about: "coding agents, servers that tell nothing", fleet: profileFleet(8, h100), work: agents, saturation: 6, config: blind},
	}
	for i := range all {
		all[i].set = "foreign"
	}
	return all
}
