package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestLengths(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	stats := func(l Length) (mean, std float64) {
		var m moments
		for range 200_000 {
			x := l.draw(random)
			require.True(t, l.Max == 0 || x <= l.Max)
			m.add(float64(x))
		}
		return m.meanStd()
	}
	mean, std := stats(Length{Mean: 1000, Std: 300})
	require.InDelta(t, 1000, mean, 5)
	require.InDelta(t, 300, std, 5)
	mean, std = stats(Length{Mean: 500, Std: 800, Shape: LogNormal})
	require.InEpsilon(t, 500, mean, 0.03)
	require.InEpsilon(t, 800, std, 0.1)
	mean, std = stats(Length{Mean: 7})
	require.Equal(t, []float64{7, 0}, []float64{mean, std})
	require.Zero(t, Length{}.draw(random))

	// The production workload's question: mean 729, std 13,550. As a clipped normal its
	// mean is near 5,800; as a lognormal it stays near the requested one.
	clipped, _ := stats(Length{Mean: 729, Std: 13_550, Max: 131_072})
	require.InEpsilon(t, 5_800, clipped, 0.02)
	skewed, _ := stats(Length{Mean: 729, Std: 13_550, Max: 131_072, Shape: LogNormal})
	require.InEpsilon(t, 729, skewed, 0.25)
}

func TestArrivals(t *testing.T) {
	draw := func(a Arrivals, until time.Duration) (times []time.Duration) {
		c := newClock(a, rand.New(rand.NewPCG(3, 4)))
		for {
			at, ok := c.next()
			if !ok || at > until {
				return times
			}
			require.True(t, len(times) == 0 || at >= times[len(times)-1])
			times = append(times, at)
		}
	}
	between := func(times []time.Duration, from, to float64) (n float64) {
		for _, at := range times {
			if at.Seconds() >= from && at.Seconds() < to {
				n++
			}
		}
		return n
	}
	for _, cv := range []float64{0, 0.2, 1, 4} {
		a := ConstantRate(50)
		a.CV = cv
		times := draw(a, 2000*time.Second)
		require.InEpsilon(t, 100_000, len(times), 0.03, "cv %v", cv)
		var gaps moments
		for i := range times[1:] {
			gaps.add((times[i+1] - times[i]).Seconds())
		}
		mean, std := gaps.meanStd()
		if cv == 0 {
			cv = 1
		}
		require.InEpsilon(t, cv, std/mean, 0.05)
	}
	ladder := draw(Ladder(50, 250, 4, 10*time.Second).Scaled(2), time.Hour)
	for i, want := range []float64{1000, 5000, 1000, 5000} {
		require.InEpsilon(t, want, between(ladder, float64(10*i), float64(10*i+10)), 0.1)
	}
	require.Less(t, ladder[len(ladder)-1], 40*time.Second)
}

func TestConversationsGoOn(t *testing.T) {
	c := Conversations{
		Groups: 2, UsersPerGroup: 1, SystemTokens: 100, Question: Length{Mean: 30}, Output: Length{Mean: 50},
		Turns: 2, Arrivals: ConstantRate(1000), Requests: 7,
	}
	s := rig.Must(c.Start(1))
	a, b := s.Take(), s.Take()
	require.NotEqual(t, a.Tenant, b.Tenant)
	require.NotEqual(t, a.Blocks[0], b.Blocks[0], "groups share nothing")
	_, ok := s.Next()
	require.False(t, ok, "both users wait for an answer")

	require.Equal(t, 130, a.InputTokens)
	require.Len(t, a.Blocks, 180/16)
	require.Len(t, a.promptBlocks(), 130/16)
	s.Done(&a, time.Second)
	a2 := s.Take()
	require.Equal(t, a.Handle, a2.Handle)
	require.Equal(t, 210, a2.InputTokens) // 100 + 30 + 50 + 30
	require.Equal(t, a.Blocks, a2.Blocks[:len(a.Blocks)])
	s.Done(&a2, 2*time.Second)
	a3 := s.Take() // a new conversation after two turns: it shares only the system prompt
	require.Equal(t, 130, a3.InputTokens)
	require.Equal(t, a.Blocks[:100/16], a3.Blocks[:100/16])
	require.NotEqual(t, a.Blocks[100/16], a3.Blocks[100/16])
}

