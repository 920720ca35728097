package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/endpick/endpick/internal/traffic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport"
)

//go:embed debug.html
var debugHTML string

var debugTemplate = template.Must(template.New("debug").Funcs(template.FuncMap{
	"number": func(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) },
	"clock":  func(t time.Time) string { return t.Format("15:04:05.000") },
	// What is not known is not zero: it stays empty.
	"ms":      milliseconds,
	"percent": func(v float64) string { return share("%.1f %%", v) },
	"error":   func(v float64) string { return share("%+.0f %%", v) },
	"expected": func(c endpick.Candidate) []time.Duration {
		p := &c.Prediction
		return []time.Duration{expected(p, endpick.TTFT, p.TTFT), expected(p, endpick.TPOT, p.TPOT)}
	},
}).Parse(debugHTML))

func milliseconds(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return strconv.FormatFloat(traffic.Millis(d), 'f', 1, 64)
}

func share(format string, v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return fmt.Sprintf(format, 100*v)
}

// debugPage is what the page shows.
type debugPage struct {
	Now       time.Time
	Policy    string
	Router    endpick.Stats
	Transport transport.Stats
	Endpoints []debugEndpoint
	Index     *prefix.IndexStats // nil: the policy has none
	Decisions []*endpick.Receipt // the newest first

	Queue    *transport.QueueStatus // nil: nothing is held
	Health   []debugHealth          // of the predictor, if there is one
	Attained attainment
	Requests []measured // the newest first
}

// debugHealth is how well one latency of one model is predicted.
type debugHealth struct {
	Model, Target string
	predict.Health
}

type debugEndpoint struct {
	endpick.EndpointStatus
	State string
	// Index is what the prefix index knows of it, or nil.
	Index *prefix.EndpointStats
}

// debug writes the page. The requests' text is nowhere on it.
func (g *gateway) debug(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	if err := debugTemplate.Execute(&b, g.debugPage()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	_, _ = b.WriteTo(w)
}

func (g *gateway) debugPage() debugPage {
	p := debugPage{
		Now: time.Now(), Policy: g.policy,
		Router: g.router.Stats(), Transport: g.transport.Stats(), Decisions: g.receipts.newest(),
	}
	if q, ok := g.transport.Queue(); ok {
		p.Queue = &q
	}
	p.Requests, p.Attained = g.watch.newest()
	sources := g.watch.sources.Load()
	for _, l := range sources.Latencies {
		for _, m := range l.Health() {
			p.Health = append(p.Health,
				debugHealth{m.Model, "TTFT", m.TTFT}, debugHealth{m.Model, "TPOT", m.TPOT}, debugHealth{m.Model, "E2E", m.E2E})
		}
	}
	held := map[endpick.Ref]*prefix.EndpointStats{}
	if sources.Index != nil {
		stats := sources.Index.Stats()
		p.Index = &stats
		for i := range stats.Endpoints {
			held[stats.Endpoints[i].Ref] = &stats.Endpoints[i]
		}
	}
	for _, s := range g.router.Endpoints() {
		e := debugEndpoint{EndpointStatus: s, State: "serving", Index: held[s.Candidate.Ref]}
		switch {
		case s.Removed:
			e.State = "removed"
		case s.Draining:
			e.State = "draining"
		}
		p.Endpoints = append(p.Endpoints, e)
	}
	return p
}
