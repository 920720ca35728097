package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/require"
)

func TestDebugPage(t *testing.T) {
	c := start(t, "-endpoints", "3")
	ask := traffic.NewClient(c.url)
	defer ask.Close()
	_, empty := get(t, c.admin+"/debug/endpick")
	require.Contains(t, textIn(page(t, empty)), "No request has ended in the last minute.")

	system := traffic.Message{Role: "system", Content: strings.Repeat("You are helpful. ", 40)}
	for range 4 {
		require.NoError(t, ask.Ask(t.Context(), time.Now(), []traffic.Message{system, {Role: "user", Content: "Hello."}}, 2).Err)
	}
	const hostile = `<script>alert("x")</script>`
	status, _ := postTo(t, c.url+"/v1/chat/completions", `{"model":"<script>alert(\"x\")</script>","messages":[{"role":"user","content":"hi"}]}`)
	require.Equal(t, http.StatusNotFound, status)

	text := c.shows(t, "open 0,") // a client has its last byte slightly before the lease is closed
	require.Equal(t, 1, strings.Count(text, "<script"), "its own")
	endpoints := rows(t, text, "endpoints")
	require.Len(t, endpoints, 1+3)
	for i, id := range []string{"server-1", "server-2", "server-3"} {
		require.Contains(t, endpoints[1+i][0], id)
		require.Contains(t, endpoints[1+i][0], "127.0.0.1:")
	}
	require.Equal(t, 5, strings.Count(text, "<details"))
	require.Equal(t, 4, strings.Count(text, `<tr class="chosen"`), "the fifth had no endpoint")
	all := textIn(page(t, text))
	for _, want := range []string{
		"endpick policy marginal-delay", "routed 4, open 0", "without endpoint 1", "Prefix index", "runner-up", "All 3 servers are healthy. In the last minute",
		hostile, "None of 3 servers has the model.",
	} {
		require.Contains(t, all, want)
	}
}

// A page of a policy without index, scorers or anything routed, and with
// endpoints in every state.
func TestDebugPageOfABarePolicy(t *testing.T) {
	g := gatewayOf(t, plain("random"), endpick.Endpoint{ID: "a", Address: `http://a/"><b>`}, endpick.Endpoint{ID: "b", Address: "b"}, endpick.Endpoint{ID: "c", Address: "c"})
	require.NoError(t, g.router.Report("a", endpick.Load{Waiting: 3, Running: 4, KVUsage: 0.25}))
	require.NoError(t, g.router.Drain("a"))
	require.NoError(t, g.router.Remove("b"))
	kept := &story{id: "one", asked: new(endpick.Receipt)}
	lease := rig.Must(g.router.Route(endpick.Request{Model: "m", Receipt: kept.asked}))
	require.NoError(t, g.router.Remove("c"))
	g.watch.stories.add(kept)

	w := send(g.admin, http.MethodGet, "/debug/endpick", "")
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
	all := textIn(page(t, w.Body.String()))
	for _, want := range []string{`"><b>`, "draining", "removed", "25.0 %"} {
		require.Contains(t, all, want)
	}
	require.NotContains(t, all, "Prefix index")
	lease.Done(endpick.Outcome{})
}

// Refused requests have a list of their own, and failed ones stay when others have pushed them out.
func TestStoriesKeepTheNewest(t *testing.T) {
	s := stories{most: 2}
	s.add(&story{asked: new(endpick.Receipt)}) // no decision
	for n, status := range []int{500, 404, 200, 502, 429, 503, 0, 400, 200} {
		one := &story{id: fmt.Sprint(n), asked: &endpick.Receipt{Number: uint64(n + 1), Err: io.EOF}}
		in := httptest.NewRequest(http.MethodPost, "/", nil)
		if status > 0 {
			s.observe(&transport.Observation{
				Request: recording.Request{Status: map[int]string{2: "completed", 4: "refused", 5: "failed"}[status/100], HTTP: status, Time: time.Unix(int64(n), 0), BlockTokens: 16.1234}, Serving: -1, Held: time.Duration(n) * time.Millisecond,
				In: in.WithContext(context.WithValue(t.Context(), storyKey{}, one)),
			})
		}
		s.add(one)
	}
	newest, failed, refused := s.last()
	ids := func(all []*story) (ids []string) {
		for _, one := range all {
			ids = append(ids, one.id)
		}
		return ids
	}
	require.Equal(t, []string{"8", "6"}, ids(newest))
	require.Equal(t, []string{"5", "3"}, ids(failed))
	require.Equal(t, []string{"7", "4"}, ids(refused))
	shown := refused[0].shown()
	require.Equal(t, []float64{7, 16.12}, []float64{shown.Waited, shown.BlockTokens})
	shown.Receipt, shown.InputTokens = &endpick.Receipt{Verdicts: []endpick.Verdict{{Candidate: endpick.Candidate{PrefixTokens: 12}}}}, 12
	require.Equal(t, 11, shown.Held(), "less than the prompt turned out to have")
	shown.InputTokens = 0
	require.Equal(t, 12, shown.Held())
	require.Equal(t, "running", s.lists(asked{url.Values{"id": {"6"}}}, 1)[2].Requests[0].Status)
	s.observe(&transport.Observation{In: httptest.NewRequest(http.MethodPost, "/", nil)})
}