func TestRefusedWorkloads(t *testing.T) {
	endless := Conversations{Groups: 1, UsersPerGroup: 1, Question: Length{Mean: 30}, Output: Length{Mean: 50}, Arrivals: ConstantRate(1)}
	require.ErrorContains(t, rig.Err(endless.Start(0)), "do not end")
	require.ErrorContains(t, rig.Err(Conversations{Groups: 1, UsersPerGroup: 1, Requests: 1}.Start(0)), "have no Arrivals")
	require.EqualError(t, rig.Err(Scenario("E")), `sim: Scenario "E" is unknown (known: A, B, C, D, agents, production, sharegpt)`)
	for _, name := range ScenarioNames() {
		rig.Must(rig.Must(rig.Must(Scenario(name)).Workload.At(Pace{Rate: 1, Requests: 1})).Start(0))
	}
	_, err := (&Trace{Records: []Record{{InputTokens: 1}}, Name: "x"}).Start(0)
	require.EqualError(t, err, "sim: x:1: OutputTokens 0 is not within [1, 16777216]")
}

func bySession(all []Request) map[string][]Request {
	sessions := map[string][]Request{}
	for _, r := range all {
		sessions[r.Session] = append(sessions[r.Session], r)
	}
	return sessions
}

// Steps continue their context, after a pause; sessions of a group share its beginning.
func TestSessionsContinue(t *testing.T) {
	is := func(n float64) Length { return Length{Mean: n} }
	w := Sessions{Groups: 1, System: is(1600), Own: is(800), Adds: is(160), Output: is(320), Turns: is(5), Pause: is(2000), Rate: 5, Requests: 500}
	all := requestsOf(w, time.Second)
	require.Len(t, all, 500)
	assert.InDelta(t, 100, all[499].Arrival.Seconds(), 30, "the rate is that of requests, from the beginning")
	assert.Equal(t, all, requestsOf(w, time.Second), "equal seeds give equal work")
	for _, s := range bySession(all) {
		assert.LessOrEqual(t, len(s), 5)
		assert.GreaterOrEqual(t, commonHead(s[0].Blocks, all[0].Blocks), 100, "the group's")
		for i := 1; i < len(s); i++ {
			assert.Equal(t, s[i-1].InputTokens+320+160, s[i].InputTokens)
			assert.Equal(t, len(s[i-1].Blocks), commonHead(s[i-1].Blocks, s[i].Blocks))
			assert.Equal(t, 3*time.Second, s[i].Arrival-s[i-1].Arrival)
		}
	}
}

// Branches begin with the context and end before the next step, which does not have what they did.
func TestSessionsBranch(t *testing.T) {
	is := func(n float64) Length { return Length{Mean: n} }
	w := Sessions{
		Groups: 2, System: is(1600), Adds: is(160), Output: is(160), Turns: is(2), Pause: is(10), Rate: 1, Requests: 200,
		Fan: is(3), FanEvery: 1, BranchTurns: 2, Part: is(480),
	}
	assert.Equal(t, 2+3*2.0, w.perSession())
	whole := 0
	for _, s := range bySession(requestsOf(w, time.Second)) {
		if len(s) != 8 {
			continue // it was under way when the run began, or is when it ends
		}
		whole++
		inputs := []int{}
		for _, r := range s[1:7] {
			assert.GreaterOrEqual(t, commonHead(s[0].Blocks, r.Blocks), 120)
			inputs = append(inputs, r.InputTokens)
		}
		slices.Sort(inputs)
		assert.Equal(t, []int{2560, 2560, 2560, 2880, 2880, 2880}, inputs)
		assert.Equal(t, 2080, s[7].InputTokens)
		assert.Equal(t, 120, commonHead(s[1].Blocks, s[7].Blocks), "nothing of theirs")
	}
	assert.Greater(t, whole, 5)
	assert.Error(t, rig.Err(Sessions{}.Start(1)))
}

// answered is a request of agents and when its answer was complete.
type answered struct {
	Request
	agent   *agent
	segment uint64
	end     time.Duration
}

// drive answers each request of the source after a time of the caller's choice.
func drive(t require.TestingT, g Agents, seed uint64, answer func(n int) time.Duration, check func(s *agentSource, a *agent, r *Request)) []*answered {
	s := rig.Must(g.Start(seed)).(*agentSource)
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
			live := slices.DeleteFunc(slices.Clone(s.agents), func(a *agent) bool { return a == nil })
			for _, other := range live {
				require.Contains(t, other.session.agents, other, "who has ended is let go")
			}
			require.Len(t, s.agents, len(live)+len(s.free))
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
	require.EqualError(t, rig.Err(Agents{Rate: 1}.Start(1)), "sim: Agents does not end: Requests or Duration is needed")
	require.EqualError(t, rig.Err(Agents{}.At(Pace{RateScale: 2})), "sim: Pace.Rate is needed: the workload has no arrivals of its own")
}

// A parent continues once all of its sub-agents have reported, after the latest of them, in whatever order they do.
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
