package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
)

//go:embed heat.html
var heatSource string

var heatTemplate = template.Must(template.New("heat").Parse(heatSource))

// heatPage is the data of the template.
type heatPage struct {
	Notes    string
	Policies []string
	Maps     []heatMap
}

// heatMap is the losses in one measure.
type heatMap struct {
	ID, Title string
	Means     []heatCell // by policy: geometric mean over all rounds
	Rows      []heatRow
}

type heatRow struct {
	Contest, Load, Best string
	Held                bool
	Cells               []heatCell // by policy
}

type heatCell struct {
	Text, Interval string
	Color          template.CSS
}

// interval is half of the 95 % interval of a mean, by Student's distribution; NaN
// for fewer than two values.
func interval(values []float64) float64 {
	n := float64(len(values))
	sum, squares := 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	for _, v := range values {
		squares += (v - sum/n) * (v - sum/n)
	}
	quantiles := []float64{math.NaN(), math.NaN(), 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26}
	t := 1.96 + 2.6/n
	if len(values) < len(quantiles) {
		t = quantiles[len(values)]
	}
	return t * math.Sqrt(squares/(n-1)/n)
}

// newHeatCell colours a loss: white is none, dark red twice as much or more.
func newHeatCell(loss, half float64) heatCell {
	c := heatCell{Text: fmt.Sprintf("%.3f", loss)}
	if loss >= 9.995 {
		c.Text = fmt.Sprintf("%.0f", loss)
	}
	if !math.IsNaN(half) {
		c.Interval = fmt.Sprintf("± %.3f", half)
	}
	depth := math.Sqrt(min(max(loss-1, 0), 1))
	c.Color = template.CSS(fmt.Sprintf("hsl(%.0f 85%% %.0f%%)", 45-45*depth, 100-45*depth))
	return c
}

// losses are a policy's losses in one round, by seed, relative to the policy with the
// best mean over seeds.
func (r *round) losses(policies []string, policy string, value func(*score) float64) []float64 {
	best := policies[0]
	for _, p := range policies {
		if r.mean(p, value) < r.mean(best, value) {
			best = p
		}
	}
	own, others := r.scores[policy], r.scores[best]
	var out []float64
	for i := range min(len(own), len(others)) {
		out = append(out, value(&own[i])/value(&others[i]))
	}
	return out
}

// writeHeat writes a self-contained page: no script, no network.
func (t *tournament) writeHeat(w io.Writer, scores []score) error {
	rounds := t.rounds(scores)
	page := heatPage{Policies: t.policies, Notes: t.notes(len(rounds))}
	held := map[string]bool{}
	for _, c := range t.contests {
		held[c.name] = c.held
	}
	for _, m := range measures {
		h := heatMap{ID: strings.ReplaceAll(m.name, " ", "-"), Title: m.name}
		logs := make([]float64, len(t.policies))
		for i := range rounds {
			r := &rounds[i]
			row := heatRow{Contest: r.contest, Held: held[r.contest], Load: fmt.Sprintf("%g %%", math.Round(1000*r.load)/10)}
			best := math.Inf(1)
			for _, p := range t.policies {
				best = min(best, r.mean(p, m.value))
			}
			row.Best = fmt.Sprintf("%.0f ms", best)
			if m.name == "goodput" {
				row.Best = fmt.Sprintf("%.3g/s", 1/best)
			}
			for j, p := range t.policies {
				loss := r.loss(t.policies, p, m.value)
				logs[j] += math.Log(loss) / float64(len(rounds))
				row.Cells = append(row.Cells, newHeatCell(loss, interval(r.losses(t.policies, p, m.value))))
			}
			h.Rows = append(h.Rows, row)
		}
		for _, log := range logs {
			h.Means = append(h.Means, newHeatCell(math.Exp(log), math.NaN()))
		}
		page.Maps = append(page.Maps, h)
	}
	return heatTemplate.Execute(w, page)
}
