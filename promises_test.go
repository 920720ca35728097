package endpick_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// A pool that began as a copy of the endpoints that serve everything is independent
// of later changes, whichever pool grows first.
func TestPoolsOfNamesGrowOnTheirOwn(t *testing.T) {
	for all := range 9 {
		r, _ := newRouter(t, endpick.Config{})
		for _, e := range numbered(all) {
			require.NoError(t, r.Add(e))
		}
		require.NoError(t, r.Add(endpick.Endpoint{ID: "named", Models: []string{"m"}}))
		require.NoError(t, r.Add(endpick.Endpoint{ID: "last"}))
		require.NoError(t, r.Add(endpick.Endpoint{ID: "other", Models: []string{"n"}}))
		for model, want := range map[string]int{"m": all + 2, "n": all + 2, "x": all + 1} {
			var receipt endpick.Receipt
			route(t, r, endpick.Request{Model: model, Receipt: &receipt})
			assert.Len(t, receipt.Verdicts, want, "%d, model %s", all, model)
			once := map[string]bool{}
			for _, v := range receipt.Verdicts {
				once[v.Candidate.Endpoint.ID] = true
			}
			assert.Len(t, once, want)
			assert.Equal(t, model == "m", once["named"])
		}
	}
}

// ends records the end of each lease.
type ends struct {
	last       time.Time
	ttft, tpot bool
	withdrawn  int
}

func (e *ends) Done(ev *endpick.Event, _ *endpick.Outcome) {
	e.last = ev.LastTokenAt
	_, e.ttft = ev.TTFT()
	_, e.tpot = ev.TPOT()
}
func (e *ends) Admit(*endpick.Request, []endpick.Candidate) error { return nil }
func (e *ends) Withdrawn(*endpick.Request)                        { e.withdrawn++ }

// If no token was seen, there is no time of the last one, even if the engine reports
// their number.
func TestTokensThatNobodySawHaveNoTime(t *testing.T) {
	e := &ends{}
	r, c := newRouter(t, endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{Admitters: []endpick.Admitter{e}}})
	l := route(t, r, endpick.Request{InputTokens: 5})
	c.advance(time.Second)
	l.Done(endpick.Outcome{OutputTokens: 7})
	assert.Zero(t, e.last)
	assert.False(t, e.ttft || e.tpot)
	l = route(t, r, endpick.Request{InputTokens: 5, Stream: true})
	c.advance(time.Second)
	l.FirstToken()
	c.advance(time.Second)
	l.Done(endpick.Outcome{OutputTokens: 7})
	assert.Equal(t, c.Now(), e.last, "nobody said when the last one came")
	assert.True(t, e.ttft && e.tpot)
}

// A prefill whose time has passed has also ended for marks and reports, even if
// nothing else has happened since.
func TestMarksAndReportsSeePrefillsThatHaveEnded(t *testing.T) {
	for name, report := range map[string]func(r *endpick.Router) endpick.Mark{
		"marked":     func(r *endpick.Router) endpick.Mark { return r.Mark("a") },
		"not marked": func(*endpick.Router) endpick.Mark { return endpick.Mark{} },
	} {
		r, c := newRouter(t, endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{
			Predictor: predictFunc(func(*endpick.Request, *endpick.Candidate) endpick.Prediction {
				return endpick.Prediction{Has: endpick.TTFT, TTFT: time.Second}
			}),
		}})
		l := route(t, r, endpick.Request{InputTokens: 5})
		c.advance(2 * time.Second)
		mark := report(r)
		require.NoError(t, r.Report("a", endpick.Load{Waiting: 2, Running: 1, Mark: mark}))
		got := status(t, r, "a").Candidate
		assert.Equal(t, [2]float64{2, 1}, [2]float64{got.Waiting, got.Running}, name)
		l.Done(endpick.Outcome{})
	}
}

// refuses is an admitter that counts, and refuses.
type refuses struct{ ends }

