package main

import (
	"log/slog"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/traffic"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two servers die and one comes back, with its cache empty, while conversations
// go on: no request fails of which no byte had arrived.
func TestServersDie(t *testing.T) {
	for _, policy := range []string{"round-robin", "lmetric", "predicted-latency"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			config, err := traffic.ServerConfig(16384)
			require.NoError(t, err)
			f, err := traffic.StartFleet(4, config)
			require.NoError(t, err)
			defer func() { assert.NoError(t, f.Close()) }()
			g, err := newGateway(gatewayConfig{
				policy: policy, endpoints: f.Endpoints(), seed: 1, log: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			defer g.close()
			server := httptest.NewServer(g)
			defer server.Close()
			c := traffic.NewClient(server.URL)
			defer c.Close()

			w := traffic.Workload{Duration: 1800 * time.Millisecond, Rate: 50, Groups: 6, SystemTokens: 1500, QuestionTokens: 80, OutputTokens: 48, Turns: 2, Think: 100 * time.Millisecond, Seed: 1}
			var group sync.WaitGroup
			group.Go(func() {
				time.Sleep(600 * time.Millisecond)
				assert.NoError(t, f.Members[0].Kill())
				time.Sleep(150 * time.Millisecond)
				assert.NoError(t, f.Members[1].Kill())
				time.Sleep(150 * time.Millisecond)
				assert.NoError(t, f.Members[0].Start(config))
			})
			samples := c.Play(t.Context(), w.Conversations(), func() {})
			group.Wait()

			var cut int
			for _, s := range samples {
				if s.Err != nil {
					assert.True(t, s.GotByte, "failed before its first byte: %v", s.Err)
					cut++
				}
			}
			t.Logf("%d requests, %d cut off after their first byte, %+v", len(samples), cut, g.transport.Stats())
			require.Greater(t, len(samples), 40)
			require.Less(t, cut, len(samples)/2)
			require.Positive(t, g.transport.Stats().Retries, "the kills were noticed")
			// Health may keep it out for some seconds after it is back.
			require.Eventually(t, func() bool {
				_ = c.Ask(t.Context(), time.Now(), []traffic.Message{{Role: "user", Content: "Hello."}}, 1)
				return f.Members[0].Server.Totals().Completed > 0
			}, time.Minute, 20*time.Millisecond, "the server that came back is used again")
			// A client has its last byte a little before the proxy closes the lease.
			require.Eventually(t, func() bool { return g.router.Stats().OpenLeases == 0 }, 30*time.Second, time.Millisecond)
			for _, e := range g.router.Endpoints() {
				require.Zero(t, e.Candidate.InFlight)
			}
		})
	}
}
