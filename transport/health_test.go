package transport

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestHealthBacksOffAndRecovers(t *testing.T) {
	var h health
	at := time.Unix(1000, 0)
	isOut := func() bool { return slices.Contains(h.out(at, nil), "a") }
	h.failed("a", at)
	h.failed("a", at)
	assert.False(t, isOut(), "two failures are not enough")
	h.answered("a")
	h.failed("a", at)
	h.failed("a", at)
	assert.False(t, isOut(), "an answer in between starts the count anew")
	h.failed("a", at)
	assert.True(t, isOut())
	h.failed("a", at)
	at = at.Add(firstBackoff)
	assert.False(t, isOut(), "a late failure of a request sent before does not lengthen the backoff")

	for backoff := firstBackoff; backoff < 4*maxBackoff; backoff *= 2 {
		h.sent("a", at)
		assert.True(t, isOut(), "one trial at a time")
		h.failed("a", at)
		wait := min(2*backoff, maxBackoff)
		at = at.Add(wait - 1)
		assert.True(t, isOut(), "after %v", backoff)
		at = at.Add(1)
		assert.False(t, isOut(), "after %v", backoff)
	}

	h.sent("a", at)
	at = at.Add(maxBackoff)
	assert.False(t, isOut(), "a trial that never ends gives way to another")
	h.sent("a", at)
	h.answered("a")
	assert.False(t, isOut())
	assert.Zero(t, h.known.Load())
}

func TestHealthForgetsEndpointsThatAreGone(t *testing.T) {
	var h health
	at := time.Unix(1000, 0)
	for i := range 1000 {
		h.failed(string(rune('a'+i)), at)
		at = at.Add(time.Minute)
	}
	assert.LessOrEqual(t, len(h.suspects), int(forgetAfter/time.Minute)+2)
}

// Whatever happens, an endpoint is never left out for longer than maxBackoff
// from the last trial or failure, never before maxFailures in a row, and never
// after an answer.
func TestHealthProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h health
		at := time.Unix(1000, 0)
		ids := []string{"a", "b", "c"}
		inRow := map[string]int{}
		touched := map[string]time.Time{}
		t.Repeat(map[string]func(*rapid.T){
			"sent": func(t *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(t, "id")
				h.sent(id, at)
				touched[id] = at
			},
			"failed": func(t *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(t, "id")
				h.failed(id, at)
				inRow[id]++
				touched[id] = at
			},
			"answered": func(t *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(t, "id")
				h.answered(id)
				inRow[id] = 0
			},
			"wait": func(t *rapid.T) {
				at = at.Add(time.Duration(rapid.Int64Range(0, int64(maxBackoff)).Draw(t, "for")))
			},
			"": func(t *rapid.T) {
				for _, id := range h.out(at, nil) {
					if inRow[id] < maxFailures {
						t.Fatalf("%s is out after %d failures", id, inRow[id])
					}
					if at.Sub(touched[id]) >= maxBackoff {
						t.Fatalf("%s is out for too long", id)
					}
				}
				known := 0
				for _, n := range inRow {
					if n > 0 {
						known++
					}
				}
				if int(h.known.Load()) > known {
					t.Fatalf("%d are known, %d have failed", h.known.Load(), known)
				}
			},
		})
	})
}

func TestBudget(t *testing.T) {
	at := time.Unix(1000, 0)
	b := newBudget(0.2, 0, 2)
	take := func() (n int) { // all there are
		for b.retry(at) {
			n++
		}
		return n
	}
	assert.Equal(t, 2, take(), "full at the start")
	for range 4 {
		b.request(at)
	}
	assert.Equal(t, 0, take(), "four requests pay 0.8 of a retry")
	b.request(at)
	b.request(at)
	assert.Equal(t, 1, take())

	b = newBudget(0, 10, 2)
	b.request(at)
	assert.Equal(t, 2, take())
	at = at.Add(-time.Hour)
	assert.Equal(t, 0, take(), "a clock that steps back pays nothing")
	at = at.Add(time.Hour + 150*time.Millisecond)
	assert.Equal(t, 1, take(), "1.5 came back")
	at = at.Add(time.Hour)
	assert.Equal(t, 2, take(), "never more than the bucket holds")
}

// Over any run, retries are at most the bucket, the share of the requests, and
// the refill of the time that passed.
func TestBudgetBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(1000, 0)
		from := at
		b := newBudget(0.2, 5, 10)
		requests, retries := 0, 0
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			at = at.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "retry") {
				if b.retry(at) {
					retries++
				}
			} else {
				b.request(at)
				requests++
			}
		}
		most := 10 + 0.2*float64(requests) + 5*at.Sub(from).Seconds()
		if float64(retries) > most+1e-6 {
			t.Fatalf("%d retries, at most %v", retries, most)
		}
	})
}

func TestLearner(t *testing.T) {
	var l learner
	assert.InDelta(t, 0.25, l.rates("m").prompt(), 1e-12)
	assert.Zero(t, l.rates("m").meanOutput())
	// (300 + 256) / (1000 + 1024)
	l.learn("m", sample{promptTokens: 300, promptBytes: 1000, outputTokens: 50, outputBytes: 100, responses: 1})
	assert.InDelta(t, 556.0/2024, l.rates("m").prompt(), 1e-12)
	assert.InDelta(t, (50+256.0)/(100+1024), l.rates("m").content(), 1e-12)
	assert.InDelta(t, 50, l.rates("m").meanOutput(), 1e-12)
	assert.InDelta(t, 0.25, l.rates("other").prompt(), 1e-12, "models are apart")
	for range 1000 {
		l.learn("m", sample{promptTokens: 500, promptBytes: 1000, outputTokens: 30, outputBytes: 60, responses: 2})
	}
	assert.InDelta(t, 0.5, l.rates("m").prompt(), 0.005)
	assert.InDelta(t, 15, l.rates("m").meanOutput(), 0.01, "of each of two responses")

	before := l.rates("m")
	for _, s := range []sample{{}, {promptTokens: 1 << 30, promptBytes: 5}, {promptTokens: 1, promptBytes: 1 << 20}, {promptTokens: 5}, {promptBytes: 5}} {
		l.learn("m", s)
		assert.Equal(t, before, l.rates("m"), "%+v is not plausible", s)
	}
	for i := range 2 * maxModels {
		l.learn(string(rune(i+1000)), sample{promptTokens: 300, promptBytes: 1000})
	}
	assert.LessOrEqual(t, len(l.models), maxModels)
}
