package endpick

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The ends of the interval are never reached, whatever the hash.
func TestUnit(t *testing.T) {
	assert.Greater(t, unit(0), 0.0)
	assert.Less(t, unit(math.MaxUint64), 1.0)
	assert.InDelta(t, 0.5, unit(1<<63), 1e-15)
}

func TestRequestValidation(t *testing.T) {
	r := must(New(Config{Endpoints: []Endpoint{{ID: "a"}}}))
	for _, c := range []struct {
		req  Request
		text string
	}{
		{Request{InputTokens: -1}, "endpick: request: InputTokens is negative"},
		{Request{ExpectedOutputTokens: -1}, "endpick: request: ExpectedOutputTokens is negative"},
		{Request{Responses: -1}, "endpick: request: Responses is negative"},
		{Request{BlockTokens: -1}, "endpick: request: BlockTokens is negative, or above 2^31 - 1"},
		{Request{BlockTokens: math.NaN()}, "endpick: request: BlockTokens is negative, or above 2^31 - 1"},
		{Request{BlockTokens: 1e300}, "endpick: request: BlockTokens is negative, or above 2^31 - 1"},
	} {
		lease, err := r.Route(c.req)
		assert.EqualError(t, err, c.text)
		assert.ErrorAs(t, err, new(*RequestError))
		assert.Equal(t, Lease{}, lease)
	}
	assert.Equal(t, uint64(6), r.Stats().BadRequest)
	assert.Zero(t, r.Stats().OpenLeases)
	if math.MaxInt > math.MaxInt32 {
		tooLong := int64(math.MaxInt32) + 1
		_, err := r.Route(Request{InputTokens: int(tooLong)})
		assert.EqualError(t, err, "endpick: request: InputTokens is above 2^31 - 1")
	}
	must(r.Route(Request{InputTokens: math.MaxInt32})).Done(Outcome{})
}

func TestRequestDefaults(t *testing.T) {
	assert.Equal(t, 16.0, (&Request{}).TokensPerBlock())
	assert.Equal(t, 12.5, (&Request{BlockTokens: 12.5}).TokensPerBlock())
	at := time.Unix(3, 0)
	req := Request{InputTokens: 5}.At(at, 1, 9)
	assert.Equal(t, at, req.Now())
	assert.Equal(t, uint64(9), req.Number())
	assert.Equal(t, 5, req.InputTokens)
	assert.Equal(t, []bool{false, true, false}, []bool{SLO{}.Asked(), SLO{TPOT: 1}.Asked(), SLO{TTFT: -1}.Asked()})
}

// Matchers of others may say anything.
func TestMatchShare(t *testing.T) {
	for _, c := range []struct {
		input, matched, fresh int
		share                 float64
	}{
		{0, 0, 0, 0},
		{0, 5, 0, 0},
		{100, 0, 100, 0},
		{100, -3, 100, 0},
		{100, math.MinInt, 100, 0},
		{100, math.MaxInt, 0, 1},
		{100, 50, 50, 0.5},
		{100, 98, 2, 0.98},
		{100, 99, 1, 1}, // all but the token that engines compute again
		{100, 100, 0, 1},
		{100, 170, 0, 1},
		{1, 0, 1, 0},
	} {
		candidate := Candidate{PrefixTokens: c.matched}
		req := Request{InputTokens: c.input}
		assert.Equal(t, c.share, candidate.MatchShare(&req), "%+v", c)
		assert.Equal(t, c.fresh, candidate.NewTokens(&req), "%+v", c)
	}
}
