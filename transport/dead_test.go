package transport_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// One server lives beside hundreds that refuse connections: the first request finds it, and the
// next ones know.
func TestOneLivesBesideManyDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead = 400
		config := pinned
		for i := range dead + 1 {
			id := fmt.Sprintf("a%d", i)
			if i == dead {
				id = "z"
			}
			config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id, Address: id})
		}
		router, err := endpick.New(config)
		require.NoError(t, err)
		dials := 0
		base := tripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "z" {
				dials++
				return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
			}
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
		})
		tr, err := transport.New(transport.Config{Router: router, Base: base})
		require.NoError(t, err)
		ask := func(tr *transport.Transport) error {
			resp, err := tr.RoundTrip(post(t, "/v1/completions", `{"model":"m","prompt":"x"}`))
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			return err
		}
		require.NoError(t, ask(tr))
		assert.Equal(t, dead, dials)
		dials = 0
		for range 100 {
			require.NoError(t, ask(tr))
		}
		assert.Zero(t, dials, "it is known who is dead")
		for range 60 {
			time.Sleep(time.Second)
			require.NoError(t, ask(tr))
		}
		t.Log(dials, "trials in a minute")

		require.NoError(t, router.Remove("z"))
		dials = 0
		require.Error(t, ask(tr))
		assert.Equal(t, 3, dials, "if none lives, nobody asks all of them")

		never, err := transport.New(transport.Config{Router: router, Base: base, MaxAttempts: 1})
		require.NoError(t, err)
		dials = 0
		require.Error(t, ask(never))
		assert.Equal(t, 1, dials)
	})
}
