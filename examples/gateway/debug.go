package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport"
)

//go:embed debug.html
var debugHTML string

//go:embed debug.css
var debugCSS string

//go:embed debug.js
var debugJS string

// debugPolicy only allows the page's own script, whatever the page contains.
var debugPolicy = func() string {
	sum := sha256.Sum256([]byte(debugJS))
	return "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}()

var debugTemplate = template.Must(template.New("debug").Funcs(template.FuncMap{
	"css":     func() template.CSS { return template.CSS(debugCSS) },
	"script":  func() template.JS { return template.JS(debugJS) },
	"number":  number,
	"clock":   func(t time.Time) string { return t.Format("15:04:05 MST") },
	"brief":   brief,
	"ago":     brieflyAgo,
	"percent": func(v float64) string { return share("%.1f %%", v) },
	"error":   func(v float64) string { return share("%+.0f %%", v) },
	"hourly":  func(n int, hours float64) string { return number(float64(n) / hours) },
	"address": shownAddress,
	"W": func(c endpick.Candidate, assumed bool) string {
		return loadOf(&c, endpick.WaitingSignal, number(c.Waiting), assumed)
	},
	"R": func(c endpick.Candidate, assumed bool) string {
		return loadOf(&c, endpick.RunningSignal, number(c.Running), assumed)
	},
	"K": func(c endpick.Candidate, assumed bool) string {
		return loadOf(&c, endpick.KVUsageSignal, share("%.1f %%", c.KVUsage), assumed)
	},
	"tokens": tokensOf,
}).Parse(debugHTML))

// unknown is what the page says instead of a number that nobody knows.
const unknown = "–"

func number(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

func share(format string, v float64) string {
	if math.IsNaN(v) {
		return unknown
	}
	return fmt.Sprintf(format, 100*v)
}

// tokensOf is a length, which may be an estimate or unknown.
func tokensOf(n int, estimated bool) string {
	switch {
	case n == 0:
		return unknown
	case estimated:
		return "~" + strconv.Itoa(n)
	}
	return strconv.Itoa(n)
}

// debugPage is the content of the page.
type debugPage struct {
	Now       time.Time
	Hours     float64 // for which it runs, at least one
	Program   string  // its version, where and for how long it runs, and its settings
	Policy    string  // and those of models
	Asked     asked
	Router    endpick.Stats
	Transport transport.Stats
	Minute    slot     // the last one
	Unhealthy []string // sentences
	Serving   int      // not drained or removed
	Drained   int
	Lacking   []string // models that no server takes requests for
	Outdated  string   // why the settings are older than their file
	Failing   []string // servers of which too many attempts failed in the last minute, and how many
	Servers   []debugServer
	Models    []*debugModel // of servers that load them
	Idle      int           // servers that are well, have nothing to do and are not shown
	Hidden    int           // servers that are not shown for want of room
	Figures   []figure
	Minutes   int                // covered by the plots of all servers
	Index     *prefix.IndexStats // nil: the policy has none

	Queue    *transport.QueueStatus // nil: no queue
	Health   []debugHealth          // of the predictor, if any
	Attained attainment
	Lists    []*debugList
	Others   *othersPage // nil: no replicas
}

// figure is a plot with its latest value.
type figure struct {
	Title, Value, Note string
	Plot               template.HTML
	Keys               []key
}

type key struct{ Class, Name string }

// debugHealth says how well one latency of one model is predicted.
type debugHealth struct {
	Model, Target string
	predict.Health
}

// keptRequests is how many requests the gateway remembers in each list, shownRequests how many of
// these the page shows, and mostFound if some were asked for.
const (
	keptRequests  = 1000
	shownRequests = 20
	mostFound     = 100
)

// debug writes the page, which contains no text of requests.
func (g *gateway) debug(w http.ResponseWriter, r *http.Request) {
	p := g.debugPage(asked{r.URL.Query()})
	writePage(w, debugTemplate, &p, debugPolicy)
}

// writePage writes a page, in which the policy alone says what runs.
func writePage(w http.ResponseWriter, page *template.Template, content any, policy string) {
	var b bytes.Buffer
	if err := page.Execute(&b, content); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", policy)
	_, _ = b.WriteTo(w)
}

// policyNames names the policy, and those that models have instead.
func policyNames(s *settings) string {
	text := s.Policy
	for _, model := range slices.Sorted(maps.Keys(s.Models)) {
		if own := s.Models[model].Policy; own != "" && own != s.Policy {
			text += ", for " + model + " " + own
		}
	}
	return text
}

// Verdict is the state of everything: its severity, and a sentence.
func (p *debugPage) Verdict() (v struct{ Class, Text string }) {
	n, unhealthy := p.Serving, len(p.Unhealthy)
	healthy := map[bool]string{true: "The only server is healthy", false: fmt.Sprintf("All %d servers are healthy", n)}[n == 1]
	if p.Drained > 0 {
		healthy = fmt.Sprintf("%s %s healthy, and %d drained", count(n, "server"), plural(n, "is", "are"), p.Drained)
	}
	tried := float64(p.Minute.served + p.Minute.failed) // requests that are refused hide nothing
	failed, limited := float64(p.Minute.failed)/tried, float64(p.Minute.limited)/(tried+float64(p.Minute.limited))
	v.Class = "bad"
	switch {
	case n == 0:
		v.Text = "No server takes requests."
	case unhealthy > 0:
		v.Text = fmt.Sprintf("%d of %d servers %s unhealthy.", unhealthy, n, plural(unhealthy, "is", "are"))
	case len(p.Lacking) > 0:
		v.Text = fmt.Sprintf("%s, but %s %s no server.", healthy, count(len(p.Lacking), "model"), plural(len(p.Lacking), "has", "have"))
	case failed >= alarming:
		v.Text = fmt.Sprintf("%s, but of the requests that are not refused %.0f %% fail.", healthy, 100*failed)
	case p.Outdated != "":
		v.Class, v.Text = "soso", healthy+", but the settings in force are older than their file."
	case len(p.Failing) > 0:
		v.Class = "soso"
		v.Text = fmt.Sprintf("%s, but more than %.0f %% of the attempts at %s fail.", healthy, 100*alarmingAttempts, count(len(p.Failing), "server"))
	case limited >= alarming:
		v.Class, v.Text = "soso", fmt.Sprintf("%s, but %.0f %% of the requests get 429: too many at once, or over a quota.", healthy, 100*limited)
	default:
		v.Class, v.Text = "good", healthy+"."
	}
	return v
}

// alarming is the share of requests that fail, or are too many, from which the page is not green,
// and alarmingAttempts that of one server's attempts, if more than a few fail. The alerts' are the same.
const (
	alarming         = 0.05
	alarmingAttempts = 0.1
	fewFailures      = 3
)

func (g *gateway) debugPage(a asked) debugPage {
	now := time.Now()
	g.watch.sample(now)
	s := g.settings.Load()
	p := debugPage{Now: now, Hours: max(now.Sub(g.began).Hours(), 1), Asked: a, Policy: policyNames(s), Router: g.router.Stats(), Transport: g.transport.Stats()}
	host, _ := os.Hostname()
	p.Program = fmt.Sprintf("endpick %s on %s, up %v, configured by ", version(), cmp.Or(host, "an unknown host"), now.Sub(g.began).Round(time.Second))
	if s.document == nil {
		p.Program += "flags"
	} else {
		p.Program += s.document.name
	}
	if err := g.outdated.Load(); err != nil {
		p.Outdated = (*err).Error()
	}
	if q, ok := g.transport.Queue(); ok {
		p.Queue = &q
	}
	sources := g.watch.sources.Load()
	for _, l := range sources.Latencies {
		for _, m := range l.Health() {
			p.Health = append(p.Health,
				debugHealth{m.Model, "TTFT", m.TTFT}, debugHealth{m.Model, "TPOT", m.TPOT}, debugHealth{m.Model, "E2E", m.E2E})
		}
	}
	if sources.Index != nil {
		stats := sources.Index.Stats()
		p.Index = &stats
	}
	p.Others = g.others()
	g.watch.mu.Lock()
	p.Attained = g.watch.attained
	all := g.watch.history.all.last(now)
	g.watch.mu.Unlock()
	for _, s := range all[len(all)-perMinute:] {
		if s != nil {
			p.Minute.add(s)
		}
	}
	g.addServers(&p, s)
	p.addModels(sources.Router.Endpoints(), sources.Delay)
	p.Figures = figures(all, &p.Minute, p.Router.OpenLeases, p.Queue)
	p.Minutes = int(math.Round((time.Duration(len(shown(all))) * slotTime).Minutes()))
	if a.Any() {
		p.Lists = g.watch.stories.lists(a, mostFound)
	} else {
		p.Lists = g.watch.stories.lists(a, shownRequests)
	}
	return p
}

// figures are the plots of all servers together.
func figures(all []*slot, minute *slot, inFlight int, q *transport.QueueStatus) []figure {
	all = shown(all)
	perSecond := func(of func(*slot) int) []float64 {
		return values(all, 0, func(s *slot) float64 { return float64(of(s)) / slotTime.Seconds() })
	}
	rate := func(n int) string { return fmt.Sprintf("%.3g/s", float64(n)/time.Minute.Seconds()) }
	quantile := func(q float64) []float64 {
		return values(all, math.NaN(), func(s *slot) float64 { return s.ttft.quantile(q) })
	}
	of := func(part func(*slot) float64) []float64 {
		return values(all, math.NaN(), func(s *slot) float64 { return part(s) / s.prompt }) // NaN without prompts
	}
	requests := figure{
		Title: "Requests", Value: rate(minute.served + minute.failed + minute.refused), Note: "in the last minute",
		Plot: plot("requests a second over time", 0.2, line{"good", perSecond(func(s *slot) int { return s.served }), true},
			line{"second", seen(perSecond(func(s *slot) int { return s.refused })), false}, line{"bad", seen(perSecond(func(s *slot) int { return s.failed })), false}),
		Keys: []key{{"good", "served"}, {"second", "refused"}, {"bad", "failed"}},
	}
	first := figure{
		Title: "Time to first token", Value: unknown, Note: "median of the last minute, from the routing on",
		Plot: plot("time to first token over time", 0.01, line{"second", quantile(0.95), false}, line{"main", quantile(0.5), false}),
		Keys: []key{{"main", "median"}, {"second", "95 %"}},
	}
	if m := minute.ttft.quantile(0.5); !math.IsNaN(m) {
		first.Value = brief(time.Duration(m * float64(time.Second)))
	}
	cache := figure{
		Title: "Prompts from the cache", Value: unknown, Note: "of the prompt tokens in the last minute",
		Plot: plot("share of prompt tokens from the cache over time", 1,
			line{"second", of(func(s *slot) float64 { return s.expected }), false}, line{"main", of(func(s *slot) float64 { return s.cached }), false}),
		Keys: []key{{"main", "by the engines"}, {"second", "expected"}},
	}
	if minute.prompt > 0 {
		cache.Value = share("%.0f %%", minute.cached/minute.prompt)
	}
	busy := figure{
		Title: "In flight", Value: strconv.Itoa(inFlight), Note: "now, on all servers",
		Plot: plot("requests in flight over time", 4, line{"main", values(all, math.NaN(), func(s *slot) float64 { return float64(s.inFlight) }), true},
			line{"second", values(all, math.NaN(), func(s *slot) float64 { return float64(s.held) }), false}),
		Keys: []key{{"main", "in flight"}},
	}
	if q != nil {
		busy.Note = fmt.Sprintf("now; %d more wait in the gateway", q.Requests)
		busy.Keys = append(busy.Keys, key{"second", "waiting in the gateway"})
	}
	return []figure{requests, first, cache, busy}
}