func (*refuses) Admit(*endpick.Request, []endpick.Candidate) error { return assert.AnError }

// An admitter that has refused, or was not asked, has nothing to take back.
func TestWithdrawnIsWhatWasAdmitted(t *testing.T) {
	first, second, third := &ends{}, &refuses{}, &ends{}
	r, _ := newRouter(t, endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{Admitters: []endpick.Admitter{first, second, third}}})
	_, err := r.Route(endpick.Request{})
	require.ErrorIs(t, err, assert.AnError)
	assert.Equal(t, [3]int{1, 0, 0}, [3]int{first.withdrawn, second.withdrawn, third.withdrawn})
	running, err := r.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: "a"}})
	require.NoError(t, err, "what is sent already is refused by nobody")
	running.Done(endpick.Outcome{})
	requireQuiet(t, r)

	// An endpoint is removed while it is picked: admitters are asked again.
	admits := &ends{}
	r, _ = newRouter(t, endpick.Config{Endpoints: named("a", "b"), Policy: endpick.Policy{
		Admitters: []endpick.Admitter{admits},
		Picker: pickFunc(func(_ *endpick.Request, c []endpick.Candidate, _ []float64) int {
			if len(c) == 2 {
				assert.NoError(t, r.Remove(c[0].Endpoint.ID))
			}
			return 0
		}),
	}})
	l := route(t, r, endpick.Request{})
	assert.Equal(t, "b", l.Endpoint().ID)
	assert.Equal(t, 1, admits.withdrawn)
	l.Done(endpick.Outcome{})
	requireQuiet(t, r)

	// One that has adopted a request is removed while that is predicted: nobody was asked.
	admits = &ends{}
	r, _ = newRouter(t, endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{
		Admitters: []endpick.Admitter{admits},
		Matcher: matchFunc(func(*endpick.Request, *endpick.Candidate) int {
			_ = r.Remove("a")
			return 0
		}),
	}})
	_, err = r.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: "a"}})
	require.ErrorIs(t, err, endpick.ErrUnknownEndpoint)
	assert.Zero(t, admits.withdrawn)
	requireQuiet(t, r)
}

// owned is a stage that belongs to one router.
type owned struct {
	endpick.OneRouter
	refuses
	allStages
}

func (*owned) Admit(*endpick.Request, []endpick.Candidate) error { return nil }

// A policy that is refused because of one stage leaves the others with their routers.
func TestARefusedPolicyLeavesStagesToTheirRouter(t *testing.T) {
	mine, theirs := &owned{}, &owned{}
	r, _ := newRouter(t, endpick.Config{Policy: endpick.Policy{Predictor: mine}})
	newRouter(t, endpick.Config{Policy: endpick.Policy{Predictor: theirs}})
	free := &owned{}
	require.ErrorIs(t, r.SetPolicy(endpick.Policy{Predictor: mine, Admitters: []endpick.Admitter{free, theirs}}), endpick.ErrConfig)
	_, err := endpick.New(endpick.Config{Policy: endpick.Policy{Predictor: mine}})
	assert.ErrorIs(t, err, endpick.ErrConfig, "it is in the first one still")
	_, err = endpick.New(endpick.Config{Policy: endpick.Policy{Predictor: free}})
	assert.NoError(t, err)
}

// Names that can't be displayed or dialled are refused, which changes nothing.
func TestNamesThatCannotBeShown(t *testing.T) {
	r, _ := newRouter(t, endpick.Config{})
	for _, e := range []endpick.Endpoint{
		{ID: "a\nb"}, {ID: "\xff"}, {ID: "a", Address: "host name:80"}, {ID: "a", Address: "host\x00"}, {ID: "a", Rank: -1}, {},
	} {
		assert.ErrorIs(t, r.Add(e), endpick.ErrBadEndpoint, "%+q", e)
	}
	assert.Empty(t, r.Endpoints())
	_, ok := r.Ref("a")
	assert.False(t, ok)
}