// A server whose failures are hidden by retries is named, whatever rows are asked for.
func TestDebugPageNamesWhoFailsNowAndThen(t *testing.T) {
	g := newTestGateway(t, "endpoints: [{id: a, url: \"http://127.0.0.1:1\"}, {id: b, url: \"http://127.0.0.1:2\"}]\n")
	healthy := "All 2 servers are healthy"
	verdict := func() string { return textIn(page(t, see(t, g.admin, "/debug/endpick?server=a"))) }
	observe := func(times int, attempts func(*transport.Observation)) {
		for range times {
			o := seenRequest("completed")
			attempts(o)
			g.watch.history.observe(time.Now(), o)
		}
	}
	observe(2, func(*transport.Observation) {})
	require.Contains(t, verdict(), healthy+". ", "two are few")
	observe(1, func(*transport.Observation) {})
	require.Contains(t, verdict(), healthy+", but more than 10 % of the attempts at 1 server fail.")
	require.Contains(t, verdict(), "b: 3 of 3 attempts failed")
	observe(27, func(o *transport.Observation) { o.Attempts[0].Result = transport.Served })
	require.Contains(t, verdict(), healthy+". ", "three of thirty")
}

// A dead server comes first, with the reason, and so do requests that were not served.
func TestDebugPageNamesTheUnhealthy(t *testing.T) {
	f := startFleet(t, 2, 16384)
	engines, second := f.Members, "http://"+f.Members[1].Address
	c := start(t, "-policy", "round-robin", "-backend", "http://"+engines[0].Address, "-backend", second)
	for range 4 {
		code, body := post(t, c.url, true)
		require.Equal(t, 200, code, body)
	}
	_, text := get(t, c.admin+"/debug/endpick")
	require.Contains(t, textIn(page(t, text)), "All 2 servers are healthy.")
	require.NoError(t, engines[1].Kill())
	var code int
	ask := func() { code, _ = post(t, c.url, true) }
	text = c.showsAfter(t, ask, "1 of 2 servers is unhealthy.")
	servers := rows(t, text, "endpoints")
	require.Contains(t, servers[1][0], second)
	require.Regexp(t, `^unhealthy`, servers[1][1])
	require.Contains(t, servers[1][1], "connection refused")
	require.NotContains(t, servers[1][1], "Get ")
	require.Regexp(t, `^healthy`, servers[2][1])
	require.Contains(t, textIn(page(t, text)), "could not be reached", "why the request went to the other one")
	c.showsAfter(t, ask, "Passed over: "+second+" (unreachable).")

	require.NoError(t, engines[0].Kill())
	c.showsAfter(t, ask, "What failed?")
	require.GreaterOrEqual(t, code, 500)
}

// A server that is down from the start is not healthy, even before any request, nor is one
// whose only answer is that it is not well.
func TestDebugPageOfServersThatAreDownFromTheStart(t *testing.T) {
	loading := serving(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "loading", 503) }))
	pageless := serving(t, http.NotFoundHandler())
	down := "http://" + nobody(t)
	c := start(t, "-backend", down, "-backend", loading.URL, "-backend", pageless.URL)
	text := c.shows(t, "2 of 3 servers are unhealthy.")
	require.Contains(t, textIn(page(t, text)), "Requests go to others as far as possible.")
	servers := rows(t, text, "endpoints")
	require.Contains(t, servers[1][0], down)
	require.Regexp(t, `^unhealthyit can't be reached, .*connection refused`, servers[1][1])
	require.Contains(t, servers[2][0], loading.URL)
	require.Regexp(t, `^not readyit has served nothing yet, and it fails its health checks: answered 503 Service Unavailable`, servers[2][1])
	require.Regexp(t, `^healthy`, servers[3][1])
	_, metrics := get(t, c.admin+"/metrics")
	require.Contains(t, metrics, "endpick_unhealthy_endpoints 1\n")
	require.Contains(t, metrics, `endpick_endpoint_share_ratio{endpoint="`+down+`"} 0`)
	c.logs(t, "msg=health endpoint="+down+" state=out reason=unreachable", 1)

	start(t, "-backend", down).shows(t, "1 of 1 servers is unhealthy. Requests are tried there all the same.")
}

