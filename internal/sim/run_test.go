package sim

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/engine"
)

func mustRun(t testing.TB, cfg Config) *Report {
	rep, err := Run(cfg)
	require.NoError(t, err)
	require.Equal(t, rep.Requests, rep.Completed+rep.Rejected+rep.Lost+rep.Running)
	return rep
}

func scenario(t testing.TB, name string) Named {
	n, err := Scenario(name)
	require.NoError(t, err)
	return n
}

func TestPoliciesSideBySide(t *testing.T) {
	a := scenario(t, "A")
	fleet, err := a.Fleet()
	require.NoError(t, err)
	for _, p := range []func() (endpick.Config, error){random, roundRobin, leastLoaded, vllm, lmetric} {
		rep := mustRun(t, Config{Router: p, Fleet: fleet, Workload: a.At(25, 1000)})
		line, _ := json.Marshal(rep)
		fmt.Println(string(line))
	}
}

func BenchmarkScenarioA(b *testing.B) {
	a := scenario(b, "A")
	for _, p := range []struct {
		name   string
		router func() (endpick.Config, error)
	}{{"least-loaded", leastLoaded}, {"lmetric-exact", lmetric}} {
		b.Run(p.name, func(b *testing.B) {
			done := 0
			for b.Loop() {
				rep := mustRun(b, Config{Router: p.router, Fleet: Fleet(10, engine.Config{}), Workload: a.At(25, 10_000)})
				done += rep.Completed
			}
			b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
