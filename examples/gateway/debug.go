package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
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
	"css":    func() template.CSS { return template.CSS(debugCSS) },
	"script": func() template.JS { return template.JS(debugJS) },
	"number": func(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) },
	"clock":  func(t time.Time) string { return t.Format("15:04:05") },
	"last":   func(n int) int { return n - 1 },
	// Unknown is not zero: it stays empty.
	"brief":   brief,
	"ago":     brieflyAgo,
	"percent": func(v float64) string { return share("%.1f %%", v) },
	"error":   func(v float64) string { return share("%+.0f %%", v) },
	"said":    func(a transport.ObservedAttempt) string { return said(&a) },
	"address": shownAddress,
}).Parse(debugHTML))

// shownAddress is where a server is, without the credentials that are for it alone.
func shownAddress(e *endpick.Endpoint) string {
	to, err := transport.Target(e, &url.URL{})
	switch {
	case err != nil:
		return "" // nobody is sent there
	case to.User == nil:
		return e.Address
	}
	to.User = nil
	return to.String()
}

func share(format string, v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return fmt.Sprintf(format, 100*v)
}

const (
	mostShownServers    = 100
	mostShownCandidates = 12
)

// debugPage is the content of the page.
type debugPage struct {
	Now       time.Time
	Policy    string
	Router    endpick.Stats
	Transport transport.Stats
	Unhealthy []string // sentences
	Serving   int      // not drained or removed
	Servers   []debugServer
	Hidden    int // servers that are not shown
	Figures   []figure
	Minutes   int                // covered by the plots of all servers
	Index     *prefix.IndexStats // nil: the policy has none

	Queue    *transport.QueueStatus // nil: no queue
	Health   []debugHealth          // of the predictor, if any
	Attained attainment
	Lists    []debugList
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

// debugList is a list of requests, newest first.
type debugList struct {
	ID, Title, Note string
	Stories         []debugStory
}

type debugStory struct {
	Receipt *endpick.Receipt
	Ending  *ending // nil: still running
	Chosen  string
	Held    int // tokens of the prompt that the chosen one holds
	Why     []string
	Hidden  int // verdicts that are not shown
}

// Verdicts are those to show, always including the chosen one.
func (s *debugStory) Verdicts() []endpick.Verdict {
	return s.Receipt.Verdicts[:len(s.Receipt.Verdicts)-s.Hidden]
}

// Predicted reports whether anything was predicted.
func (s *debugStory) Predicted() bool {
	return slices.ContainsFunc(s.Receipt.Verdicts, func(v endpick.Verdict) bool { return v.Candidate.Prediction.Has != 0 })
}

// debug writes the page, which contains no text of requests.
func (g *gateway) debug(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	if err := debugTemplate.Execute(&b, g.debugPage()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", debugPolicy)
	_, _ = b.WriteTo(w)
}

func (g *gateway) debugPage() debugPage {
	now := time.Now()
	g.watch.sample(now)
	p := debugPage{Now: now, Policy: *g.policy.Load(), Router: g.router.Stats(), Transport: g.transport.Stats()}
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
	g.addServers(&p)
	g.watch.mu.Lock()
	p.Attained = g.watch.attained
	all := g.watch.history.all.last(now)
	g.watch.mu.Unlock()
	p.Figures = figures(all, p.Router.OpenLeases, p.Queue)
	p.Minutes = int(math.Round((time.Duration(len(shown(all))) * slotTime).Minutes()))
	newest, failed := g.watch.stories.last()
	p.Lists = []debugList{{"newest", "Why did it go there?", "The latest requests. Open one to see how its server was chosen; the list does not change while one is open.", shownStories(newest)}}
	if len(failed) > 0 {
		p.Lists = append(p.Lists, debugList{"failed", "What was not served?", "The latest requests that failed or were refused, except for mistakes of clients.", shownStories(failed)})
	}
	return p
}

func shownStories(all []*story) (shown []debugStory) {
	for _, one := range all {
		s := debugStory{Receipt: &one.receipt, Ending: one.end.Load()}
		r := s.Receipt
		var before []transport.ObservedAttempt
		if s.Ending != nil {
			before = s.Ending.Before()
		}
		if r.Number > 0 {
			s.Why = why(r, before)
			s.Hidden = max(len(r.Verdicts)-max(mostShownCandidates, r.Chosen+1), 0)
		}
		if r.Chosen >= 0 && r.Chosen < len(r.Verdicts) {
			c := &r.Verdicts[r.Chosen].Candidate
			s.Chosen, s.Held = c.Endpoint.ID, c.PrefixTokens
		}
		shown = append(shown, s)
	}
	return shown
}

// figures are the plots of all servers together.
func figures(all []*slot, inFlight int, q *transport.QueueStatus) []figure {
	var minute slot
	for _, s := range all[len(all)-perMinute:] {
		if s != nil {
			minute.add(s)
		}
	}
	all = shown(all)
	perSecond := func(of func(*slot) int) []float64 {
		return values(all, 0, func(s *slot) float64 { return float64(of(s)) / slotTime.Seconds() })
	}
	rate := func(n int) string { return fmt.Sprintf("%.3g/s", float64(n)/time.Minute.Seconds()) }
	quantile := func(q float64) []float64 {
		return values(all, math.NaN(), func(s *slot) float64 { return s.ttft.quantile(q) })
	}
	of := func(part func(*slot) float64) []float64 {
		return values(all, math.NaN(), func(s *slot) float64 {
			if s.prompt == 0 {
				return math.NaN()
			}
			return part(s) / s.prompt
		})
	}
	requests := figure{
		Title: "Requests", Value: rate(minute.served + minute.failed + minute.refused), Note: "in the last minute",
		Plot: plot("requests a second over time", 0.2, line{"good", perSecond(func(s *slot) int { return s.served }), true},
			line{"bad", seen(perSecond(func(s *slot) int { return s.failed + s.refused })), false}),
		Keys: []key{{"good", "served"}, {"bad", "failed or refused"}},
	}
	if bad := minute.failed + minute.refused; bad > 0 {
		requests.Note = fmt.Sprintf("%d failed and %d refused in the last minute", minute.failed, minute.refused)
	}
	first := figure{
		Title: "Time to first token", Value: "–", Note: "median of the last minute, in steps of 40 %",
		Plot: plot("time to first token over time", 0.01, line{"second", quantile(0.95), false}, line{"main", quantile(0.5), false}),
		Keys: []key{{"main", "median"}, {"second", "95 %"}},
	}
	if m := minute.ttft.quantile(0.5); !math.IsNaN(m) {
		first.Value = brief(time.Duration(m * float64(time.Second)))
	}
	cache := figure{
		Title: "Prompts from the cache", Value: "–", Note: "of the prompt tokens in the last minute",
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

// debugServer is a server on the page.
type debugServer struct {
	endpick.EndpointStatus
	State, Class string // in words, and its severity: good, soso, bad or off
	Detail       string
	// Index is what the prefix index knows about it, or nil.
	Index *prefix.EndpointStats
	// During the last minute.
	Rate, Failures string
	TTFT           time.Duration
	Plot           template.HTML
}

func (g *gateway) addServers(p *debugPage) {
	held := map[endpick.EndpointRef]*prefix.EndpointStats{}
	if p.Index != nil {
		for i := range p.Index.Endpoints {
			held[p.Index.Endpoints[i].Ref] = &p.Index.Endpoints[i]
		}
	}
	statuses := map[string]health.Status{}
	for _, s := range g.health.Endpoints() {
		statuses[s.Endpoint] = s
	}
	for _, s := range g.router.Endpoints() {
		id := s.Candidate.Endpoint.ID
		e := debugServer{EndpointStatus: s, Index: held[s.Candidate.Ref], State: "healthy", Class: "good"}
		its, known := statuses[id]
		switch {
		case s.Removed:
			e.State, e.Class, e.Detail = "removed", "off", "its last requests are ending"
		case known && its.State != health.Well:
			e.State, e.Class, e.Detail = illness(&its, p.Now)
			p.Unhealthy = append(p.Unhealthy, id+" is "+e.State+": "+e.Detail)
			p.Serving++
		case s.Draining:
			e.State, e.Class, e.Detail = "draining", "off", "it gets no new requests"
		default:
			p.Serving++
			if known && !its.Alive {
				e.State, e.Class, e.Detail = "not ready", "soso", "it has served nothing yet, and "+reasons[health.Unfit]+": "+wrong(&its)
				p.Unhealthy = append(p.Unhealthy, id+" is "+e.State+": "+e.Detail)
			} else if its.Full {
				e.State, e.Class, e.Detail = "full", "soso", "it has said that it is full"
			} else if s.Candidate.Reported == 0 {
				e.Detail = "does not report its load"
			}
		}
		p.Servers = append(p.Servers, e)
	}
	order := map[string]int{"bad": 0, "soso": 1, "good": 2, "off": 3}
	slices.SortStableFunc(p.Servers, func(a, b debugServer) int { return cmp.Compare(order[a.Class], order[b.Class]) })
	if len(p.Servers) > mostShownServers {
		p.Hidden = len(p.Servers) - mostShownServers
		p.Servers = p.Servers[:mostShownServers]
	}
	g.watch.mu.Lock()
	defer g.watch.mu.Unlock()
	for i := range p.Servers {
		p.Servers[i].remember(&g.watch.history, p.Now)
	}
}

// remember adds the results of the server's requests.
func (e *debugServer) remember(h *history, now time.Time) {
	r := h.servers[e.Candidate.Endpoint.ID]
	if r == nil || e.Removed {
		return
	}
	all := r.last(now)
	served, failed, first := 0, 0, 0
	var ttft time.Duration
	for _, s := range all[len(all)-perMinute:] {
		if s != nil {
			served, failed, first, ttft = served+s.served, failed+s.failed, first+s.first, ttft+s.ttft
		}
	}
	e.Rate = fmt.Sprintf("%.2g/s", float64(served+failed)/time.Minute.Seconds())
	if failed > 0 {
		e.Failures = fmt.Sprintf("%d of %d failed", failed, served+failed)
	}
	if first > 0 {
		e.TTFT = ttft / time.Duration(first)
	}
	e.Plot = plot("requests a second over time", 0.2,
		line{"good", values(shown(all), 0, func(s *serverSlot) float64 { return float64(s.served) / slotTime.Seconds() }), true},
		line{"bad", seen(values(shown(all), 0, func(s *serverSlot) float64 { return float64(s.failed) / slotTime.Seconds() })), false})
}

var reasons = map[health.State]string{
	health.Unreachable: "it can't be reached",
	health.Failing:     "it fails requests that others serve",
	health.Silent:      "it has sent nothing to anybody for long",
	health.Unfit:       "it fails its health checks",
}

// wrong is the last error of a check or a request.
func wrong(s *health.Status) string {
	err := cmp.Or(s.CheckErr, s.Err)
	if err == nil {
		return ""
	}
	if u := new(url.Error); errors.As(err, &u) {
		err = u.Err // the URL is known
	}
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "transport: "), "health: ")
}

// illness says why a server is unhealthy.
func illness(s *health.Status, now time.Time) (state, class, detail string) {
	state, class = "unhealthy", "bad"
	var parts []string
	due := s.State.Out() && s.Alive // for a trial: no check counts against it
	if s.State == health.Returning {
		state, class = "coming back", "soso"
		parts = append(parts, fmt.Sprintf("it gets %.0f %% of its share", 100*s.Share))
	} else if due && s.State == health.Unfit {
		state, class = "waiting for a trial", "soso"
		parts = append(parts, "it passes its health checks again, and the next request tries it")
	} else if reason := reasons[s.State]; reason != "" {
		parts = append(parts, reason)
	}
	if what := wrong(s); what != "" {
		parts = append(parts, what)
	}
	if !s.Since.IsZero() {
		parts = append(parts, "for "+max(now.Sub(s.Since), 0).Round(time.Second).String())
	}
	if wait := s.NextTrial.Sub(now); s.State.Out() && !s.NextTrial.IsZero() && wait > 0 {
		parts = append(parts, "tried again in "+wait.Round(time.Second).String())
	}
	return state, class, strings.Join(parts, ", ")
}