// An endpoint that is out but passes its checks again is shown as waiting for a request, not as
// failing them.
func TestIllness(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		state, class, detail string
		change               func(*health.Status)
	}{
		{"unhealthy", "bad", "it fails its health checks, EOF, for 1m0s", func(s *health.Status) {
			s.State, s.CheckErr = health.Unfit, io.EOF
		}},
		{"waiting for a trial", "soso", "it passes its health checks again, for 1m0s, tried by the next request that chooses it, or another one soon", func(s *health.Status) {
			s.State, s.Alive, s.NextTrial = health.Unfit, true, now
		}},
		{"unhealthy", "bad", "it can't be reached, EOF, for 1m0s, tried again in 3s", func(s *health.Status) {
			s.State, s.Err, s.NextTrial = health.Unreachable, io.EOF, now.Add(3*time.Second)
		}},
		{"unhealthy", "bad", "it can't be reached, EOF, for 1m0s, tried by the next request that chooses it, or another one soon", func(s *health.Status) {
			s.State, s.Err, s.Alive, s.NextTrial = health.Unreachable, io.EOF, true, now
		}},
		{"coming back", "soso", "it gets 40 % of its share, for 1m0s", func(s *health.Status) { s.State, s.Share = health.Returning, 0.4 }},
	} {
		var s health.Status
		s.Since = now.Add(-time.Minute)
		c.change(&s)
		state, class, detail := illness(&s, now)
		require.Equal(t, []string{c.state, c.class, c.detail}, []string{state, class, detail})
	}
}

// The page runs its own script and no other.
func TestDebugPageRunsItsScriptAlone(t *testing.T) {
	w := send(gatewayOf(t, plain("random")).admin, http.MethodGet, "/debug/endpick", "")
	_, rest, _ := strings.Cut(w.Body.String(), "<script>")
	script, _, found := strings.Cut(rest, "</script>")
	require.True(t, found)
	sum := sha256.Sum256([]byte(script))
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "script-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	require.NotContains(t, w.Body.String(), "http://", "nothing comes from elsewhere")
	require.Contains(t, w.Body.String(), "No server takes requests.")
}

func TestDebugPageOfManyServers(t *testing.T) {
	var endpoints []endpick.Endpoint
	for i := range 1000 {
		endpoints = append(endpoints, endpick.Endpoint{ID: fmt.Sprintf("server-%03d", i), Address: "127.0.0.1:1"})
	}
	g := gatewayOf(t, plain("random"), endpoints...)
	for range 20 {
		one := &story{asked: new(endpick.Receipt)}
		rig.Must(g.router.Route(endpick.Request{Receipt: one.asked})).Done(endpick.Outcome{})
		g.watch.stories.add(one)
	}
	text := see(t, g.admin, "/debug/endpick?idle")
	page(t, text)
	require.Contains(t, text, "900 more are not shown.")
	require.Contains(t, text, "more candidates are not shown.")
	require.Equal(t, 20, strings.Count(text, `<tr class="chosen">`), "the chosen one always is")
	require.Less(t, len(text), 6<<20)
}

