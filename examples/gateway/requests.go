package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// asked is what the address of the page asks for. Empty: everything.
type asked struct {
	ID, Tenant    string // exactly
	Model, Server string // parts of names
	Sort          string // of the servers, by a column
	Idle          bool   // servers, too
}

func askedBy(q url.Values) asked {
	return asked{q.Get("id"), q.Get("tenant"), q.Get("model"), q.Get("server"), q.Get("sort"), q.Has("idle")}
}

// Any reports whether certain requests are asked for.
func (a asked) Any() bool { return a.ID+a.Tenant+a.Model+a.Server != "" }

// By is the address of the page with its servers in another order.
func (a asked) By(column string) string {
	q := url.Values{"sort": {column}}
	for name, v := range map[string]string{"id": a.ID, "tenant": a.Tenant, "model": a.Model, "server": a.Server} {
		if v != "" {
			q.Set(name, v)
		}
	}
	return "?" + q.Encode()
}

func (a asked) takes(r *shownRequest) bool {
	return (a.ID == "" || a.ID == r.ID) && (a.Tenant == "" || a.Tenant == r.Tenant) && strings.Contains(r.Model, a.Model) &&
		(strings.Contains(r.Server, a.Server) || slices.ContainsFunc(r.Attempts, func(t shownAttempt) bool { return strings.Contains(t.Server, a.Server) }))
}

// shownRequest is a request as the page and its JSON show it. What is not known is left out.
type shownRequest struct {
	ID     string    `json:"id"`
	Time   time.Time `json:"time"`
	Tenant string    `json:"tenant,omitempty"`
	Model  string    `json:"model,omitempty"`
	Status string    `json:"status"` // running, or how it has ended
	HTTP   int       `json:"http,omitempty"`
	Server string    `json:"server,omitempty"` // the last that was asked
	Error  string    `json:"error,omitempty"`

	InputTokens  int     `json:"input_tokens,omitempty"`
	Estimated    bool    `json:"input_tokens_estimated,omitempty"`
	CachedTokens *int    `json:"cached_tokens,omitempty"` // as the engine says
	OutputTokens int     `json:"output_tokens,omitempty"`
	HeldMillis   float64 `json:"held_ms,omitempty"`
	TTFTMillis   float64 `json:"ttft_ms,omitempty"` // from the routing on
	E2EMillis    float64 `json:"e2e_ms,omitempty"`

	Attempts   []shownAttempt   `json:"attempts,omitempty"`
	Policy     string           `json:"policy,omitempty"`
	Why        []string         `json:"why,omitempty"`
	Candidates []shownCandidate `json:"candidates,omitempty"`
	Hidden     int              `json:"candidates_left_out,omitempty"`

	Receipt *endpick.Receipt `json:"-"`
	Ending  *ending          `json:"-"` // nil: still running
	List    string           `json:"-"` // of the page
	Open    bool             `json:"-"`
}

type shownAttempt struct {
	Server string           `json:"server"`
	Result transport.Result `json:"result"`
	HTTP   int              `json:"http,omitempty"`
	Error  string           `json:"error,omitempty"`
	Said   string           `json:"-"`
}

type shownCandidate struct {
	Server    string  `json:"server"`
	Chosen    bool    `json:"chosen,omitempty"`
	RemovedBy string  `json:"removed_by,omitempty"`
	Score     float64 `json:"score"`
	Why       string  `json:"why,omitempty"`
}

