package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/endpick/endpick/prefix/diagnose"
	"github.com/endpick/endpick/transport/recording"
)

//go:embed caches.html
var cachesHTML string

// How many requests the page of cache misses covers, and of how many bytes in total.
const (
	recentRequests = 512
	recentBytes    = 4 << 20
)

// recent keeps the latest requests for a diagnosis. It is safe for concurrent use.
type recent struct {
	mu    sync.Mutex
	all   []*recording.Request // newest last
	bytes int64

	explaining sync.Mutex // one diagnosis at a time
}

// add adds a request, without its text.
func (c *recent) add(r recording.Request) {
	if r.Prompt != nil {
		r.Prompt = withoutText(r.Prompt)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, &r)
	c.bytes += sizeOf(&r)
	drop := 0
	for len(c.all)-drop > recentRequests || c.bytes > recentBytes {
		c.bytes -= sizeOf(c.all[drop])
		c.all[drop] = nil
		drop++
	}
	c.all = c.all[drop:]
}

func withoutText(p *recording.Prompt) *recording.Prompt {
	strip := func(pieces []recording.Piece) []recording.Piece {
		own := slices.Clone(pieces)
		for i := range own {
			own[i].Text = ""
		}
		return own
	}
	return &recording.Prompt{Tools: strip(p.Tools), Messages: strip(p.Messages), Partial: p.Partial}
}

// explain diagnoses the kept requests, and returns the time of the first.
func (c *recent) explain(price priceSettings, blockTokens func(endpoint string) int) (*diagnose.Report, time.Time, error) {
	c.explaining.Lock()
	defer c.explaining.Unlock()
	c.mu.Lock()
	all := slices.Clone(c.all)
	c.mu.Unlock()
	var since time.Time
	if len(all) > 0 {
		since = slices.MinFunc(all, func(a, b *recording.Request) int { return a.Time.Compare(b.Time) }).Time
	}
	report, err := diagnose.Explain(all, diagnose.Config{Price: price.Prompt, CachedMultiplier: price.Cached, BlockTokens: blockTokens})
	return report, since, err
}

// blockTokens returns how many tokens a block of an endpoint's cache has; 0: not known.
func (g *gateway) blockTokens() func(endpoint string) int {
	of := map[string]int{}
	for _, e := range g.router.Endpoints() {
		facts, _ := g.inspector.Facts(e.Candidate.Endpoint)
		of[e.Candidate.Endpoint.ID] = facts.BlockTokens
	}
	return func(endpoint string) int { return of[endpoint] }
}

// cachesPage is the content of the page.
type cachesPage struct {
	Now, Since time.Time
	Money      bool
	Report     *diagnose.Report
	Heard      []heardStatus
}

// caches writes the page of cache misses, which contains no text of requests.
func (g *gateway) caches(price priceSettings) http.HandlerFunc {
	page := template.Must(template.New("caches").Funcs(template.FuncMap{
		"where":  func(f diagnose.Finding) string { return where(&f) },
		"tenant": g.tenantName,
		"money":  func(v float64) string { return fmt.Sprintf("%.6f", v) },
	}).Parse(cachesHTML))
	return func(w http.ResponseWriter, _ *http.Request) {
		p := cachesPage{Now: time.Now(), Money: price.Prompt > 0, Heard: g.hearing.status()}
		var err error
		if p.Report, p.Since, err = g.recent.explain(price, g.blockTokens()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		writePage(w, page, p, "default-src 'none'; style-src 'unsafe-inline'")
	}
}
