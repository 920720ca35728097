package endpick_test

import (
	"github.com/stretchr/testify/require"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
)

// outOfRange is a scorer with a mistake.
type outOfRange struct{}

func (outOfRange) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	dst[len(candidates)] = 1
}

// In Warn, the stack still shows where a stage panicked.
func TestWarnSeesWhereAStagePanicked(t *testing.T) {
	var stack string
	r, _ := newRouter(t, endpick.Config{
		Endpoints: named("a"),
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: outOfRange{}, Weight: 1}}},
		Warn:      func(error) { stack = string(debug.Stack()) },
	})
	route(t, r, endpick.Request{}).Done(endpick.Outcome{})
	assert.Contains(t, stack, "outOfRange.Score")
}

// A clock that panics costs nobody anything, whoever's goroutine asks for the time: it goes on
// from where the host's clock was when the router was made.
func TestAClockThatPanicsIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := false
		began := time.Now()
		var told []error
		heard := &firstTokens{}
		r, err := endpick.New(endpick.Config{
			Endpoints: named("a"),
			Policy:    endpick.Policy{Matcher: heard},
			Clock: func() time.Time {
				if broken {
					panic("boom")
				}
				return time.Unix(1000, 0).Add(time.Since(began))
			},
			Warn: func(err error) { told = append(told, err) },
		})
		require.NoError(t, err)
		old := route(t, r, endpick.Request{InputTokens: 7})
		time.Sleep(time.Minute)
		broken = true
		l := route(t, r, endpick.Request{InputTokens: 5, Stream: true})
		time.Sleep(time.Second)
		l.FirstToken()
		l.Tokens(3)
		assert.Equal(t, []time.Duration{time.Second}, heard.after)
		load := endpick.Load{Waiting: 3, Mark: r.Mark("a")}
		require.NoError(t, r.Report("a", load))
		assert.EqualValues(t, 3, r.Endpoints()[0].Candidate.Waiting)
		assert.Len(t, r.AppendCandidates(nil), 1)
		assert.Equal(t, 2, r.Stats().OpenLeases)
		assert.True(t, l.Done(endpick.Outcome{}))
		assert.True(t, old.Done(endpick.Outcome{}))
		requireQuiet(t, r)
		assert.Len(t, told, 10)
		for _, err := range told {
			assert.Equal(t, &endpick.PanicError{Stage: "Config.Clock", Value: "boom"}, err)
		}
		assert.EqualValues(t, 10, r.Stats().Panics)
	})
}

// firstTokens hears how long first tokens took.
type firstTokens struct{ after []time.Duration }

func (f *firstTokens) Match(*endpick.Request, []endpick.Candidate) {}

func (f *firstTokens) FirstToken(e *endpick.Event) {
	ttft, _ := e.TTFT()
	f.after = append(f.after, ttft)
}
