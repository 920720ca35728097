package main

import (
	"log/slog"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two servers die and one comes back, with its cache empty, while conversations
// go on: no request fails of which no byte had arrived.
func TestServersDie(t *testing.T) {
	for _, policy := range []string{"round-robin", "lmetric", "predicted-latency"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			config, err := serverConfig(16384)
			require.NoError(t, err)
			f, err := startFleet(4, config)
			require.NoError(t, err)
			defer func() { assert.NoError(t, f.close()) }()
			g, err := newGateway(gatewayConfig{
				policy: policy, endpoints: f.endpoints(), seed: 1, log: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			defer g.close()
			server := httptest.NewServer(g)
			defer server.Close()
			c := newClient(server.URL)
			defer c.close()

			w := workload{duration: 1800 * time.Millisecond, rate: 50, groups: 6, systemTokens: 1500, questionTokens: 80, outputTokens: 48, turns: 2, think: 100 * time.Millisecond, seed: 1}
			var group sync.WaitGroup
			group.Go(func() {
				time.Sleep(600 * time.Millisecond)
				assert.NoError(t, f.members[0].kill())
				time.Sleep(150 * time.Millisecond)
				assert.NoError(t, f.members[1].kill())
				time.Sleep(150 * time.Millisecond)
				assert.NoError(t, f.members[0].start(config))
			})
			samples := play(t.Context(), c, w.conversations(), func() {})
			group.Wait()

			var cut int
			for _, s := range samples {
				if s.err != nil {
					assert.True(t, s.gotByte, "failed before its first byte: %v", s.err)
					cut++
				}
			}
			t.Logf("%d requests, %d cut off after their first byte, %+v", len(samples), cut, g.transport.Stats())
			require.Greater(t, len(samples), 40)
			require.Less(t, cut, len(samples)/2)
			require.Positive(t, g.transport.Stats().Retries, "the kills were noticed")
			// Health may keep it out for some seconds after it is back.
			require.Eventually(t, func() bool {
				_ = c.ask(t.Context(), time.Now(), []message{{"user", "Hello."}}, 1)
				return f.members[0].server.Totals().Completed > 0
			}, time.Minute, 20*time.Millisecond, "the server that came back is used again")
			// A client has its last byte a little before the proxy closes the lease.
			require.Eventually(t, func() bool { return g.router.Stats().OpenLeases == 0 }, 5*time.Second, time.Millisecond)
			for _, e := range g.router.Endpoints() {
				require.Zero(t, e.Candidate.InFlight)
			}
		})
	}
}
