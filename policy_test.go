package endpick_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPolicyValidation(t *testing.T) {
	ok := scoreFunc(leastLoaded)
	var null *panicker
	weights := func(w ...float64) endpick.Policy {
		var p endpick.Policy
		for _, v := range w {
			p.Scorers = append(p.Scorers, endpick.Weighted{Scorer: ok, Weight: v})
		}
		return p
	}
	for text, policy := range map[string]endpick.Policy{
		"endpick: config: Policy.Scorers[1].Weight is 0; leave a scorer out to switch it off":    weights(1, 0),
		"endpick: config: Policy.Scorers[0].Weight is -2; leave a scorer out to switch it off":   weights(-2),
		"endpick: config: Policy.Scorers[0].Weight is NaN; leave a scorer out to switch it off":  weights(nan),
		"endpick: config: Policy.Scorers[2].Weight is +Inf; leave a scorer out to switch it off": weights(1, 1, inf),
		"endpick: config: Policy.Scorers[0].Scorer is nil":                                       {Scorers: []endpick.Weighted{{Weight: 1}}},
		"endpick: config: Policy.Filters[0] is nil":                                              {Filters: []endpick.Filter{nil}},
		"endpick: config: Policy.Admitters[0] is nil":                                            {Admitters: []endpick.Admitter{nil}},
		// A nil pointer, as when the error of a stage's New was ignored, is named instead of being called.
		"endpick: config: Policy.Matcher is a nil *endpick_test.panicker":           {Matcher: null},
		"endpick: config: Policy.Predictor is a nil *endpick_test.panicker":         {Predictor: null},
		"endpick: config: Policy.Predictor is a nil endpick_test.predictFunc":       {Predictor: predictFunc(nil)},
		"endpick: config: Policy.Picker is a nil *endpick_test.panicker":            {Picker: null},
		"endpick: config: Policy.Filters[0] is a nil *endpick_test.panicker":        {Filters: []endpick.Filter{null}},
		"endpick: config: Policy.Admitters[0] is a nil *endpick_test.panicker":      {Admitters: []endpick.Admitter{null}},
		"endpick: config: Policy.Scorers[0].Scorer is a nil *endpick_test.panicker": scoredBy(null),
	} {
		_, err := endpick.New(endpick.Config{Policy: policy})
		assert.EqualError(t, err, text)
		assert.ErrorAs(t, err, new(*endpick.ConfigError))
		r, _ := newRouter(endpick.Config{Endpoints: named("a")})
		assert.EqualError(t, r.SetPolicy(policy), text)
		rig.Must(r.Route(endpick.Request{})).Done(endpick.Outcome{}) // under the old policy
	}
}

func TestCombinedScore(t *testing.T) {
	for _, c := range []struct {
		name    string
		weights []float64
		scores  []float64 // by scorer
		want    float64
	}{
		{"one alone is taken as it is", []float64{7}, []float64{-40}, -40},
		{"weights are shares", []float64{3, 2, 2}, []float64{1, 0.5, 0}, 4. / 7},
		{"held within [0, 1]", []float64{1, 1}, []float64{-40, 9}, 0.5},
		{"2/9 + 7/9 rounds to above 1", []float64{2, 7}, []float64{1, 1}, 1},
		{"huge weights", []float64{1.5e308, 1.5e308, 1}, []float64{1, 0, 0}, 0.5},
		{"tiny weights", []float64{5e-324, 5e-324}, []float64{1, 0}, 0.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := endpick.Policy{}
			for i, w := range c.weights {
				score := c.scores[i]
				p.Scorers = append(p.Scorers, endpick.Weighted{Weight: w, Scorer: scoreFunc(
					func(*endpick.Request, *endpick.Candidate) float64 { return score })})
			}
			r, _ := newRouter(endpick.Config{Endpoints: named("a"), Policy: p})
			clear(p.Scorers) // which are the caller's
			var receipt endpick.Receipt
			rig.Must(r.Route(endpick.Request{Receipt: &receipt}))
			assert.InDelta(t, c.want, receipt.Verdicts[0].Score, 1e-12)
			if len(c.weights) > 1 {
				assert.LessOrEqual(t, receipt.Verdicts[0].Score, 1.0)
			}
			assert.Equal(t, c.scores, receipt.Verdicts[0].Scores)
		})
	}
}

