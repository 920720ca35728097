package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
)

// asked is what the address of the page asks for: requests by id, tenant (exactly), model and
// server (parts of names); servers in the order of a column (sort), and the idle ones.
type asked struct{ url.Values }

// filtered refuses what asked does not know, so that nobody takes everything for what was found.
func filtered(next http.HandlerFunc) http.HandlerFunc {
	known := []string{"id", "model", "tenant", "server", "sort", "idle"}
	return func(w http.ResponseWriter, r *http.Request) {
		for name := range r.URL.Query() {
			if !slices.Contains(known, name) {
				http.Error(w, fmt.Sprintf("unknown filter %q; known are %s", name, strings.Join(known, ", ")), http.StatusBadRequest)
				return
			}
		}
		next(w, r)
	}
}

// Any reports whether certain requests are asked for.
func (a asked) Any() bool { return a.Get("id")+a.Get("tenant")+a.Get("model")+a.Get("server") != "" }

// By is the address of the page with its servers in another order.
func (a asked) By(column string) string {
	q := maps.Clone(a.Values)
	q.Set("sort", column)
	return "?" + q.Encode()
}

func (a asked) takes(r *shownRequest) bool {
	id, tenant, server := a.Get("id"), a.Get("tenant"), a.Get("server")
	return (id == "" || id == r.ID) && (tenant == "" || tenant == r.Tenant) && strings.Contains(r.Model, a.Get("model")) &&
		(strings.Contains(r.Endpoint, server) || slices.ContainsFunc(r.Attempts, func(t shownAttempt) bool { return strings.Contains(t.Server, server) }))
}

// shownRequest is a request as the page and its JSON show it: a record, with the names that it has
// not, and what the decision was. The endpoint is the last that was asked.
type shownRequest struct {
	recording.Request
	ID       string         `json:"id"`
	Tenant   string         `json:"tenant,omitempty"`
	Waited   float64        `json:"held_ms,omitempty"` // in the gateway queue
	Error    string         `json:"error,omitempty"`
	Attempts []shownAttempt `json:"attempts,omitempty"`
	Why      []string       `json:"why,omitempty"`
	Decision []string       `json:"decision,omitempty"` // the lines of the receipt
	Hidden   int            `json:"candidates_left_out,omitempty"`

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

func (s *story) shown() *shownRequest {
	r, e := &s.receipt, s.end.Load()
	v := &shownRequest{ID: s.id, Tenant: s.tenant, Why: s.why, Hidden: s.hidden, Receipt: r, Ending: e}
	if e == nil {
		v.Request = recording.Request{Time: asSet(r.At), Model: r.Model, Status: "running", InputTokens: r.InputTokens, Estimated: true}
		if r.Chosen >= 0 && r.Chosen < len(r.Verdicts) {
			v.Endpoint = r.Verdicts[r.Chosen].Candidate.Endpoint.ID
		}
		return v
	}
	v.Request, v.Error, v.Waited = e.Request, text(e.Err), heldMillis(&e.Observation)
	if e.Named != "" {
		v.Model = e.Named + " → " + e.Model
	}
	v.Why = nil
	for _, err := range e.Passed {
		v.Why = append(v.Why, passed(err))
	}
	v.Why = append(v.Why, explained(s.why, r.Chosen >= 0, e.Attempts)...)
	v.BlockTokens = math.Round(100*v.BlockTokens) / 100
	for i := range e.Attempts {
		a := &e.Attempts[i]
		t := shownAttempt{a.Candidate.Endpoint.ID, a.Result, a.HTTP, text(a.Err), said(a)}
		switch {
		case strings.HasPrefix(t.Error, t.Said):
			t.Said = t.Error
		case t.Error != "":
			t.Said += ": " + t.Error
		}
		v.Attempts = append(v.Attempts, t)
	}
	if a := e.Last(); a != nil {
		v.Error = cmp.Or(v.Error, text(a.Err))
	}
	return v
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Predicted reports whether anything was predicted.
func (r *shownRequest) Predicted() bool {
	return slices.ContainsFunc(r.Receipt.Verdicts, func(v endpick.Verdict) bool { return v.Candidate.Prediction.Has != 0 })
}

// Held is how much of the prompt the chosen server was believed to hold. Its length may have been
// overestimated then.
func (r *shownRequest) Held() int {
	if c := r.Receipt; c.Chosen >= 0 && c.Chosen < len(c.Verdicts) {
		return min(c.Verdicts[c.Chosen].Candidate.PrefixTokens, cmp.Or(max(r.InputTokens-1, 0), math.MaxInt))
	}
	return 0
}

// Smooth reports whether the first server that was asked has served the request.
func (r *shownRequest) Smooth() bool {
	return len(r.Attempts) == 1 && r.Attempts[0].Result == transport.Served && r.Error == ""
}

// found writes the requests that are asked for as JSON.
func (g *gateway) found(w http.ResponseWriter, r *http.Request) {
	all := []*shownRequest{}
	for _, l := range g.watch.stories.lists(asked{r.URL.Query()}, keptRequests) {
		for _, one := range l.Requests {
			if one.Receipt.Number > 0 {
				one.Decision = strings.Split(strings.TrimSpace(one.Receipt.String()), "\n")
			}
			all = append(all, one)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(all)
}

// debugList is a list of requests, newest first.
type debugList struct {
	ID, Title, Note string
	kept            []*story
	Requests        []*shownRequest
}

// lists are the lists of the page with the latest requests that are asked for, so many of each; every
// request is in one.
func (s *stories) lists(a asked, most int) []*debugList {
	newest, failed, refused := s.last()
	all := []*debugList{
		{ID: "failed", Title: "What failed?", Note: "What got a status from 500 on, or a response that broke off.", kept: failed},
		{ID: "refused", Title: "What was refused?", Note: "What got a status from 400 to 499, from the gateway or from a server.", kept: refused},
		{ID: "newest", Title: "Why did it go there?", Note: "All others. Open one to see how its server was chosen; the list does not change while one is open.", kept: newest},
	}
	for _, l := range all {
		for _, one := range l.kept {
			r := one.shown()
			r.List, r.Open = l.ID, a.Get("id") != ""
			if len(l.Requests) < most && a.takes(r) && (l.ID == "failed" || !r.Ending.is(endpick.Failed)) {
				l.Requests = append(l.Requests, r)
			}
		}
	}
	return all
}
