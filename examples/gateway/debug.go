package main

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
	"strconv"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport"
)

//go:embed debug.html
var debugHTML string

var debugTemplate = template.Must(template.New("debug").Funcs(template.FuncMap{
	"number": func(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) },
	"clock":  func(t time.Time) string { return t.Format("15:04:05.000") },
}).Parse(debugHTML))

// debugPage is what the page shows.
type debugPage struct {
	Now       time.Time
	Policy    string
	Router    endpick.Stats
	Transport transport.Stats
	Endpoints []debugEndpoint
	Index     *prefix.IndexStats // nil: the policy has none
	Decisions []*endpick.Receipt // the newest first
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
	held := map[endpick.Ref]*prefix.EndpointStats{}
	if g.index != nil {
		stats := g.index.Stats()
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