// What a scorer does not write is 0, and not what another has written or was written for
// another request.
func TestScoresThatAreNotWritten(t *testing.T) {
	full := scoreFunc(func(*endpick.Request, *endpick.Candidate) float64 { return 1 })
	for _, p := range []endpick.Policy{scoredBy(full, halves{}), scoredBy(halves{}, full)} {
		r, _ := newRouter(endpick.Config{Endpoints: named("a"), Policy: p})
		for range 2 {
			var receipt endpick.Receipt
			rig.Must(r.Route(endpick.Request{Receipt: &receipt}))
			assert.Equal(t, 0.5, receipt.Verdicts[0].Score)
		}
	}
}

// A stage that breaks its contract is counted, and the request goes on.
func TestBadStages(t *testing.T) {
	type list = []endpick.Candidate
	filter := func(f filterFunc) endpick.Policy {
		p := by(leastLoaded)
		p.Filters = []endpick.Filter{f}
		return p
	}
	pick := func(i int) endpick.Policy {
		p := filter(func(c list) list { return c[:2] })
		p.Picker = pickFunc(func(*endpick.Request, []endpick.Candidate, []float64) int { return i })
		return p
	}
	refuse := endpick.Policy{Admitters: []endpick.Admitter{admitFunc(func(*endpick.Request) error { return (*endpick.RequestError)(nil) })}}
	others := "filter returned another slice than the beginning of the one it was given; use endpick.Keep"
	lost := "filter lost candidates that it removes, as slices.DeleteFunc does, so that receipts lack them; use endpick.Keep"
	broken := "filter repeated or cleared candidates, and returned them or none; use endpick.Keep"
	for _, c := range []struct {
		name   string
		policy endpick.Policy
		want   string // empty: any
		said   string // to Warn; empty: nothing
	}{
		{"filter: nothing", filter(func(list) list { return nil }), "", ""},
		{"filter: an empty part", filter(func(c list) list { return c[:0] }), "", ""},
		{"filter: a copy", filter(func(c list) list { return slices.Clone(c[2:]) }), "", others},
		{"filter: not the front", filter(func(c list) list { return c[1:] }), "", others},
		{"filter: more than there are", filter(func(c list) list { return append(c, c...) }), "", others},
		{"filter: what slices.DeleteFunc leaves", filter(func(c list) list {
			return slices.DeleteFunc(c, func(c endpick.Candidate) bool { return c.Endpoint.ID != "c" })
		}), "c", lost},
		{"filter: appends in place", filter(func(c list) list { return append(c[:0], c[2]) }), "c", lost},
		{"filter: one twice", filter(func(c list) list { return append(c[:2], c[0]) }), "", broken},
		{"filter: cleared", filter(func(c list) list { clear(c); return c }), "", broken},
		{"filter: cleared, and nothing", filter(func(c list) list { clear(c[1:]); return nil }), "", broken},
		{"picker: below", pick(-1), "", "endpick_test.pickFunc picked index -1 of 2 candidates"},
		{"picker: above", pick(2), "", "endpick_test.pickFunc picked index 2 of 2 candidates"},
		{"picker: last", pick(1), "b", ""},
		{"admitter: a nil pointer", refuse, "", "endpick_test.admitFunc refused with a nil *endpick.RequestError, which is no reason: return nil to admit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var said []error
			r, _ := newRouter(endpick.Config{
				Endpoints: named("a", "b", "c"), Policy: c.policy, Warn: func(err error) { said = append(said, err) },
			})
			var receipt endpick.Receipt
			l := rig.Must(r.Route(endpick.Request{Receipt: &receipt}))
			assert.NotContains(t, receipt.String(), "PANIC")
			if c.want != "" {
				assert.Equal(t, c.want, l.Endpoint().ID)
			}
			if c.said == "" {
				assert.Zero(t, r.Stats().StageErrors)
				assert.Empty(t, said)
			} else {
				assert.EqualValues(t, 1, r.Stats().StageErrors)
				require.Len(t, said, 1)
				assert.EqualError(t, said[0], "endpick: stage "+c.said)
				assert.ErrorAs(t, said[0], new(*endpick.StageError))
			}
			l.Done(endpick.Outcome{})
			requireQuiet(t, r)
		})
	}
}

