package transport

import (
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

var told = sample{promptTokens: 100, promptBytes: 200, outputTokens: 10, outputBytes: 30, responses: 1}

// A model has a place once something was learned of it, and keeps it as long as it
// is asked for: however many others come, the tables stay as they are.
func TestModelsGiveWayToOthers(t *testing.T) {
	var l learner
	l.rates("asked for")
	l.learn("failed", sample{})
	l.learn("not understood", sample{promptTokens: 5, responses: 3})
	l.learn("implausible", sample{promptTokens: 1, promptBytes: 1 << 20})
	assert.Empty(t, l.models, "whoever invents a name gets no place for it")

	l.learn("used", told)
	l.learn("unused", told)
	for i := range 2 * maxModels {
		l.learn(strconv.Itoa(i), told)
		assert.Positive(t, l.rates("used").meanOutput())
	}
	assert.Len(t, l.models, maxModels)
	assert.Zero(t, l.rates("unused"))
	assert.Zero(t, l.rates("0"))
	assert.Positive(t, l.rates(strconv.Itoa(2*maxModels-1)).meanOutput())
	assert.Zero(t, l.rates(strconv.Itoa(maxModels)), "one place is taken by what is used")
	assert.Positive(t, l.rates(strconv.Itoa(maxModels+1)).meanOutput())

	// What is learned again and again stays, too, without being asked for.
	for i := range 2 * maxModels {
		l.learn("learned", told)
		l.learn("x"+strconv.Itoa(i), told)
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
				l.learn(strconv.Itoa((i*7+g)%3000), told)
				l.rates(strconv.Itoa(i))
			}
		})
	}
	all.Wait()
	assert.LessOrEqual(t, len(l.models), maxModels)
}
