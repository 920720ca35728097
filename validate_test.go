package endpick_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
)

// halves is a scorer with an invalid configuration.
type halves struct{ err error }

func (halves) Score(*endpick.Request, []endpick.Candidate, []float64) {}
func (h halves) Validate() error                                      { return h.err }
func (halves) Name() string                                           { return "halves" }

// A stage that is a nil pointer, as when the error of its New was ignored, is named
// instead of being called.
func TestNilPointersAreNoStages(t *testing.T) {
	var stage *allStages
	for field, policy := range map[string]endpick.Policy{
		"Policy.Matcher":           {Matcher: stage},
		"Policy.Predictor":         {Predictor: stage},
		"Policy.Picker":            {Picker: stage},
		"Policy.Filters[0]":        {Filters: []endpick.Filter{stage}},
		"Policy.Admitters[0]":      {Admitters: []endpick.Admitter{stage}},
		"Policy.Scorers[0].Scorer": {Scorers: []endpick.Weighted{{Scorer: stage, Weight: 1}}},
	} {
		_, err := endpick.New(endpick.Config{Policy: policy})
		assert.EqualError(t, err, "endpick: config: "+field+" is a nil *endpick_test.allStages")
		assert.ErrorIs(t, err, endpick.ErrConfig)
	}
	var f predictFunc
	_, err := endpick.New(endpick.Config{Policy: endpick.Policy{Predictor: f}})
	assert.EqualError(t, err, "endpick: config: Policy.Predictor is a nil endpick_test.predictFunc")
}

// allStages is every stage at once; its methods need a value.
type allStages struct{ n int }

func (s *allStages) Match(*endpick.Request, []endpick.Candidate)       { s.n++ }
func (s *allStages) Predict(*endpick.Request, []endpick.Candidate)     { s.n++ }
func (s *allStages) Admit(*endpick.Request, []endpick.Candidate) error { s.n++; return nil }
func (s *allStages) Filter(_ *endpick.Request, c []endpick.Candidate) []endpick.Candidate {
	return c[s.n:]
}
func (s *allStages) Score(*endpick.Request, []endpick.Candidate, []float64)    { s.n++ }
func (s *allStages) Pick(*endpick.Request, []endpick.Candidate, []float64) int { return s.n }
func (s *allStages) Validate() error                                           { s.n++; return nil }

// The error of a stage's Validate names the stage, and matches ErrConfig,
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
		policy := endpick.Policy{Scorers: []endpick.Weighted{{Scorer: halves{tc.said}, Weight: 1}}}
		_, err := endpick.New(endpick.Config{Policy: policy})
		assert.EqualError(t, err, tc.text)
		assert.ErrorIs(t, err, endpick.ErrConfig)
		assert.ErrorIs(t, err, tc.said)
		var config *endpick.ConfigError
		assert.ErrorAs(t, err, &config)
		assert.Equal(t, tc.field, config.Field)

		r, _ := newRouter(t, endpick.Config{})
		assert.Equal(t, err, r.SetPolicy(policy))
	}
}
