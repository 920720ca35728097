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
