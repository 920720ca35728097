package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/endpick/endpick/internal/lab/traffic"
	endpickcaddy "github.com/endpick/endpick/transport/caddy"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var duration = flag.Duration("duration", 500*time.Millisecond, "how long conversations start in TestCaddy, for each way of balancing")

// In Caddy all requests are served, and as many prompts are in the caches as with the library's own
// transport. With the flag, go test -v prints a comparison with Caddy's own load balancers that
// takes two minutes, in which endpick's median TTFT is at most a quarter of each of the others':
//
//	GOWORK=off go test -v -run TestCaddy . -duration 20s
func TestCaddy(t *testing.T) {
	dir := t.TempDir()
	sockets := 0 // Caddy removes its sockets some time after it has stopped, so each front gets its own
	way := func(name, policy string) traffic.Way {
		return traffic.Way{Name: name, Open: func(f *traffic.Fleet) (*traffic.Front, error) {
			sockets++
			return front(f, name, policy, filepath.Join(dir, fmt.Sprint(sockets)))
		}}
	}
	ways := []traffic.Way{
		way("random", ""), way("round_robin", ""), way("least_conn", ""), way("endpick", "marginal-delay"),
		{Name: "endpick, no Caddy", Open: traffic.Direct("marginal-delay")},
	}
	results, hits, text, err := traffic.Contest(t.Context(), traffic.ContestWorkload(*duration), ways,
		way("endpick", traffic.OneByOne).Open, traffic.Direct(traffic.OneByOne))
	require.NoError(t, err)
	t.Log("\n" + text)
	assert.InDelta(t, hits[1], hits[0], 0.01)
	if *duration >= 10*time.Second { // which one is faster takes a while to say
		for _, own := range results[:3] {
			assert.LessOrEqual(t, results[3].TTFT.P50, own.TTFT.P50/4, own.Policy)
		}
	}
}

// front is Caddy with a load balancer in front of the servers.
func front(f *traffic.Fleet, name, policy, socket string) (*traffic.Front, error) {
	lines, leases := "lb_policy "+name+"\n\tto", func() int { return 0 }
	for _, m := range f.Members {
		lines += " " + m.Address
	}
	if name == "endpick" {
		lines = "dynamic endpick\n\ttransport endpick {\n\tpolicy " + policy + "\n\tseed 1\n"
		for _, m := range f.Members {
			lines += "\tendpoint " + m.Address + " {\n\t\tid " + m.ID + "\n\t}\n"
		}
		lines += "\t}"
		leases = func() int {
			if router := endpickcaddy.Router("default"); router != nil {
				return router.Stats().OpenLeases
			}
			return 0
		}
	}
	text := "{\n\tadmin off\n\tpersist_config off\n\tlog {\n\t\tlevel ERROR\n\t}\n}\n" +
		"http:// {\n\tbind unix/" + socket + "\n\treverse_proxy {\n\t" + lines + "\n}\n}\n"
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), nil)
	if err != nil {
		return nil, err
	}
	client := traffic.NewClient("http://front")
	client.HTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	return &traffic.Front{Client: client, Leases: leases, Stop: caddy.Stop}, caddy.Load(config, true)
}

func TestCaddyfile(t *testing.T) {
	text, err := os.ReadFile("Caddyfile")
	require.NoError(t, err)
	_, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(text, map[string]any{"filename": "Caddyfile"})
	require.NoError(t, err)
	require.Empty(t, warnings, "it is formatted")
}
