package sim

import (
	"slices"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// AgentFigure is one published figure of coding agents' sessions, and that of
// [Agents].
type AgentFigure struct {
	Of        string  `json:"of"`        // what is measured
	Kind      string  `json:"kind"`      // program; empty: both
	Statistic string  `json:"statistic"` // mean, p50, p90, p99, or share
	Unit      string  `json:"unit"`
	Published float64 `json:"published"`
	Realised  float64 `json:"realised"`
}

// AgentFigures plays so many sessions to their ends, with answers that take as long as
// the published ones, and measures them like the publication: at Scale 1, with
// sub-agents' steps among the others. Sessions differ: fewer than 10,000 say little
// about tails.
func AgentFigures(seed uint64, sessions int) []AgentFigure {
	var c agentCensus
	for i := range sessions {
		c.add(newAgentSession(engine.Mix(seed), uint64(i), max(1, sessions/100), 0))
	}
	return c.figures()
}

// agentCensus collects statistics of sessions, in tokens and seconds.
type agentCensus struct {
	kinds                                           [len(agentKinds)]kindCensus
	generate, tool, human, request, session, output []float64
	requests                                        []float64 // of each session
	steps                                           float64
}

type kindCensus struct {
	prefix, appended, output []float64
	growth                   float64 // tokens
	grown                    float64 // steps that begin with the whole previous context
	sessions                 float64
	compacting, compactions  float64 // sessions with compactions, and their compactions
}

// add plays a session from its beginning at time zero.
func (c *agentCensus) add(s *agentSession) {
	var k *kindCensus
	for i := range agentKinds {
		if s.agentKind == &agentKinds[i] {
			k = &c.kinds[i]
		}
	}
	type last struct {
		end      time.Duration
		tokens   int
		requests int
	}
	before := map[*agent]last{}
	main, began, over := s.agents[0], time.Duration(0), time.Duration(0)
	requests, compactions := 1.0, 0.0
	s.play(1<<62, func(a *agent, t turn, end time.Duration) {
		c.steps++
		k.prefix = append(k.prefix, float64(t.prefix))
		k.appended = append(k.appended, float64(t.appended))
		k.output = append(k.output, float64(t.output))
		k.growth += float64(t.appended + t.output)
		c.generate = append(c.generate, (end - a.due).Seconds())
		b, again := before[a]
		switch pause := (a.due - b.end).Seconds(); {
		case !again:
		case b.requests == a.requests:
			c.tool = append(c.tool, pause)
		default:
			requests++
			c.human = append(c.human, pause)
			c.request = append(c.request, (b.end - began).Seconds())
			began = a.due
		}
		if t.prefix >= b.tokens {
			k.grown++
		} else if b.tokens+t.appended+t.output > a.window {
			compactions++
		}
		before[a] = last{end, a.tokens, a.requests}
		over = max(over, end)
	})
	c.request = append(c.request, (before[main].end - began).Seconds())
	c.session = append(c.session, over.Seconds())
	c.requests = append(c.requests, requests)
	k.sessions++
	k.compactions += compactions
	if compactions > 0 {
		k.compacting++
	}
}

// figures returns the published figures and those of the census.
func (c *agentCensus) figures() (all []AgentFigure) {
	var kind string
	add := func(of, statistic, unit string, published, realised float64) {
		all = append(all, AgentFigure{of, kind, statistic, unit, published, realised})
	}
	// published are alternating statistics and values, in the unit of the sample.
	sample := func(of, unit string, xs []float64, published ...any) {
		slices.Sort(xs)
		s := Summary{sorted: xs}
		for i := 0; i < len(published); i += 2 {
			statistic := published[i].(string)
			realised, ok := map[string]float64{"p50": s.Quantile(0.5), "p90": s.Quantile(0.9), "p99": s.Quantile(0.99)}[statistic]
			if !ok {
				realised, _ = meanAndDeviation(xs)
			}
			add(of, statistic, unit, published[i+1].(float64), realised)
		}
	}
	for i, published := range [...]struct{ prefix, prefix99, appended, output, grown, compacting, compactions float64 }{
		{126_000, 918_000, 857, 252, 99.6, 4.5, 2.4},
		{116_000, 231_000, 886, 184, 96.6, 18.4, 4.2},
	} {
		k := &c.kinds[i]
		kind = agentKinds[i].name
		steps := float64(len(k.prefix))
		sample("cached prefix of a step", "tokens", k.prefix, "p50", published.prefix, "p99", published.prefix99)
		sample("appended by a step", "tokens", k.appended, "p50", published.appended)
		sample("output of a step", "tokens", k.output, "p50", published.output)
		add("growth by a step", "mean", "tokens", 1750, k.growth/steps) // 1.7 to 1.8 thousand
		add("steps on which the context grows", "share", "%", published.grown, 100*k.grown/steps)
		add("sessions that compact", "share", "%", published.compacting, 100*k.compacting/k.sessions)
		add("compactions of such a session", "mean", "", published.compactions, k.compactions/k.compacting)
		c.output = append(c.output, k.output...)
	}
	kind = ""
	alone := 0.0
	for _, n := range c.requests {
		if n == 1 {
			alone++
		}
	}
	sessions := float64(len(c.requests))
	sample("output of a step", "tokens", c.output, "p90", 1700.0) // "under 1.7 thousand"
	sample("generation", "s", c.generate, "mean", 13.2, "p50", 5.7, "p90", 22.2, "p99", 84.0)
	sample("tool pause", "s", c.tool, "mean", 18.4, "p50", 0.3, "p90", 13.6, "p99", 216.0)
	sample("human pause", "s", c.human, "mean", 2802.0, "p50", 84.0, "p90", 1236.0, "p99", 50_040.0)
	sample("request, all its steps", "s", c.request, "mean", 258.0, "p50", 38.0, "p90", 384.0, "p99", 2640.0)
	sample("session", "s", c.session, "mean", 29_520.0, "p50", 306.0, "p90", 21_240.0, "p99", 745_200.0)
	sample("requests of a session", "", c.requests, "mean", 9.2, "p99", 137.0)
	add("tool-initiated steps of a session", "mean", "", 73.6, (c.steps-float64(len(c.request)))/sessions)
	add("sessions without a second message", "share", "%", 58.5, 100*alone/sessions)
	return all
}