func (s *story) shown() *shownRequest {
	r, e := &s.receipt, s.end.Load()
	v := &shownRequest{
		ID: s.id, Tenant: s.tenant, Time: r.At, Model: r.Model, Policy: r.Policy, Status: "running", InputTokens: r.InputTokens, Estimated: r.InputTokens > 0,
		Why: s.why, Hidden: s.hidden, Receipt: r, Ending: e,
	}
	for i := range r.Verdicts {
		c := &r.Verdicts[i]
		v.Candidates = append(v.Candidates, shownCandidate{c.Candidate.Endpoint.ID, i == r.Chosen, c.RemovedBy, c.Score, c.Why})
	}
	if e == nil {
		if r.Chosen >= 0 && r.Chosen < len(r.Verdicts) {
			v.Server = r.Verdicts[r.Chosen].Candidate.Endpoint.ID
		}
		return v
	}
	v.Time, v.Model, v.Status, v.HTTP, v.Server = e.Time, e.Model, e.Status, e.HTTP, e.Endpoint
	v.InputTokens, v.Estimated, v.CachedTokens, v.OutputTokens = e.InputTokens, e.Estimated, e.CachedTokens, e.OutputTokens
	ms := func(d time.Duration) float64 { return tenths(float64(d) / float64(time.Millisecond)) }
	v.HeldMillis, v.TTFTMillis, v.E2EMillis = ms(e.Held), ms(e.TTFT.Actual), tenths(e.E2EMillis)
	for i := range e.Attempts {
		a := &e.Attempts[i]
		one := shownAttempt{a.Candidate.Endpoint.ID, a.Result, a.HTTP, "", said(a)}
		if a.Err != nil {
			one.Error = a.Err.Error()
		}
		v.Attempts = append(v.Attempts, one)
	}
	if e.Err != nil {
		v.Error = e.Err.Error()
	} else if a := e.Last(); a != nil && a.Err != nil {
		v.Error = a.Err.Error()
	}
	if n := len(v.Attempts); n > 0 {
		v.Server = cmp.Or(v.Server, v.Attempts[n-1].Server)
	}
	return v
}

// Predicted reports whether anything was predicted.
func (r *shownRequest) Predicted() bool {
	return slices.ContainsFunc(r.Receipt.Verdicts, func(v endpick.Verdict) bool { return v.Candidate.Prediction.Has != 0 })
}

// Held is how much of the prompt the chosen server was believed to hold.
func (r *shownRequest) Held() int {
	if c := r.Receipt; c.Chosen >= 0 && c.Chosen < len(c.Verdicts) {
		return c.Verdicts[c.Chosen].Candidate.PrefixTokens
	}
	return 0
}

// Smooth reports whether the first server that was asked has served the request.
func (r *shownRequest) Smooth() bool {
	return len(r.Attempts) == 1 && r.Attempts[0].Result == transport.Served && r.Error == ""
}

// find returns the requests that are asked for, at most so many, newest first.
func (s *stories) find(a asked, most int) []*shownRequest {
	newest, failed, refused := s.last()
	found, seen := []*shownRequest{}, map[*story]bool{}
	for _, one := range slices.Concat(newest, failed, refused) {
		if seen[one] {
			continue
		}
		seen[one] = true
		if r := one.shown(); a.takes(r) {
			found = append(found, r)
		}
	}
	slices.SortStableFunc(found, func(a, b *shownRequest) int { return b.Time.Compare(a.Time) })
	return found[:min(len(found), most)]
}

// found writes the requests that are asked for as JSON.
func (g *gateway) found(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(g.watch.stories.find(askedBy(r.URL.Query()), 3*keptRequests))
}

// debugList is a list of requests, newest first.
type debugList struct {
	ID, Title, Note string
	Requests        []*shownRequest
}

// lists are the lists of the page: what is asked for, or the latest.
func (s *stories) lists(a asked) (all []debugList) {
	if a.Any() {
		found := s.find(a, mostFound)
		for _, one := range found {
			one.List, one.Open = "found", len(found) == 1
		}
		return []debugList{{"found", fmt.Sprintf("Found: %s", count(len(found), "request")), "Those that are kept: the latest 1,000 served, failed and refused ones. The list shows 100 of them at most, the JSON all.", found}}
	}
	newest, failed, refused := s.last()
	list := func(id, title, note string, most int, stories []*story) {
		l := debugList{ID: id, Title: title, Note: note}
		for _, one := range stories[:min(len(stories), most)] {
			r := one.shown()
			r.List = id
			l.Requests = append(l.Requests, r)
		}
		if len(stories) > 0 || id == "newest" {
			all = append(all, l)
		}
	}
	list("failed", "What failed?", "The latest that got a status from 500 on, or a response that broke off.", shownRequests/2, failed)
	list("refused", "What was refused?", "The latest that got a status from 400 to 499, from the gateway or from a server.", shownRequests/2, refused)
	list("newest", "Why did it go there?", "The latest requests. Open one to see how its server was chosen; the list does not change while one is open.", shownRequests, newest)
	return all
}
