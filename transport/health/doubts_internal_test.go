package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// tale is a router with a filter, on a simulated clock, and requests that the test sends
// to servers of its choice.
type tale struct {
	router *endpick.Router
	now    time.Time
	open   map[string]endpick.Lease
	blamed []string // servers, once for each failure that counts
	filter *Filter
	served int // requests, at servers that have failed others
}

func newTale(t *testing.T) *tale {
	w := &tale{now: time.Unix(1e9, 0), open: map[string]endpick.Lease{}, filter: NewFilter()}
	w.filter.core.Tell(func(id string, failed bool) {
		if failed {
			w.blamed = append(w.blamed, id)
		} else {
			w.served++
		}
	})
	config := endpick.Config{Policy: w.filter.Guard(endpick.Policy{}), Clock: func() time.Time { return w.now }}
	for i := range 3 {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint("s", i)})
	}
	var err error
	w.router, err = endpick.New(config)
	require.NoError(t, err)
	return w
}

// send sends a request to a server.
func (w *tale) send(t *testing.T, req endpick.Request, to string) endpick.Lease {
	for _, id := range []string{"s0", "s1", "s2"} {
		if id != to {
			req.Exclude = append(req.Exclude, id)
		}
	}
	lease, err := w.router.Route(req)
	require.NoError(t, err)
	return lease
}

var ends = map[byte]endpick.Status{'+': endpick.Completed, '-': endpick.Failed, '~': endpick.Canceled}

// tell does what the words say: "x>0" sends request x to s0, and "x0" and a sign ends it
// as completed (+), failed (-) or canceled (~), or gives it its first token ('); a duration
// passes, and then another request is sent, so that the filter looks.
func (w *tale) tell(t *testing.T, words string) {
	for word := range strings.FieldsSeq(words) {
		if d, err := time.ParseDuration(word); err == nil {
			w.now = w.now.Add(d)
			w.send(t, endpick.Request{Model: "another"}, "s2").Done(endpick.Outcome{Status: endpick.Canceled})
		} else if name, to, sends := strings.Cut(word, ">"); sends {
			w.open[name+to] = w.send(t, endpick.Request{Model: name}, "s"+to)
		} else if word[2] == '\'' {
			w.open[word[:2]].FirstToken()
		} else {
			require.True(t, w.open[word[:2]].Done(endpick.Outcome{Status: ends[word[2]]}), word)
		}
	}
}

// A failure waits for how another attempt at its request ends, and not for long.
func TestWhenAFailureCounts(t *testing.T) {
	for _, tc := range []struct {
		name, words, blamed string
	}{
		{"no other attempt", "x>0 x0- 1s", "s0"},
		{"not yet", "x>0 x0- 999ms", ""},
		{"the clock was set back", "x>0 x0- -1s", "s0"},
		{"served elsewhere", "x>0 x0- x>1 x1+", "s0"},
		{"served elsewhere, twice", "x>0 x0- x>1 x1+ x>1 x1+ 1s", "s0"},
		{"served there", "x>0 x0- x>0 x0+ 1s", ""},
		{"served there, after another has failed it", "x>0 x0- x>1 x1- x>0 x0+ 1s", "s1"},
		{"failed elsewhere", "x>0 x0- x>1 x1- 1s", ""},
		{"failed there again", "x>0 x0- x>0 x0- 1s", "s0 s0"},
		{"failed elsewhere after a while", "x>0 x0- x>1 5s x1- 1s", ""},
		{"served elsewhere after a while", "x>0 x0- x>1 5s x1+", "s0"},
		{"canceled elsewhere after a while", "x>0 x0- x>1 5s x1~ 0s", "s0"},
		{"a second after the last failure", "x>0 x0- 600ms x>0 x0- 600ms x>1 x1- 1s", ""},
		{"what everybody failed is over", "x>0 x0- x>1 x1- 1s x>2 x2+", ""},
		{"an attempt from before ends", "x>0 x>1 x0- x>2 x1~ 1s x2- 1s", ""},
		{"an attempt from before the doubt ends", "x>0 x0- x>1 x>2 x2+ x>0 x0- x1~ 1s", "s0 s0"},
		{"breaks off", "x>0 x0' x0-", "s0"},
		{"two requests at once", "x>0 y>2 x0- y2- x>1 y>1 x1- y1+ 1s", "s2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newTale(t)
			w.tell(t, tc.words)
			assert.Equal(t, tc.blamed, strings.Join(w.blamed, " "))
		})
	}
}

