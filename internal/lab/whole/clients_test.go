package whole

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/transport"
)

// clientInputs are the bodies of rig.Bodies, and the suite's exchanges with an odd
// client.
func clientInputs(t *testing.T) []row {
	shapes := rig.Bodies()
	scenarios := map[string]suite.Scenario{}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		s := shapes[name]
		names = append(names, name)
		scenarios[name] = suite.Scenario{Name: name, Request: suite.Request{Path: s.Path, Body: string(s.Bytes(16 << 10))}, Replies: []suite.Reply{{Parts: []string{answer}}}}
	}
	odd := []string{"headers", "body in chunks", "body of 1 MiB", "body with a trailer", "body that is no JSON", "no body", "gzip", "100-continue", "upgrade", "multipart", "a path of no API", "abort", "slow"}
	for _, s := range suite.Scenarios() {
		if slices.ContainsFunc(odd, func(part string) bool { return strings.Contains(s.Name, part) }) {
			names = append(names, s.Name)
			scenarios[s.Name] = s
		}
	}
	return each(t, names, func(t *testing.T, name string) []string {
		var g *gateway
		way := suite.Way{Name: "gateway", Open: func(servers []string) (*suite.Front, error) {
			g = newGateway(t, transport.Config{}, endpick.Config{}, servers[0])
			return &suite.Front{
				Network: "tcp", Address: g.server.Listener.Addr().String(), Router: func() *endpick.Router { return g.router },
				Close: func() error { return nil },
			}, nil
		}}
		began := time.Now()
		played, err := suite.Play(t.Context(), way, scenarios[name])
		require.NoError(t, err)
		assert.Empty(t, played.Late, "after %v", time.Since(began))
		var saw []string
		for _, a := range played.Answers {
			status := strings.TrimPrefix(a.Status, "HTTP/1.1 ")
			switch {
			case a.End == "left":
				status = "–, it has left"
			case status == "":
				status = "a connection that breaks"
			default:
				code := 0
				_, _ = fmt.Sscan(status, &code)
				var broke error
				if a.End != "whole" {
					broke = fmt.Errorf("cut")
				}
				status = view(code, a.Body, broke)
			}
			saw = append(saw, status)
		}
		leases := g.leases(t)
		if name == "upgrade" { // which end closes first is up to chance
			require.Contains(t, []string{"canceled", "completed"}, leases)
			leases = "canceled or completed"
		}
		return []string{strings.Join(slices.Compact(saw), ", "), leases}
	})
}
