package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
)

//go:embed page.html
var pageSource string

var pageTemplate = template.Must(template.New("page").Parse(pageSource))

// page is the data of the template.
type page struct {
	Title, Command string
	Legend         []legendEntry
	Sections       []section
	Table          string
}

type legendEntry struct{ Name, Color, Dash string }

// section is a heading with plots.
type section struct {
	ID, Title, Text string
	Plots           []figure
}

type figure struct {
	Title string
	SVG   template.HTML
}

// writePage writes a self-contained page: no script, no network.
func writePage(w io.Writer, o *options, results []*result) error {
	var table strings.Builder
	if err := writeTable(&table, results, false); err != nil {
		return err
	}
	what := "scenario " + o.sweeps[0].scenario
	if t := o.experiment.Trace; t != nil {
		what = t.Name
	}
	b := pageBuilder{o: o, groups: groupsOf(results)}
	pg := page{Title: "Routing policies on " + what, Command: o.command, Table: table.String()}
	for i, name := range o.policies {
		color, dash := lineStyle(i)
		pg.Legend = append(pg.Legend, legendEntry{Name: name, Color: color, Dash: dash})
	}
	pg.Sections = []section{
		b.againstRate("latency", "Latency against rate", "Means over seeds. TTFT is the time to the first token, TPOT the time per token after it, E2E the whole request.", []measure{
			{"TTFT, median", "TTFT p50 (ms)", logarithmic, func(r *row) float64 { return r.TTFT.P50 }},
			{"TTFT, 95th percentile", "TTFT p95 (ms)", logarithmic, func(r *row) float64 { return r.TTFT.P95 }},
			{"TPOT, mean", "TPOT mean (ms)", free, func(r *row) float64 { return r.TPOT.Mean }},
			{"E2E, mean", "E2E mean (s)", free, func(r *row) float64 { return r.E2E.Mean / 1000 }},
		}),
		b.distributions(),
		b.againstRate("hit", "Prefix hits and balance", "The share of prompt tokens that servers found in their caches, and how unequally the servers were busy with prefill: the standard deviation between them as a share of the mean, over windows of time.", []measure{
			{"Prefix hits", "hit ratio (%)", fromZero, func(r *row) float64 { return 100 * r.PrefixHitRatio }},
			{"Imbalance", "imbalance", fromZero, func(r *row) float64 { return r.Imbalance }},
		}),
	}
	if len(o.experiment.Classes) > 0 || results[0].row.SLOAttainment != nil {
		pg.Sections = append(pg.Sections, b.againstRate("slo", "SLO attainment and goodput", "The share of requests with an SLO that met it, and how many requests a second met theirs, or had none.", []measure{
			{"Attainment", "attainment (%)", fromZero, func(r *row) float64 { return 100 * attainment(r) }},
			{"Goodput", "goodput (req/s)", fromZero, func(r *row) float64 { return r.GoodputRPS }},
		}))
	}
	return pageTemplate.Execute(w, pg)
}

// pageBuilder builds the sections.
type pageBuilder struct {
	o      *options
	groups []group
}

type measure struct {
	title, axis string
	scale       scale
	value       func(*row) float64
}

// againstRate plots figures against the rate.
func (b *pageBuilder) againstRate(id, title, text string, measures []measure) section {
	s := section{ID: id, Title: title, Text: text}
	for _, m := range measures {
		c := &chart{x: "rate (req/s)", y: m.axis, scaleY: m.scale, marks: true}
		for i, policy := range b.o.policies {
			line := series{policy: i}
			for _, rate := range slices.Sorted(slices.Values(b.o.sweeps[0].rates)) {
				g := b.at(policy, rate)
				line.points = append(line.points, point{g.mean(func(r *row) float64 { return r.Rate }), g.mean(m.value)})
			}
			c.series = append(c.series, line)
		}
		s.Plots = append(s.Plots, figure{m.title, c.svg()})
	}
	return s
}

// distributions plots the CDFs of TTFT and TPOT for each rate.
func (b *pageBuilder) distributions() section {
	s := section{ID: "cdf", Title: "Distributions", Text: "The share of requests that took no longer. Where there are several seeds, each quantile is the mean of theirs."}
	for _, rate := range b.o.sweeps[0].rates {
		s.Plots = append(s.Plots,
			figure{"TTFT, " + b.rateName(rate), b.cdf(rate, "TTFT (ms)", logarithmic, func(r *result) []float64 { return r.ttft }).svg()},
			figure{"TPOT, " + b.rateName(rate), b.cdf(rate, "TPOT (ms)", free, func(r *result) []float64 { return r.tpot }).svg()})
	}
	return s
}

func (b *pageBuilder) cdf(rate float64, axis string, scaleX scale, quantiles func(*result) []float64) *chart {
	c := &chart{x: axis, y: "share of requests", scaleX: scaleX, scaleY: share}
	for i, policy := range b.o.policies {
		g := b.at(policy, rate)
		line := series{policy: i}
		for k, y := range cdfShares {
			sum := 0.0
			for _, r := range g.runs {
				sum += quantiles(r)[k]
			}
			line.points = append(line.points, point{sum / float64(len(g.runs)), y})
		}
		c.series = append(c.series, line)
	}
	return c
}

func (b *pageBuilder) at(policy string, rate float64) *group {
	for i := range b.groups {
		if b.groups[i].policy == policy && b.groups[i].rate == rate {
			return &b.groups[i]
		}
	}
	panic("every cell has a result")
}

func (b *pageBuilder) rateName(rate float64) string {
	if b.o.sweeps[0].scaled {
		return fmt.Sprintf("%g × the recorded rate", rate)
	}
	return fmt.Sprintf("%g requests per second", rate)
}
