package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inASecond takes all requests, each of which ends a second after it was sent.
func inASecond(t *testing.T, w Workload) (all []Request) {
	source, err := w.Start(1)
	require.NoError(t, err)
	var open []Request
	for {
		at, more := source.Next()
		if len(open) > 0 && (!more || open[0].Arrival+time.Second <= at) {
			r := open[0]
			open = open[1:]
			source.Done(&r, r.Arrival+time.Second)
			continue
		}
		if !more {
			return all
		}
		r := source.Take()
		r.Arrival = at
		all, open = append(all, r), append(open, r)
	}
}

// shared is how many blocks two requests have in common.
func sharedBlocks(a, b Request) int {
	n := 0
	for n < min(len(a.Blocks), len(b.Blocks)) && a.Blocks[n] == b.Blocks[n] {
		n++
	}
	return n
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
	all := inASecond(t, w)
	require.Len(t, all, 500)
	assert.InDelta(t, 100, all[499].Arrival.Seconds(), 30, "the rate is that of requests, from the beginning")
	assert.Equal(t, all, inASecond(t, w), "equal seeds give equal work")
	for _, s := range bySession(all) {
		assert.LessOrEqual(t, len(s), 5)
		assert.Equal(t, 100, sharedBlocks(s[0], all[0])-max(sharedBlocks(s[0], all[0])-100, 0), "the group's")
		for i := 1; i < len(s); i++ {
			assert.Equal(t, s[i-1].InputTokens+320+160, s[i].InputTokens)
			assert.Equal(t, len(s[i-1].Blocks), sharedBlocks(s[i-1], s[i]))
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
	for _, s := range bySession(inASecond(t, w)) {
		if len(s) != 8 {
			continue // it was under way when the run began, or is when it ends
		}
		whole++
		for _, r := range s[1:7] {
			assert.GreaterOrEqual(t, sharedBlocks(s[0], r), 120)
		}
		inputs := []int{}
		for _, r := range s[1:7] {
			inputs = append(inputs, r.InputTokens)
		}
		slices.Sort(inputs)
		assert.Equal(t, []int{2560, 2560, 2560, 2880, 2880, 2880}, inputs)
		assert.Equal(t, 2080, s[7].InputTokens)
		assert.Equal(t, 120, sharedBlocks(s[1], s[7]), "nothing of theirs")
	}
	assert.Greater(t, whole, 5)
	_, err := Sessions{}.Start(1)
	assert.Error(t, err)
}