// What an operator is told of is found by its id, and says what every server did with it.
func TestRequestsAreFound(t *testing.T) {
	good := newBackend(t)
	bad := serving(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	g := newTestGateway(t, "policy: round-robin\nendpoints: [{id: good, url: \""+good.URL+"\", models: [m]}, {id: bad, url: \""+bad.URL+"\", models: [m, n]}]\n"+
		"models: {n: {policy: lmetric}, none: {policy: random}}\nnames: {best: {models: [gone, m]}}\ntenants: {ann: {keys: ["+annsKey+"]}}\n")
	ask := func(id, model string) int {
		w := askFor(g, "/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":"hi"}]}`, "Authorization", "Bearer "+annsKey, idHeader, id)
		require.Equal(t, id, w.Header().Get(idHeader))
		return w.Code
	}
	require.Equal(t, 502, ask("failed", "n"))
	require.Equal(t, 404, ask("refused", "x"))
	for i := range 2 { // one of which begins at the bad server
		require.Equal(t, 200, ask(fmt.Sprint("served-", i), "m"))
	}
	find := func(query string) (found []shownRequest) {
		require.NoError(t, json.Unmarshal([]byte(see(t, g.admin, "/debug/endpick/requests?"+query)), &found))
		return found
	}
	failed := find("id=failed")[0]
	require.Equal(t, []any{"ann", "n", "failed", 502, "bad"}, []any{failed.Tenant, failed.Model, failed.Status, failed.HTTP, failed.Endpoint})
	require.Equal(t, []shownAttempt{{Server: "bad", Result: transport.Broken, Error: "EOF"}}, failed.Attempts)
	require.Contains(t, failed.Error, "EOF")
	refused := find("id=refused")[0]
	require.Equal(t, []any{"refused", 404, "", []string{"None of 2 servers has the model."}}, []any{refused.Status, refused.HTTP, refused.Endpoint, refused.Why})
	retried := find("model=m&server=bad")
	require.Len(t, retried, 1)
	require.Equal(t, []any{"completed", "good", 2}, []any{retried[0].Status, retried[0].Endpoint, len(retried[0].Attempts)})
	require.Contains(t, retried[0].Decision[1], "* good ")
	require.Equal(t, []string{"First bad did not answer.", "good was the only one left."}, retried[0].Why)
	require.Len(t, find("tenant=ann&server=good"), 2)
	require.Len(t, find(""), 4)
	require.Empty(t, find("tenant=an"))
	for _, page := range []string{"", "/requests"} {
		w := send(g.admin, http.MethodGet, "/debug/endpick"+page+"?status=x&id=failed", "")
		require.Equal(t, []any{400, "unknown filter \"status\"; known are id, model, tenant, server, sort, idle\n"}, []any{w.Code, w.Body.String()})
	}

	require.Contains(t, textIn(page(t, see(t, g.admin, "/debug/endpick?id=unheard-of"))), "none is like that.")
	text := textIn(page(t, see(t, g.admin, "/debug/endpick?id="+retried[0].ID)))
	require.NotContains(t, text, "none is like that.")
	for _, want := range []string{"bad did not answer: EOF", "good served it", "policy round-robin, for n lmetric, for none random", "configured by test.yaml",
		"of 4 requests 25.0 % failed and 25.0 % were refused.", "gone has no server", "none has no server", "1.", "but 2 models have no server."} {
		require.Contains(t, text, want)
	}
	require.Equal(t, "?id=a+b&sort=ttft", asked{url.Values{"id": {"a b"}}}.By("ttft"))
	require.Equal(t, 200, ask("named", "best"))
	require.Equal(t, "gone was passed over: of 2, 0 have the model.", find("id=named")[0].Why[0])
	metrics := scrapeMetrics(t, g.admin)
	require.Contains(t, metrics, `endpick_build_info{goversion="go1`)
	require.Regexp(t, `endpick_decisions_total{by="[a-z]+",name="best"} 1\n`, metrics)
	unnamed := *g.settings.Load()
	unnamed.Names = nil
	require.NoError(t, g.apply(&unnamed))
	require.Equal(t, 404, ask("unnamed", "best"))
}

func TestServersAreInOrder(t *testing.T) {
	var endpoints []endpick.Endpoint
	for i := range 20 {
		endpoints = append(endpoints, endpick.Endpoint{ID: fmt.Sprint("s-", i), Address: "127.0.0.1:1"})
	}
	g := gatewayOf(t, plain("random"), endpoints...)
	require.NoError(t, g.router.Report("s-3", endpick.Load{Waiting: 3}))
	require.NoError(t, g.router.Report("s-12", endpick.Load{}))
	ids := func(query string) (ids []string) {
		p := g.debugPage(asked{rig.Must(url.ParseQuery(query))})
		for _, s := range p.Servers {
			ids = append(ids, s.Candidate.Endpoint.ID)
		}
		return append(ids, fmt.Sprint(p.Idle))
	}
	require.Equal(t, []string{"20"}, ids(""))
	require.Equal(t, []string{"s-1", "s-10", "s-11", "s-12", "s-13", "s-14", "s-15", "s-16", "s-17", "s-18", "s-19", "0"}, ids("server=s-1"))
	require.Equal(t, []string{"s-3", "s-0"}, ids("sort=W&idle")[:2], "others are assumed to have the mean")
}