// Without the filter that has broken the candidates, the others decide; whoever was admitted is withdrawn, and
// admitted again.
func TestFiltersBesideABrokenOne(t *testing.T) {
	admitted := 0
	keep := func(ids ...string) endpick.Filter {
		return keepIf(func(c *endpick.Candidate) bool { return slices.Contains(ids, c.Endpoint.ID) })
	}
	p := by(leastLoaded)
	p.Admitters = []endpick.Admitter{counting{&admitted}}
	p.Filters = []endpick.Filter{
		keep("b", "c", "d"),
		filterFunc(func(c []endpick.Candidate) []endpick.Candidate { clear(c); return c[:1] }),
		filterFunc(func(c []endpick.Candidate) []endpick.Candidate { return append(c[:0], c[1:]...) }),
		keep("d"),
	}
	r, _ := newRouter(endpick.Config{Endpoints: named("a", "b", "c", "d"), Policy: p, Warn: func(error) {}})
	clear(p.Admitters) // which are the caller's, as the filters are
	clear(p.Filters)
	var receipt endpick.Receipt
	l := rig.Must(r.Route(endpick.Request{Receipt: &receipt}))
	assert.Equal(t, "d", l.Endpoint().ID)
	assert.Equal(t, 1, admitted)
	assert.EqualValues(t, 2, r.Stats().StageErrors)
	removed := map[string]string{}
	for _, v := range receipt.Verdicts {
		removed[v.Candidate.Endpoint.ID] = v.RemovedBy
	}
	assert.Equal(t, map[string]string{"d": "", "c": "filter", "a": "filter"}, removed, "b was lost")
	l.Done(endpick.Outcome{})
	rig.Must(r.Route(endpick.Request{})).Done(endpick.Outcome{})
	assert.EqualValues(t, 4, r.Stats().StageErrors, "they are asked again")
	requireQuiet(t, r)
}

// counting is an admitter that counts those that it has admitted, without those that were withdrawn.
type counting struct{ admitted *int }

func (c counting) Admit(*endpick.Request, []endpick.Candidate) error { *c.admitted++; return nil }
func (c counting) Withdrawn(*endpick.Request)                        { *c.admitted-- }

// listener is every kind of stage at once, of a type that is not comparable.
type listener struct {
	spy  *spy
	tags []string
}

func (listener) Match(*endpick.Request, []endpick.Candidate)            {}
func (listener) Score(*endpick.Request, []endpick.Candidate, []float64) {}
func (l listener) Routed(e *endpick.Event)                              { l.spy.Routed(e) }
func (l listener) FirstToken(e *endpick.Event)                          { l.spy.FirstToken(e) }
func (l listener) Done(e *endpick.Event, o *endpick.Outcome)            { l.spy.Done(e, o) }

// A stage is notified of each event once, however often the policy lists it.
func TestObserversHearOnce(t *testing.T) {
	s := new(spy)
	both := []endpick.Weighted{{Scorer: s, Weight: 1}, {Scorer: s, Weight: 2}}
	r, _ := newRouter(endpick.Config{Endpoints: named("a", "b"), Policy: endpick.Policy{Scorers: both}})
	l := rig.Must(r.Route(endpick.Request{Stream: true}))
	l.Tokens(1)
	l.Done(endpick.Outcome{})
	require.Empty(t, s.faults)
	require.Len(t, s.take(), 1)
	require.NoError(t, r.Remove("a"))
	require.Len(t, s.gone, 1)

	// Values that are not comparable count as different, and must not panic.
	first := listener{spy: new(spy), tags: []string{"x"}}
	second := listener{spy: new(spy), tags: []string{"x"}}
	require.NoError(t, r.SetPolicy(endpick.Policy{Matcher: first, Scorers: []endpick.Weighted{{Scorer: second, Weight: 1}}}))
	rig.Must(r.Route(endpick.Request{})).Done(endpick.Outcome{})
	require.Len(t, first.spy.take(), 1)
	require.Len(t, second.spy.take(), 1)
	require.Empty(t, s.take(), "the old policy is over")
}

// sharer is a stage with a shared observer.
type sharer struct{ observer any }

func (*sharer) Score(*endpick.Request, []endpick.Candidate, []float64) {}
func (s *sharer) Observer() any                                        { return s.observer }

// itself listens for itself, and can't be told from others.
type itself struct{ _ []string }

func (itself) Score(*endpick.Request, []endpick.Candidate, []float64) {}
func (s itself) Observer() any                                        { return s }

