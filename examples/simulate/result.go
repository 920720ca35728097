package main

import (
	"io"

	"github.com/endpick/endpick/internal/lab/sim"
)

// row is a run in the JSON output.
type row struct {
	Policy string  `json:"policy"` // as the command names it
	Rate   float64 `json:"rate"`   // requests per second; for a trace, those of the run
	// Workload is the scenario; a trace has none. Load is the name of the rate, if the
	// command used one.
	Workload string `json:"workload,omitempty"`
	Load     string `json:"load,omitempty"`
	// RateScale is set if the command used factors instead of rates.
	RateScale float64 `json:"rate_scale,omitempty"`
	Seed      uint64  `json:"seed"`
	*sim.Report
	Predictions *predictions `json:"predictions,omitempty"` // of a policy that predicts
}

// result is a run without its samples.
type result struct {
	cell
	row row
}

func newResult(c cell, report *sim.Report) *result {
	r := &result{cell: c, row: row{Policy: c.policy, Rate: c.rate, Workload: c.sweep.scenario, Load: c.load(), Seed: c.seed, Report: report}}
	if c.sweep.scaled {
		r.row.Rate, r.row.RateScale = report.OfferedRPS, c.rate
	}
	// A sweep of many runs only keeps what it shows.
	for _, s := range []*sim.Summary{&report.TTFT, &report.TPOT, &report.E2E} {
		*s = sim.Summary{Count: s.Count, Mean: s.Mean, P50: s.P50, P90: s.P90, P95: s.P95, P99: s.P99}
	}
	return r
}

func writeJSON(w io.Writer, results []*result) error {
	rows := make([]row, len(results))
	for i, r := range results {
		rows[i] = r.row
	}
	return indented(w, rows)
}
