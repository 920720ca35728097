package main

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
)

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

// debugServer is a server on the page.
type debugServer struct {
	endpick.EndpointStatus
	State, Class string // in words, and its severity: good, soso, bad or off
	Detail       string
	takes        bool // requests
	// Index is what the prefix index knows about it, or nil.
	Index *prefix.EndpointStats
	// During the last minute.
	Rate, Failures string
	ended, failed  int    // attempts
	order          string // its name in order
	TTFT           time.Duration
	Plot           template.HTML
}

// mostShownServers are shown at most; fewer than fewServers are shown even if they are idle.
const (
	mostShownServers = 100
	fewServers       = 12
)

func (g *gateway) addServers(p *debugPage, settings *settings) {
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
		its, known := statuses[id]
		its.Alive = its.Alive || !known
		e := debugServer{EndpointStatus: s, Index: held[s.Candidate.Ref], Rate: "0/s", order: inOrder(id)}
		e.State, e.Class, e.Detail = condition(&s, &its, p.Now)
		switch {
		case s.Removed:
		case s.Draining:
			p.Drained++
		default:
			p.Serving++
			e.takes = its.Alive && !its.State.Out()
			if !its.Alive || its.State != health.Well {
				p.Unhealthy = append(p.Unhealthy, id+" is "+e.State+": "+e.Detail)
			}
		}
		p.Servers = append(p.Servers, e)
	}
	if p.Serving > 0 {
		p.Lacking = lacking(settings, p.Servers)
	}
	g.watch.mu.Lock()
	for i := range p.Servers {
		e := &p.Servers[i]
		e.remember(&g.watch.history, p.Now)
		if float64(e.failed) > alarmingAttempts*float64(e.ended) && e.failed >= fewFailures {
			p.Failing = append(p.Failing, e.Candidate.Endpoint.ID+": "+e.Failures)
		}
	}
	g.watch.mu.Unlock()
	p.arrange()
}

// condition is what a server's state is, its severity, and more about it.
func condition(s *endpick.EndpointStatus, its *health.Status, now time.Time) (state, class, detail string) {
	switch {
	case s.Removed:
		return "removed", "off", "its last requests are ending"
	case s.Draining:
		return "draining", "off", "it gets no new requests"
	case its.State != health.Well:
		return illness(its, now)
	case !its.Alive:
		return "not ready", "soso", "it has served nothing yet, and " + reasons[health.Unfit] + ": " + wrong(its)
	case s.Candidate.Report != nil && s.Candidate.Report.Asleep:
		return "asleep", "soso", "it gets no requests while another is awake"
	case its.Full:
		return "full", "soso", "it has said that it is full"
	case s.Candidate.Reported == 0 && len(s.Candidate.Endpoint.Residents) == 0:
		return "healthy", "good", "does not report its load"
	}
	return "healthy", "good", ""
}

// lacking are the models that no server takes requests for: of the settings, and of servers that do
// not take any now.
func lacking(settings *settings, servers []debugServer) []string {
	taken := map[string]bool{} // whether some server does
	for model := range settings.Models {
		taken[model] = false
	}
	for _, name := range settings.Names {
		for _, model := range name.Models {
			taken[model] = false
		}
	}
	for i := range servers {
		e := &servers[i]
		names := slices.Concat(e.Candidate.Endpoint.Models, e.Candidate.Endpoint.Adapters)
		if e.takes && len(names) == 0 {
			return nil // it takes any model
		}
		for _, name := range names {
			taken[name] = taken[name] || e.takes
		}
	}
	maps.DeleteFunc(taken, func(_ string, takes bool) bool { return takes })
	return slices.Sorted(maps.Keys(taken))
}

