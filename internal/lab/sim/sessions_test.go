package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	all := requestsOf(t, w, time.Second)
	require.Len(t, all, 500)
	assert.InDelta(t, 100, all[499].Arrival.Seconds(), 30, "the rate is that of requests, from the beginning")
	assert.Equal(t, all, requestsOf(t, w, time.Second), "equal seeds give equal work")
	for _, s := range bySession(all) {
		assert.LessOrEqual(t, len(s), 5)
		assert.Equal(t, 100, commonHead(s[0].Blocks, all[0].Blocks)-max(commonHead(s[0].Blocks, all[0].Blocks)-100, 0), "the group's")
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
	for _, s := range bySession(requestsOf(t, w, time.Second)) {
		if len(s) != 8 {
			continue // it was under way when the run began, or is when it ends
		}
		whole++
		for _, r := range s[1:7] {
			assert.GreaterOrEqual(t, commonHead(s[0].Blocks, r.Blocks), 120)
		}
		inputs := []int{}
		for _, r := range s[1:7] {
			inputs = append(inputs, r.InputTokens)
		}
		slices.Sort(inputs)
		assert.Equal(t, []int{2560, 2560, 2560, 2880, 2880, 2880}, inputs)
		assert.Equal(t, 2080, s[7].InputTokens)
		assert.Equal(t, 120, commonHead(s[1].Blocks, s[7].Blocks), "nothing of theirs")
	}
	assert.Greater(t, whole, 5)
	_, err := Sessions{}.Start(1)
	assert.Error(t, err)
}