// Who listens for a stage may let others listen for it, and several may listen for one.
func TestObserversOfObservers(t *testing.T) {
	deep, one, two, both := new(spy), new(spy), new(spy), new(spy)
	several := &sharer{[]any{one, nil, &struct {
		*spy
		*sharer
	}{both, &sharer{two}}, one}}
	loop := &sharer{}
	loop.observer = &sharer{loop}
	r, _ := newRouter(endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{Scorers: []endpick.Weighted{
		{Scorer: &sharer{&sharer{&sharer{deep}}}, Weight: 1}, {Scorer: several, Weight: 1}, {Scorer: loop, Weight: 1}, {Scorer: itself{}, Weight: 1},
	}}})
	rig.Must(r.Route(endpick.Request{})).Done(endpick.Outcome{})
	for _, s := range []*spy{deep, one, two, both} {
		require.Empty(t, s.faults)
		require.Len(t, s.take(), 1)
	}
	taken := scoredBy(&sharer{[]any{&sharer{new(endpick.Exclusive)}}})
	require.NoError(t, r.SetPolicy(taken))
	require.ErrorAs(t, rig.Err(endpick.New(endpick.Config{Policy: taken})), new(*endpick.ConfigError))
}

// A scorer that fails for one endpoint neither prefers it nor puts it below the
// worst of the others.
func TestScoresThatAreNoNumbers(t *testing.T) {
	for _, c := range []struct {
		scores, want []float64
		said         string
		beside       []endpick.Weighted
	}{
		{[]float64{0.25, nan, 0.75}, []float64{0.25, 0.25, 0.75}, `"b" the score NaN`, nil},
		{[]float64{nan, 3, 5}, []float64{3, 3, 5}, `"a" the score NaN`, nil},
		{[]float64{-3, -2, inf}, []float64{-3, -2, -3}, `"c" the score +Inf`, nil},
		{[]float64{-inf, -2, -1}, []float64{-2, -2, -1}, `"a" the score -Inf`, nil},
		{[]float64{nan, inf, -inf}, []float64{0, 0, 0}, `"a" the score NaN`, nil},
		{[]float64{1 + 1e-12, 100, -1}, []float64{0.5, 0.5, 0}, `"b" the score 100, beyond [0, 1] beside other scorers`,
			[]endpick.Weighted{{Scorer: halves{}, Weight: 1}}},
	} {
		var said []error
		policy := byID(map[string]float64{"a": c.scores[0], "b": c.scores[1], "c": c.scores[2]})
		policy.Scorers = append(policy.Scorers, c.beside...)
		r, _ := newRouter(endpick.Config{
			Endpoints: named("a", "b", "c"), Warn: func(err error) { said = append(said, err) },
			Policy: policy,
		})
		var receipt endpick.Receipt
		rig.Must(r.Route(endpick.Request{Receipt: &receipt})).Done(endpick.Outcome{})
		got := make([]float64, 3)
		for _, v := range receipt.Verdicts {
			got[v.Candidate.Ref.Slot] = v.Score
			assert.True(t, c.beside != nil || slices.Equal([]float64{v.Score}, v.Scores), "%v", v.Scores)
		}
		assert.Equal(t, c.want, got, "%v", c.scores)
		assert.Equal(t, uint64(1), r.Stats().StageErrors)
		require.Len(t, said, 1)
		assert.EqualError(t, said[0], "endpick: stage score gave endpoint "+c.said)
	}
}

// A host that knows the blocks of a prompt, but not its length, gets affinity
// anyway.
func TestBlocksSayHowLongThePromptIs(t *testing.T) {
	r, _ := newRouter(endpick.Config{Endpoints: named("a")})
	for want, req := range map[int]endpick.Request{
		48:        {Blocks: make([]uint64, 3)},
		32:        {Blocks: make([]uint64, 3), BlockTokens: 10.5},
		7:         {Blocks: make([]uint64, 3), InputTokens: 7},
		0:         {},
		1<<31 - 1: {Blocks: make([]uint64, 3), BlockTokens: 1e9},
	} {
		l := rig.Must(r.Route(req))
		assert.Equal(t, want, status(t, r, "a").Candidate.InFlight.ContextTokens)
		l.Done(endpick.Outcome{})
	}
}

// halves is a scorer that writes nothing, and whose configuration may be invalid.
type halves struct{ err error }

func (halves) Score(*endpick.Request, []endpick.Candidate, []float64) {}
func (h halves) Validate() error                                      { return h.err }
func (halves) Name() string                                           { return "halves" }

