package transport_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
)

// One server lives beside hundreds that refuse connections: the first request finds it, and the
// next ones know.
func TestOneLivesBesideManyDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead = 400
		dials := 0
		base := tripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "z" {
				dials++
				return nil, noDial
			}
			return answered(200, "application/json", "{}")
		})
		w := newWorld(t, transport.Config{Base: base})
		for i := range dead {
			w.add(t, fmt.Sprintf("a%d", i), fmt.Sprintf("a%d", i))
		}
		w.add(t, "z", "z")
		request := func() *http.Request { return post(t, completions, `{"model":"m","prompt":"x"}`) }
		w.ok(t, request())
		assert.Equal(t, dead, dials)
		dials = 0
		for range 100 {
			w.ok(t, request())
		}
		assert.Zero(t, dials, "it is known who is dead")
		for range 60 {
			time.Sleep(time.Second)
			w.ok(t, request())
		}
		t.Log(dials, "trials in a minute")

		require.NoError(t, w.router.Remove("z"))
		dials = 0
		_, _, err := w.do(t, request())
		require.Error(t, err)
		assert.Equal(t, 3, dials, "if none lives, nobody asks all of them")

		never := rig.Must(transport.New(transport.Config{Router: w.router, Base: base, MaxAttempts: 1}))
		dials = 0
		_, err = never.RoundTrip(request())
		require.Error(t, err)
		assert.Equal(t, 1, dials)
	})
}
