package endpick_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// A host that never reports a token hears of it, once.
func TestStreamsWithoutATokenAreReported(t *testing.T) {
	whole := func(l endpick.Lease) { l.Done(endpick.Outcome{}) }
	for name, tc := range map[string]struct {
		before func(r *endpick.Router)
		stream bool
		mirror *endpick.Adopted
		end    func(l endpick.Lease)
		want   []error
	}{
		"streams":          {stream: true, end: whole, want: []error{endpick.ErrNoFirstTokens}},
		"whole responses":  {end: whole},
		"canceled":         {stream: true, end: func(l endpick.Lease) { l.Done(endpick.Outcome{Status: endpick.Canceled}) }},
		"another router's": {stream: true, mirror: &endpick.Adopted{Endpoint: "a:80", Mirrored: true}, end: whole},
		"with tokens":      {stream: true, end: func(l endpick.Lease) { l.Tokens(3); whole(l) }},
		"with a first one": {stream: true, end: func(l endpick.Lease) {
			l.FirstToken()
			whole(l)
		}},
		"nothing but signs of life": {stream: true, end: func(l endpick.Lease) { l.Tokens(0); whole(l) }, want: []error{endpick.ErrNoFirstTokens}},
		"empty ones after a token": {stream: true, end: whole, before: func(r *endpick.Router) {
			l, err := r.Route(endpick.Request{Model: "m"})
			require.NoError(t, err)
			l.Tokens(1)
			whole(l)
		}},
	} {
		var heard []error
		r, err := endpick.New(endpick.Config{
			Endpoints: []endpick.Endpoint{{Address: "a:80"}},
			Warn:      func(err error) { heard = append(heard, err) },
		})
		require.NoError(t, err)
		if tc.before != nil {
			tc.before(r)
		}
		for i := range 40 {
			l, err := r.Route(endpick.Request{Model: "m", Stream: tc.stream, Adopted: tc.mirror})
			require.NoError(t, err)
			if i == 15 {
				assert.Empty(t, heard, "%s: too early", name)
			}
			tc.end(l)
		}
		assert.Equal(t, tc.want, heard, name)
	}
}