// The error of a stage's Validate names the stage, and matches ConfigError,
// whatever its type.
func TestWhatValidateSaysNamesTheStage(t *testing.T) {
	own := errors.New("Half must be positive")
	for _, tc := range []struct {
		said        error
		text, field string
	}{
		{own, "endpick: config: Policy has stage halves, which is not valid: Half must be positive", "Policy"},
		{&endpick.ConfigError{Field: "Half", Reason: "must be positive"}, "endpick: config: Half must be positive (stage halves)", "Half"},
	} {
		policy := scoredBy(halves{tc.said})
		_, err := endpick.New(endpick.Config{Policy: policy})
		assert.EqualError(t, err, tc.text)
		assert.ErrorIs(t, err, tc.said)
		assert.Equal(t, tc.field, rig.Field(nil, err))

		r, _ := newRouter(endpick.Config{})
		assert.Equal(t, err, r.SetPolicy(policy))
	}
}

// refuses is an admitter that counts, and refuses.
type refuses struct{ counting }

func (refuses) Admit(*endpick.Request, []endpick.Candidate) error { return assert.AnError }

// An admitter that has refused, or was not asked, has nothing to take back.
func TestWithdrawnIsWhatWasAdmitted(t *testing.T) {
	var admitted [3]int
	r, _ := newRouter(endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{
		Admitters: []endpick.Admitter{counting{&admitted[0]}, refuses{counting{&admitted[1]}}, counting{&admitted[2]}},
	}})
	require.ErrorIs(t, rig.Err(r.Route(endpick.Request{})), assert.AnError)
	assert.Zero(t, admitted)
	running, err := r.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: "a"}})
	require.NoError(t, err, "what is sent already is refused by nobody")
	running.Done(endpick.Outcome{})
	requireQuiet(t, r)

	// An endpoint is removed while it is picked: admitters are asked again.
	r, _ = newRouter(endpick.Config{Endpoints: named("a", "b"), Policy: endpick.Policy{
		Admitters: []endpick.Admitter{counting{&admitted[0]}},
		Picker: pickFunc(func(_ *endpick.Request, c []endpick.Candidate, _ []float64) int {
			if len(c) == 2 {
				assert.NoError(t, r.Remove(c[0].Endpoint.ID))
			}
			return 0
		}),
	}})
	l := rig.Must(r.Route(endpick.Request{}))
	assert.Equal(t, "b", l.Endpoint().ID)
	assert.Equal(t, 1, admitted[0])
	l.Done(endpick.Outcome{})
	requireQuiet(t, r)

	// One that has adopted a request is removed while that is predicted: nobody was asked.
	r, _ = newRouter(endpick.Config{Endpoints: named("a"), Policy: endpick.Policy{
		Admitters: []endpick.Admitter{counting{&admitted[2]}},
		Matcher: matchFunc(func(*endpick.Request, *endpick.Candidate) int {
			_ = r.Remove("a")
			return 0
		}),
	}})
	require.ErrorIs(t, rig.Err(r.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: "a"}})), endpick.ErrUnknownEndpoint)
	assert.Zero(t, admitted[2])
	requireQuiet(t, r)
}

// An Exploration has a default, can be switched off, and hits as often as it says.
func TestExploration(t *testing.T) {
	for _, tc := range []struct {
		p        float64
		disabled bool
		want     endpick.Exploration
		err      string
	}{
		{0, false, 0.01, ""},
		{0, true, 0, ""},
		{0.1, false, 0.1, ""},
		{0.5, true, 0, "x.Exploration is set and disabled"},
		{1, false, 0, "x.Exploration is 1, outside (0, 1)"},
		{-0.1, false, 0, "outside"},
		{nan, false, 0, "outside"},
	} {
		got, err := endpick.NewExploration("x.Exploration", tc.p, tc.disabled)
		assert.Equal(t, tc.want, got)
		if tc.err != "" {
			require.ErrorAs(t, err, new(*endpick.ConfigError))
			assert.ErrorContains(t, err, tc.err)
			continue
		}
		require.NoError(t, err)
		hits := 0.0
		for i := range 10_000 {
			if req := (endpick.Request{}).At(time.Time{}, 1, uint64(i)); got.Hits(&req, 7) {
				hits++
			}
		}
		assert.InDelta(t, 10_000*float64(got), hits, 40+800*float64(got))
	}
}
