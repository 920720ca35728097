package dialect

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
)

var learned = sample{promptTokens: 100, promptBytes: 200, outputTokens: 10, outputBytes: 30, responses: 1}

// A model gets a place once something has been learned of it, and keeps it as long
// as it is used: however many others come, the tables stay.
func TestModelsGiveWayToOthers(t *testing.T) {
	var l learner
	l.rates("asked for")
	l.learn("failed", sample{})
	l.learn("not understood", sample{promptTokens: 5, responses: 3})
	l.learn("implausible", sample{promptTokens: 1, promptBytes: 1 << 20})
	assert.Empty(t, l.models, "whoever invents a name gets no place for it")

	l.learn("used", learned)
	l.learn("unused", learned)
	for i := range 2 * maxModels {
		l.learn(strconv.Itoa(i), learned)
		assert.Positive(t, l.rates("used").meanOutput())
	}
	assert.Len(t, l.models, maxModels)
	assert.Zero(t, l.rates("unused"))
	assert.Zero(t, l.rates("0"))
	assert.Positive(t, l.rates(strconv.Itoa(2*maxModels-1)).meanOutput())
	assert.Zero(t, l.rates(strconv.Itoa(maxModels)), "one place is taken by what is used")
	assert.Positive(t, l.rates(strconv.Itoa(maxModels+1)).meanOutput())

	// A model that keeps being learned from stays as well, even without requests.
	for i := range 2 * maxModels {
		l.learn("learned", learned)
		l.learn("x"+strconv.Itoa(i), learned)
	}
	assert.Positive(t, l.rates("learned").meanOutput())
	assert.Zero(t, l.rates("used"))
}

func TestLearnerIsSafeForConcurrentUse(t *testing.T) {
	var l learner
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 500 {
				l.learn(strconv.Itoa((i*7+g)%3000), learned)
				l.rates(strconv.Itoa(i))
			}
		})
	}
	all.Wait()
	assert.LessOrEqual(t, len(l.models), maxModels)
}

func TestLearner(t *testing.T) {
	var l learner
	assert.InDelta(t, 0.25, l.rates("m").prompts.perByte(), 1e-12)
	assert.Zero(t, l.rates("m").meanOutput())
	// (300 + 256) / (1000 + 1024)
	l.learn("m", sample{promptTokens: 300, promptBytes: 1000, outputTokens: 50, outputBytes: 100, responses: 1})
	assert.InDelta(t, 556.0/2024, l.rates("m").prompts.perByte(), 1e-12)
	assert.InDelta(t, (50+256.0)/(100+1024), l.rates("m").contents.perByte(), 1e-12)
	assert.InDelta(t, 50, l.rates("m").meanOutput(), 1e-12)
	assert.InDelta(t, 0.25, l.rates("other").prompts.perByte(), 1e-12, "models are apart")
	for range 1000 {
		l.learn("m", sample{promptTokens: 500, promptBytes: 1000, outputTokens: 30, outputBytes: 60, responses: 2})
	}
	assert.InDelta(t, 0.5, l.rates("m").prompts.perByte(), 0.005)
	assert.InDelta(t, 15, l.rates("m").meanOutput(), 0.01, "of each of two responses")

	// What was cached is a part of the prompt.
	w := newTalk(t)
	for range 1000 {
		w.answer(w.ask("/v1/completions", `{"model":"m","prompt":"`+strings.Repeat("word ", 200)+`"}`, nil), "application/json",
			`{"usage":{"prompt_tokens":500,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":400}}}`, endpick.Completed)
	}
	assert.InDelta(t, 0.5, w.ask("/v1/completions", `{"model":"m","prompt":"x"}`, nil).Request.BlockTokens/prefix.BlockBytes, 0.005)

	before := l.rates("m")
	for _, s := range []sample{{}, {promptTokens: 1 << 30, promptBytes: 5}, {promptTokens: 1, promptBytes: 1 << 20}, {promptTokens: 5}, {promptBytes: 5}} {
		l.learn("m", s)
		after := l.rates("m")
		after.used = before.used
		assert.Equal(t, before, after, "%+v is not plausible", s)
	}
}

// What one response says moves what is expected of all by a little, whatever it says.
func TestOneVoteIsOneVote(t *testing.T) {
	var l learner
	usual := sample{promptTokens: 250, promptBytes: 1000, outputTokens: 200, outputBytes: 800, responses: 1}
	for range 200 {
		l.learn("m", usual)
	}
	for _, absurd := range []sample{
		{outputTokens: 1 << 30, outputBytes: 800, responses: 1},
		{outputTokens: 1 << 30, outputBytes: 800, responses: 4},
		{outputTokens: 1, responses: 1},
		{promptTokens: 20 << 20, promptBytes: 10 << 20},
		{promptTokens: 40 << 10, promptBytes: 10 << 20},
	} {
		before := l.rates("m")
		l.learn("m", absurd)
		after := l.rates("m")
		assert.InEpsilon(t, before.meanOutput(), after.meanOutput(), 0.26, absurd)
		assert.InEpsilon(t, before.prompts.perByte(), after.prompts.perByte(), 0.45, absurd)
		assert.InEpsilon(t, before.contents.perByte(), after.contents.perByte(), 0.03, absurd)
		for range 300 {
			l.learn("m", usual)
		}
	}
	assert.InEpsilon(t, 200, l.rates("m").meanOutput(), 0.02)
}
