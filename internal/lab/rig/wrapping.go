package rig

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Stage is a stage of every kind with every optional method, and counts its calls. It is not
// safe for concurrent use.
type Stage struct {
	endpick.Exclusive
	calls  map[string]int
	beside *beside
}

func newStage() *Stage {
	s := &Stage{calls: map[string]int{}}
	s.beside = &beside{s}
	return s
}

// Name is not counted: a wrapping policy may use names of its own.
func (*Stage) Name() string { return "counting" }

// Validate implements what New asks of stages.
func (s *Stage) Validate() error { s.calls["Validate"]++; return nil }

// Observer returns a second observer.
func (s *Stage) Observer() any { return s.beside }

// Predict implements [endpick.Predictor].
func (s *Stage) Predict(*endpick.Request, []endpick.Candidate) { s.calls["Predict"]++ }

// Admit implements [endpick.Admitter].
func (s *Stage) Admit(*endpick.Request, []endpick.Candidate) error { s.calls["Admit"]++; return nil }

// Withdrawn is called for requests that were admitted but not routed.
func (s *Stage) Withdrawn(*endpick.Request) { s.calls["Withdrawn"]++ }

// Filter implements [endpick.Filter].
func (s *Stage) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	s.calls["Filter"]++
	return candidates
}

// Score implements [endpick.Scorer].
func (s *Stage) Score(_ *endpick.Request, _ []endpick.Candidate, dst []float64) {
	s.calls["Score"]++
	for i := range dst {
		dst[i] = 1
	}
}

// Explain gives reasons.
func (s *Stage) Explain(_ *endpick.Request, _ []endpick.Candidate, dst []string) {
	s.calls["Explain"]++
	for i := range dst {
		dst[i] = "counted"
	}
}

// Pick implements [endpick.Picker].
func (s *Stage) Pick(*endpick.Request, []endpick.Candidate, []float64) int {
	s.calls["Pick"]++
	return 0
}

// Routed implements [endpick.RoutedObserver].
func (s *Stage) Routed(*endpick.Event) { s.calls["Routed"]++ }

// FirstToken implements [endpick.FirstTokenObserver].
func (s *Stage) FirstToken(*endpick.Event) { s.calls["FirstToken"]++ }

// Done implements [endpick.DoneObserver].
func (s *Stage) Done(*endpick.Event, *endpick.Outcome) { s.calls["Done"]++ }

// EndpointRemoved implements [endpick.EndpointObserver].
func (s *Stage) EndpointRemoved(endpick.EndpointRef) { s.calls["EndpointRemoved"]++ }

// beside is an observer next to a stage.
type beside struct{ s *Stage }

func (b *beside) Validate() error                       { b.s.calls["beside Validate"]++; return nil }
func (b *beside) Routed(*endpick.Event)                 { b.s.calls["beside Routed"]++ }
func (b *beside) FirstToken(*endpick.Event)             { b.s.calls["beside FirstToken"]++ }
func (b *beside) Done(*endpick.Event, *endpick.Outcome) { b.s.calls["beside Done"]++ }
func (b *beside) EndpointRemoved(endpick.EndpointRef)   { b.s.calls["beside EndpointRemoved"]++ }

// gate is an admitter that refuses the requests of one session.
type gate struct{ session string }

func (g gate) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	if req.Session == g.session {
		return errors.New("refused by the gate")
	}
	return nil
}

// CheckWrapping fails the test if a stage gets different calls in one policy than in the other,
// where another stage wraps it: it must get those of its optional methods too. Both
// contain the stage wherever they can, followed by the admitter among the admitters; requests
// are for the model m.
func CheckWrapping(t *testing.T, alone, wrapped func(*Stage, endpick.Admitter) endpick.Policy) {
	t.Helper()
	want, got := play(t, alone), play(t, wrapped)
	for _, name := range []string{"Routed", "FirstToken", "Done", "EndpointRemoved", "beside Done", "Validate"} {
		require.NotZero(t, want[name], "%s: the check itself is broken", name)
	}
	for name, n := range want {
		assert.Equal(t, n, got[name], "calls of %s", name)
	}
	assert.Equal(t, want, got)
}

// play routes, refuses, withdraws and ends requests, and returns how often each method was
// called.
func play(t *testing.T, policy func(*Stage, endpick.Admitter) endpick.Policy) map[string]int {
	s, now := newStage(), time.Unix(1000, 0)
	config := endpick.Config{
		Policy: policy(s, gate{"refused"}), Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}},
		Clock: func() time.Time { return now },
	}
	config.Policy.Admitters = append(config.Policy.Admitters, gate{"withdrawn"})
	r, err := endpick.New(config)
	require.NoError(t, err)
	validated := maps.Clone(s.calls)
	if _, err := endpick.New(config); err == nil {
		s.calls["two routers"]++
	}
	s.calls["Validate"], s.calls["beside Validate"] = validated["Validate"], validated["beside Validate"]
	for _, session := range []string{"", "", "refused", "withdrawn", ""} {
		req := endpick.Request{Model: "m", InputTokens: 10, Stream: true, Session: session, Receipt: new(endpick.Receipt)}
		lease, err := r.Route(req)
		if err != nil {
			require.ErrorAs(t, err, new(*endpick.RejectedError))
			continue
		}
		now = now.Add(time.Second)
		lease.Tokens(1)
		lease.Done(endpick.Outcome{OutputTokens: 2})
	}
	under, err := r.Route(endpick.Request{Model: "m", Adopted: &endpick.Adopted{Endpoint: "b"}})
	require.NoError(t, err)
	under.Done(endpick.Outcome{})
	require.NoError(t, r.Remove("a"))
	require.Zero(t, r.Stats().OpenLeases)
	return s.calls
}