// A trial is due by the time of the request that asks, whenever the one before it was.
func TestATrialIsDueAfterAPause(t *testing.T) {
	w := newTale(t)
	w.tell(t, strings.Repeat("x>0 x0- x>1 x1+ ", 8))
	out := w.filter.Endpoints(w.router)[0]
	require.Equal(t, Out, out.State)
	w.now = out.NextTrial
	var receipt endpick.Receipt
	_, err := w.router.Route(endpick.Request{Receipt: &receipt})
	require.NoError(t, err)
	require.Len(t, receipt.Verdicts, 3)
	for _, v := range receipt.Verdicts {
		assert.Empty(t, v.RemovedBy, v.Candidate.Endpoint.ID)
	}
}

// A request is served once, at its first token: a trial that succeeds brings its server
// back at that moment, and one that is canceled is followed by another.
func TestATrialEndsWithItsFirstToken(t *testing.T) {
	w := newTale(t)
	s0 := func() Status { return w.filter.Endpoints(w.router)[0] }
	w.tell(t, strings.Repeat("x>0 x0- x>1 x1+ ", 8))
	require.Equal(t, Out, s0().State)
	w.now = s0().NextTrial
	w.tell(t, "y>0 y0~")
	assert.False(t, s0().NextTrial.After(w.now), "it has said nothing")
	require.Zero(t, w.served)
	w.tell(t, "y>0")
	w.now = w.now.Add(3 * time.Second)
	w.tell(t, "y0'")
	assert.Equal(t, Returning, s0().State)
	assert.Equal(t, w.now, s0().Since)
	w.now = w.now.Add(time.Second)
	w.tell(t, "y0+")
	assert.Equal(t, 1, w.served)
}

// Failures that are too many to wait are judged at once, the oldest first.
func TestDoubtsAreBounded(t *testing.T) {
	t.Run("requests", func(t *testing.T) {
		w := newTale(t)
		w.tell(t, "x>0 x0-")
		for i := range maxDoubts {
			assert.Empty(t, w.blamed)
			w.send(t, endpick.Request{InputTokens: 1 + i}, "s1").Done(endpick.Outcome{Status: endpick.Failed})
		}
		assert.Equal(t, []string{"s0"}, w.blamed)
	})
	t.Run("failures of one", func(t *testing.T) {
		w := newTale(t)
		for range maxFailures {
			assert.Empty(t, w.blamed)
			w.tell(t, "x>0 x0-")
		}
		assert.Equal(t, []string{"s0"}, slices.Compact(w.blamed))
	})
}

// Only an attempt at the same request speaks against who has failed it.
func TestAttemptsAreOfOneRequest(t *testing.T) {
	one := endpick.Request{
		Model: "m", Adapter: "a", Tenant: "t", Session: "s", InputTokens: 100, ExpectedOutputTokens: 10,
		Blocks: []uint64{1, 2, 3}, BlockTokens: 16,
	}
	for name, change := range map[string]func(*endpick.Request){
		"model":                  func(r *endpick.Request) { r.Model = "n" },
		"adapter":                func(r *endpick.Request) { r.Adapter = "b" },
		"tenant":                 func(r *endpick.Request) { r.Tenant = "u" },
		"session":                func(r *endpick.Request) { r.Session = "z" },
		"input":                  func(r *endpick.Request) { r.InputTokens = 101 },
		"output":                 func(r *endpick.Request) { r.ExpectedOutputTokens = 11 },
		"a later part":           func(r *endpick.Request) { r.Blocks = []uint64{1, 2, 4} },
		"fewer blocks":           func(r *endpick.Request) { r.Blocks = []uint64{1, 3} },
		"names that are swapped": func(r *endpick.Request) { r.Tenant, r.Session = r.Session, r.Tenant },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTale(t)
			other := one
			change(&other)
			w.send(t, one, "s0").Done(endpick.Outcome{Status: endpick.Failed})
			w.send(t, other, "s1").Done(endpick.Outcome{})
			assert.Empty(t, w.blamed)
			w.send(t, one, "s1").Done(endpick.Outcome{})
			assert.Equal(t, []string{"s0"}, w.blamed)
		})
	}
}
