package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// answered is a request of agents and when its answer was complete.
type answered struct {
	Request
	agent   *agent
	segment uint64
	end     time.Duration
}

// drive answers each request of the source after a time of the caller's choice.
func drive(t require.TestingT, g Agents, seed uint64, answer func(n int) time.Duration, check func(s *agentSource, a *agent, r *Request)) []*answered {
	source, err := g.Start(seed)
	require.NoError(t, err)
	s := source.(*agentSource)
	var all []*answered
	flying := newTimers(0)
	last := time.Duration(0)
	for {
		at, more := s.Next()
		if n, end, ok := flying.first(); ok && (!more || end <= at) {
			flying.set(n, 0, false)
			last = end
			s.Done(&all[n].Request, end)
			continue
		}
		if !more {
			return all
		}
		require.GreaterOrEqual(t, at, last, "time goes back")
		last = at
		r := s.Take()
		r.Arrival = at
		a := s.agents[r.Handle]
		if check != nil {
			check(s, a, &r)
		}
		n := flying.add()
		all = append(all, &answered{r, a, a.segment, at + answer(n)})
		flying.set(n, all[n].end, true)
	}
}

// With random rates, scales and response times: no more requests than asked for; an
// agent's steps follow one another, its sub-agents' come between two of them; prompts
// continue the previous answer until the context is cut, and then keep at least what a
// developer's sessions share; nothing handed out changes.
func TestAgentsStepByStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Agents{
			Rate:       rapid.Float64Range(0.05, 0.3).Draw(t, "rate"),
			Scale:      rapid.SampledFrom([]float64{0, 1, 2, 7.5, 16, 1024}).Draw(t, "scale"),
			developers: rapid.IntRange(0, 5).Draw(t, "developers"),
			Requests:   rapid.IntRange(1, 300).Draw(t, "requests"),
		}
		answers := rapid.SliceOfN(rapid.IntRange(0, 100_000), 1, 5).Draw(t, "answers")
		inFlight := map[*agent]time.Duration{} // until when
		var copies [][]uint64
		all := drive(t, g, rapid.Uint64().Draw(t, "seed"), func(n int) time.Duration {
			return time.Duration(answers[n%len(answers)]) * time.Millisecond
		}, func(s *agentSource, a *agent, r *Request) {
			copies = append(copies, slices.Clone(r.Blocks))
			require.GreaterOrEqual(t, r.Arrival, time.Duration(0))
			require.Positive(t, r.InputTokens)
			require.Positive(t, r.OutputTokens)
			require.LessOrEqual(t, len(r.Blocks), (r.InputTokens+r.OutputTokens)/BlockTokens)
			require.GreaterOrEqual(t, len(r.Blocks), (r.InputTokens+r.OutputTokens)/BlockTokens-1)
			require.LessOrEqual(t, float64(r.InputTokens+r.OutputTokens), float64(a.window)/s.Scale+2)
			require.Zero(t, a.tasks, "an agent goes on before its sub-agents have ended")
			if a.parent != nil {
				require.Positive(t, a.parent.tasks)
			}
			live := 0
			for _, other := range s.agents {
				if other != nil {
					live++
					require.Contains(t, other.session.agents, other, "who has ended is let go")
				}
			}
			require.Equal(t, len(s.agents), live+len(s.free))
		})
		require.Len(t, all, g.Requests)
		before := map[*agent]*answered{}
		for i, r := range all {
			require.True(t, slices.Equal(copies[i], r.Blocks), "a request's blocks have changed")
			b := before[r.agent]
			before[r.agent] = r
			inFlight[r.agent] = r.end
			if p := r.agent.parent; p != nil {
				require.LessOrEqual(t, inFlight[p], r.Arrival, "a parent waits for its sub-agents")
			}
			if b == nil {
				continue
			}
			require.GreaterOrEqual(t, r.Arrival-b.end, 9*time.Millisecond, "a step before the answer to the last one")
			common := int(float64(r.agent.session.common)/max(1, g.Scale)) / BlockTokens
			if b.segment == r.segment {
				require.Equal(t, len(b.Blocks), commonHead(b.Blocks, r.Blocks))
				require.GreaterOrEqual(t, r.InputTokens, b.InputTokens)
			} else {
				require.GreaterOrEqual(t, commonHead(b.Blocks, r.Blocks), min(common, len(b.Blocks), len(r.Blocks)))
			}
		}
	})
}

func commonHead(a, b []uint64) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestAgentsRefused(t *testing.T) {
	_, err := Agents{Rate: 1}.Start(1)
	require.EqualError(t, err, "sim: Agents does not end: Requests or Duration is needed")
	_, err = Agents{}.At(Pace{RateScale: 2})
	require.EqualError(t, err, "sim: Pace.Rate is needed: the workload has no arrivals of its own")
}

// A parent continues once all of its sub-agents have reported, after the latest of
// them, in whatever order they do.
func TestAParentWaitsForTheLatest(t *testing.T) {
	for _, ends := range [][2]time.Duration{{50 * time.Second, 100 * time.Second}, {100 * time.Second, 50 * time.Second}} {
		s := newAgentSession(1, 1, 1, 0)
		p := s.agents[0]
		p.tasks = 2
		first, second := s.newAgent(p, &p.random), s.newAgent(p, &p.random)
		require.Empty(t, first.report(ends[0], nil))
		require.Equal(t, []*agent{p}, second.report(ends[1], nil))
		require.Equal(t, 100*time.Second+seconds(agentTool[0].value), p.due)
		require.Equal(t, []*agent{p}, s.agents)
	}
}
