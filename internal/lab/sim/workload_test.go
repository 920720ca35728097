package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
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
	require.Equal(t, 7.0, mean)
	require.Zero(t, std)
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
		want := cv
		if cv == 0 {
			want = 1
		}
		require.InEpsilon(t, want, std/mean, 0.05)
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
	_, err := endless.Start(0)
	require.ErrorContains(t, err, "do not end")
	_, err = Conversations{Groups: 1, UsersPerGroup: 1, Requests: 1}.Start(0)
	require.ErrorContains(t, err, "have no Arrivals")
	_, err = Scenario("E")
	require.EqualError(t, err, `sim: Scenario "E" is unknown (known: A, B, C, D, agents, production, sharegpt)`)
	for _, name := range ScenarioNames() {
		_, err = rig.Must(rig.Must(Scenario(name)).Workload.At(Pace{Rate: 1, Requests: 1})).Start(0)
		require.NoError(t, err)
	}
	_, err = (&Trace{Records: []Record{{InputTokens: 1}}, Name: "x"}).Start(0)
	require.EqualError(t, err, "sim: x:1: OutputTokens 0 is not within [1, 16777216]")
}
