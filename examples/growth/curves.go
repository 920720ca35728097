package main

import (
	"fmt"
	"math"
	"runtime/debug"

	"github.com/endpick/endpick/prefix"
)

// curve is a figure of the page: how time or memory grows with one quantity.
type curve struct {
	Name   string   `json:"name"`
	X      string   `json:"x"`
	Y      string   `json:"y"`
	Series []series `json:"series"`
}

// series is one line of it.
type series struct {
	Name   string  `json:"name"`
	Points []point `json:"points"`
}

type point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

const (
	inS     = "decision (S)"
	inBytes = "memory (MB)"
	prompt  = 16384
)

// plan says what to measure.
type plan struct {
	endpoints, tokens, blocks, adapters []int
	rounds                              int
	only                                string // one of the groups below; empty: all
}

func fullPlan(rounds int) plan {
	return plan{
		endpoints: []int{10, 30, 100, 300, 1000, 3000, 10000},
		tokens:    []int{2048, 8192, 32768, 131072, 524288, 1048576},
		blocks:    []int{1500, 5000, 15000, 50000, 150000},
		adapters:  []int{1, 10, 100, 1000, 10000},
		rounds:    rounds,
	}
}

// blocksOf is how much of each endpoint the index remembers, if that is not what
// varies.
func blocksOf(endpoints int) int {
	if endpoints > 1000 {
		return 2000
	}
	return 10000
}

// run measures all curves, and calls tell for each when it is done.
func (p plan) run(tell func(string)) ([]curve, error) {
	var all []curve
	for _, group := range p.groups() {
		if p.only != "" && p.only != group.name {
			continue
		}
		curves, err := group.measure()
		if err != nil {
			return nil, err
		}
		for _, c := range curves {
			all = append(all, c)
			tell(c.Name)
		}
		debug.FreeOSMemory()
	}
	return all, nil
}

type curveGroup struct {
	name    string
	measure func() ([]curve, error)
}

func (p plan) groups() []curveGroup {
	return []curveGroup{
		{"endpoints", p.byEndpoints}, {"matches", p.byMatches}, {"tokens", p.byTokens}, {"index", p.byIndex}, {"adapters", p.byAdapters}, {"cores", p.byCores},
	}
}

// points measures fleets together, and returns their times and their memory.
func (p plan) points(settings []setting, x func(setting) int) (times, memory []point, err error) {
	var jobs []*job
	var fleets []*fleet
	for _, s := range settings {
		f, err := newFleet(s)
		if err != nil {
			return nil, nil, fmt.Errorf("%+v: %w", s, err)
		}
		fleets, jobs = append(fleets, f), append(jobs, &job{op: f.op})
	}
	unit := yardstick()
	measure(jobs, unit, p.rounds)
	for i, j := range jobs {
		at := float64(x(settings[i]))
		times = append(times, point{at, j.best / unit.best})
		memory = append(memory, point{at, float64(fleets[i].bytes) / 1e6})
	}
	return times, memory, nil
}

func (p plan) byEndpoints() ([]curve, error) {
	times := curve{Name: "endpoints", X: "endpoints", Y: inS}
	memory := curve{Name: "endpoints-memory", X: "endpoints", Y: inBytes}
	for _, policy := range []string{"least-loaded", "lmetric", "marginal-delay", "predicted-latency"} {
		var settings []setting
		for _, n := range p.endpoints {
			settings = append(settings, setting{policy: policy, endpoints: n, tokens: prompt, held: 0.1, blocks: blocksOf(n)})
		}
		t, m, err := p.points(settings, func(s setting) int { return s.endpoints })
		if err != nil {
			return nil, err
		}
		times.Series = append(times.Series, series{policy, t})
		memory.Series = append(memory.Series, series{policy, m})
	}
	return []curve{times, memory}, nil
}

func (p plan) byMatches() ([]curve, error) {
	times := curve{Name: "matches", X: "endpoints", Y: inS}
	for _, held := range []struct {
		name  string
		share float64
	}{{"held by none", 0}, {"by a tenth", 0.1}, {"by all", 1}} {
		var settings []setting
		for _, n := range p.endpoints {
			settings = append(settings, setting{policy: "lmetric", endpoints: n, tokens: prompt, held: held.share, blocks: blocksOf(n)})
		}
		t, _, err := p.points(settings, func(s setting) int { return s.endpoints })
		if err != nil {
			return nil, err
		}
		times.Series = append(times.Series, series{held.name, t})
	}
	return []curve{times}, nil
}

func (p plan) byTokens() ([]curve, error) {
	var settings []setting
	for _, n := range p.tokens {
		settings = append(settings, setting{policy: "lmetric", endpoints: 100, tokens: n, held: 0.1, blocks: max(n/8, 1000)})
	}
	tokens := func(s setting) int { return s.tokens }
	times, memory, err := p.points(settings, tokens)
	if err != nil {
		return nil, err
	}
	var hashes []point
	unit := yardstick()
	var jobs []*job
	for _, s := range settings {
		f := &fleet{setting: s, prompt: make([]uint32, s.tokens), index: nil}
		jobs = append(jobs, &job{op: f.onlyHash})
	}
	measure(jobs, unit, p.rounds)
	for i, j := range jobs {
		hashes = append(hashes, point{float64(settings[i].tokens), j.best / unit.best})
	}
	return []curve{
		{Name: "tokens", X: "tokens of a prompt", Y: inS, Series: []series{{"lmetric, 100 endpoints", times}, {"its hash", hashes}}},
		{Name: "tokens-memory", X: "tokens of a prompt", Y: inBytes, Series: []series{{"lmetric, 100 endpoints", memory}}},
	}, nil
}

func (p plan) byIndex() ([]curve, error) {
	var settings []setting
	for _, n := range p.blocks {
		settings = append(settings, setting{policy: "lmetric", endpoints: 100, tokens: prompt, held: 0.1, blocks: n})
	}
	times, memory, err := p.points(settings, func(s setting) int { return s.blocks * s.endpoints })
	if err != nil {
		return nil, err
	}
	const x = "blocks in the index, of 100 endpoints"
	return []curve{
		{Name: "index", X: x, Y: inS, Series: []series{{"lmetric", times}}},
		{Name: "index-memory", X: x, Y: inBytes, Series: []series{{"lmetric", memory}}},
	}, nil
}

func (p plan) byAdapters() ([]curve, error) {
	var settings []setting
	for _, n := range p.adapters {
		settings = append(settings, setting{policy: "lmetric", endpoints: 100, tokens: prompt, held: 0.1, blocks: 1500, adapters: n})
	}
	times, memory, err := p.points(settings, func(s setting) int { return s.adapters })
	if err != nil {
		return nil, err
	}
	const x = "adapters that each of 100 endpoints serves"
	return []curve{
		{Name: "adapters", X: x, Y: inS, Series: []series{{"lmetric", times}}},
		{Name: "adapters-memory", X: x, Y: inBytes, Series: []series{{"lmetric", memory}}},
	}, nil
}

// exponent is how the last two points grow: y as x to its power. NaN if there are
// fewer.
func (s *series) exponent() float64 {
	n := len(s.Points)
	if n < 2 {
		return math.NaN()
	}
	a, b := s.Points[n-2], s.Points[n-1]
	return math.Log(b.Y/a.Y) / math.Log(b.X/a.X)
}

// onlyHash only hashes the prompt of a request.
func (f *fleet) onlyHash() {
	f.number++
	f.prompt[len(f.prompt)/4] = f.number
	f.hashes = prefix.AppendTokens(f.hashes[:0], seed, f.prompt)
}
