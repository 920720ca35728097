package health

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// takeAll is how many retries there are.
func (b *Budget) takeAll(now time.Time) (n int) {
	for b.Retry(now) {
		n++
	}
	return n
}

func TestBudget(t *testing.T) {
	at := time.Unix(1000, 0)
	b := NewBudget(0.2, 0, 2)
	take := func() int { return b.takeAll(at) }
	assert.Equal(t, 2, take(), "full at the start")
	for range 4 {
		b.Request(at)
	}
	assert.Equal(t, 0, take(), "four requests pay 0.8 of a retry")
	b.Request(at)
	b.Request(at)
	assert.Equal(t, 1, take())

	for range 1000 { // at one moment
		b.Request(at)
	}
	assert.Equal(t, 2, take(), "never more than the bucket holds")

	b = NewBudget(0, 10, 2)
	b.Request(at)
	assert.Equal(t, 2, take())
	at = at.Add(-time.Hour)
	assert.Equal(t, 0, take(), "a clock that steps back pays nothing")
	at = at.Add(time.Hour + 150*time.Millisecond)
	assert.Equal(t, 1, take(), "1.5 came back")
	at = at.Add(time.Hour)
	assert.Equal(t, 2, take(), "never more than the bucket holds")
}

// In any run, retries are at most the bucket, the share of the requests, and
// the refill of the time that passed.
func TestBudgetBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(1000, 0)
		from := at
		b := NewBudget(0.2, 5, 10)
		requests, retries := 0, 0
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			at = at.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "retry") {
				if b.Retry(at) {
					retries++
				}
			} else {
				b.Request(at)
				requests++
			}
		}
		most := 10 + 0.2*float64(requests) + 5*at.Sub(from).Seconds()
		if float64(retries) > most+1e-6 {
			t.Fatalf("%d retries, at most %v", retries, most)
		}
	})
}

// A clock that is set back takes nothing out of the bucket and refills nothing twice.
func TestBudgetWhereTheClockIsSetBack(t *testing.T) {
	start := time.Unix(1000, 0)
	b := NewBudget(0, 1, 10)
	assert.Equal(t, 10, b.takeAll(start))
	assert.Equal(t, 3, b.takeAll(start.Add(3*time.Second)))
	b.Request(start.Add(7 * time.Second)) // four more
	b.Request(start.Add(-time.Hour))
	assert.Equal(t, 4, b.takeAll(start.Add(time.Second)))
	assert.Zero(t, b.takeAll(start.Add(7*time.Second)))
	assert.Equal(t, 2, b.takeAll(start.Add(9*time.Second)))
}