// arrange drops the servers that are not to be shown, and sorts the others.
func (p *debugPage) arrange() {
	p.Servers = slices.DeleteFunc(p.Servers, func(e debugServer) bool { return !strings.Contains(e.Candidate.Endpoint.ID, p.Asked.Get("server")) })
	if len(p.Servers) > fewServers && p.Asked.Get("server") == "" && !p.Asked.Has("idle") {
		n := len(p.Servers)
		p.Servers = slices.DeleteFunc(p.Servers, func(e debugServer) bool {
			return e.Class == "good" && e.ended == 0 && e.Candidate.InFlight.Requests == 0
		})
		p.Idle = n - len(p.Servers)
	}
	by := sorted[p.Asked.Get("sort")]
	slices.SortStableFunc(p.Servers, func(a, b debugServer) int {
		first := cmp.Compare(severities[a.Class], severities[b.Class])
		if by != nil {
			first = cmp.Compare(by(&b), by(&a))
		}
		return cmp.Or(first, cmp.Compare(a.order, b.order))
	})
	if len(p.Servers) > mostShownServers {
		p.Hidden = len(p.Servers) - mostShownServers
		p.Servers = p.Servers[:mostShownServers]
	}
}

var severities = map[string]int{"bad": 0, "soso": 1, "good": 2, "off": 3}

// sorted are the columns by which servers can be sorted, the greatest value first.
var sorted = map[string]func(*debugServer) float64{
	"name":     func(*debugServer) float64 { return 0 },
	"requests": func(e *debugServer) float64 { return float64(e.ended) },
	"ttft":     func(e *debugServer) float64 { return float64(e.TTFT) },
	"flight":   func(e *debugServer) float64 { return float64(e.Candidate.InFlight.Requests) },
	"W":        func(e *debugServer) float64 { return e.Candidate.Waiting },
	"R":        func(e *debugServer) float64 { return e.Candidate.Running },
	"K":        func(e *debugServer) float64 { return e.Candidate.KVUsage },
	"Q":        func(e *debugServer) float64 { return float64(e.Candidate.InFlight.PrefillTokens) },
}

var numbers = regexp.MustCompile(`[0-9]+`)

// inOrder is a name that sorts as people count: server-2 before server-10.
func inOrder(name string) string {
	return numbers.ReplaceAllStringFunc(name, func(n string) string { return fmt.Sprintf("%020s", n) })
}

// loadOf is a signal of a server's load: reported, assumed by the router, or unknown.
func loadOf(c *endpick.Candidate, signal endpick.Signals, value string, assumed bool) string {
	switch {
	case c.Reported&signal != 0:
		return value
	case assumed:
		return "~" + value
	}
	return unknown
}

// remember adds the results of the server's requests.
func (e *debugServer) remember(h *history, now time.Time) {
	r := h.servers[e.Candidate.Endpoint.ID]
	if r == nil || e.Removed {
		return
	}
	all := r.last(now)
	served, first := 0, 0
	var ttft time.Duration
	for _, s := range all[len(all)-perMinute:] {
		if s != nil {
			served, e.failed, first, ttft = served+s.served, e.failed+s.failed, first+s.first, ttft+s.ttft
		}
	}
	e.ended = served + e.failed
	e.Rate = fmt.Sprintf("%.2g/s", float64(e.ended)/time.Minute.Seconds())
	if e.failed > 0 {
		e.Failures = fmt.Sprintf("%d of %d attempts failed", e.failed, e.ended)
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
		parts = append(parts, "it passes its health checks again")
	} else if reason := reasons[s.State]; reason != "" {
		parts = append(parts, reason)
	}
	if what := wrong(s); what != "" {
		parts = append(parts, what)
	}
	if !s.Since.IsZero() {
		parts = append(parts, "for "+max(now.Sub(s.Since), 0).Round(time.Second).String())
	}
	switch wait := s.NextTrial.Sub(now); {
	case s.NextTrial.IsZero():
	case wait > 0:
		parts = append(parts, "tried again in "+wait.Round(time.Second).String())
	case due:
		parts = append(parts, "tried by the next request that chooses it, or another one soon")
	}
	return state, class, strings.Join(parts, ", ")
}
