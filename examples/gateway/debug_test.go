package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDebugPage(t *testing.T) {
	c := start(t, "-endpoints", "3")
	ask := traffic.NewClient(c.url)
	defer ask.Close()
	_, empty := get(c.admin + "/debug/endpick")
	require.Contains(t, textIn(page(t, empty)), "No request has ended in the last minute.")

	system := traffic.Message{Role: "system", Content: strings.Repeat("You are helpful. ", 40)}
	for range 4 {
		require.NoError(t, ask.Ask(t.Context(), time.Now(), []traffic.Message{system, {Role: "user", Content: "Hello."}}, 2).Err)
	}
	const hostile = `<script>alert("x")</script>`
	status, _ := postTo(c.url+"/v1/chat/completions", `{"model":"<script>alert(\"x\")</script>","messages":[{"role":"user","content":"hi"}]}`)
	require.Equal(t, http.StatusNotFound, status)

	text := c.shows(t, "open 0,") // a client has its last byte slightly before the lease is closed
	require.Equal(t, 1, strings.Count(text, "<script"), "its own")
	endpoints := rows(t, text, "endpoints")
	require.Len(t, endpoints, 1+3)
	for i, id := range []string{"server-1", "server-2", "server-3"} {
		require.Contains(t, endpoints[1+i][0], id)
		require.Contains(t, endpoints[1+i][0], "127.0.0.1:")
	}
	require.Regexp(t, `\d+of \d+`, fmt.Sprint(endpoints), "blocks")
	require.Equal(t, 5, strings.Count(text, "<details"))
	require.Equal(t, 4, strings.Count(text, `<tr class="chosen"`), "the fifth had no endpoint")
	all := textIn(page(t, text))
	for _, want := range []string{
		"endpick policy marginal-delay", "routed 4, open 0", "without endpoint 1", "Prefix index", "runner-up", "All 3 servers are healthy. In the last minute",
		hostile, "None of 3 servers has the model.", "configured by flags",
	} {
		require.Contains(t, all, want)
	}
}

// A page of a policy without index, scorers or anything routed, and with endpoints in every state.
func TestDebugPageOfABarePolicy(t *testing.T) {
	g := gatewayOf(t, plain("random"), endpick.Endpoint{ID: "a", Address: `http://a/"><b>`}, endpick.Endpoint{ID: "b", Address: "b"}, endpick.Endpoint{ID: "c", Address: "c"})
	require.NoError(t, g.router.Report("a", endpick.Load{Waiting: 3, Running: 4, KVUsage: 0.25}))
	require.NoError(t, g.router.Drain("a"))
	require.NoError(t, g.router.Remove("b"))
	kept := &story{id: "one", asked: new(endpick.Receipt)}
	lease := rig.Must(g.router.Route(endpick.Request{Model: "m", Receipt: kept.asked}))
	require.NoError(t, g.router.Remove("c"))
	*(*uint64)(unsafe.Pointer(&kept.asked.At)) -= 3600 << 30 // seconds: its clock was behind when it started
	g.ended = func(r recording.Request) { require.InDelta(t, time.Now().Unix(), r.Time.Unix(), 60) }
	g.record(recording.Request{Time: kept.asked.At})
	g.watch.stories.add(kept)
	require.InDelta(t, time.Now().Unix(), g.watch.stories.lists(asked{}, 1)[2].Requests[0].Time.Unix(), 60)

	w := send(g.admin, http.MethodGet, "/debug/endpick", "")
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	all := textIn(page(t, w.Body.String()))
	for _, want := range []string{`"><b>`, "draining", "removed", "25.0 %", "No server takes requests."} {
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
		many := append(slices.Repeat([]endpick.Verdict{verdict("x", 0, nil)}, mostShownCandidates), verdict("a", 1, nil))
		one := &story{id: fmt.Sprint(n), asked: &endpick.Receipt{Number: uint64(n % 7), Err: io.EOF, Verdicts: many, Chosen: n % 2 * mostShownCandidates}}
		in := httptest.NewRequest(http.MethodPost, "/", nil)
		if status > 0 {
			s.observe(&transport.Observation{
				Request: recording.Request{Status: map[int]string{2: "completed", 4: "refused", 5: "failed"}[status/100], HTTP: status, Time: time.Unix(int64(n), 0), BlockTokens: 16.1234, Prompt: &recording.Prompt{}}, Serving: -1, Held: time.Duration(n) * time.Millisecond,
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
	require.Equal(t, "a", shown.Receipt.Verdicts[shown.Receipt.Chosen].Candidate.Endpoint.ID)
	require.Nil(t, shown.Ending.In, "it is kept for long")
	require.Nil(t, shown.Prompt, "its text is no operator's")
	shown.Receipt, shown.InputTokens = &endpick.Receipt{Verdicts: []endpick.Verdict{{Candidate: endpick.Candidate{PrefixTokens: 12}}}}, 12
	require.Equal(t, 11, shown.Held(), "less than the prompt turned out to have")
	shown.InputTokens = 0
	require.Equal(t, 12, shown.Held())
	running := s.lists(asked{url.Values{"id": {"6"}}}, 1)[2].Requests[0]
	require.Equal(t, []any{"running", "x", true}, []any{running.Status, running.Endpoint, running.Estimated})
	s.observe(&transport.Observation{In: httptest.NewRequest(http.MethodPost, "/", nil)})
}

// A server whose failures are hidden by retries is named, whatever rows are asked for.
func TestDebugPageNamesWhoFailsNowAndThen(t *testing.T) {
	g := newTestGateway(t, "endpoints: [{id: a, url: \"http://127.0.0.1:1\"}, {id: b, url: \"http://127.0.0.1:2\"}]\n")
	healthy := "All 2 servers are healthy"
	verdict := func() string { return textIn(page(t, see(t, g.admin, "/debug/endpick?server=a"))) }
	before := -2 * time.Minute
	observe := func(times int, attempts func(*transport.Observation)) {
		for range times {
			o := seenRequest("completed")
			attempts(o)
			g.watch.history.observe(time.Now().Add(before), o)
		}
	}
	observe(9, func(*transport.Observation) {})
	before = 0
	observe(2, func(*transport.Observation) {})
	require.Contains(t, verdict(), healthy+". In the last minute, of 2 requests", "two failures are few")
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
	_, text := get(c.admin + "/debug/endpick")
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
	loading := serving(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "loading", http.StatusServiceUnavailable) }))
	pageless := serving(t, http.NotFoundHandler())
	down := "http://" + nobody(t)
	c := start(t, "-backend", down, "-backend", loading.URL, "-backend", pageless.URL)
	text := c.shows(t, "2 of 3 servers are unhealthy.")
	require.Contains(t, textIn(page(t, text)), "Requests go to others as far as possible.")
	servers := rows(t, text, "endpoints")
	require.Contains(t, servers[1][0], down)
	// Polls see it first, or on a busy machine checks.
	require.Regexp(t, `^unhealthyit (can't be reached|fails its health checks), .*connection refused`, servers[1][1])
	require.Contains(t, servers[2][0], loading.URL)
	require.Regexp(t, `^not readyit has served nothing yet, and it fails its health checks: answered 503 Service Unavailable`, servers[2][1])
	require.Regexp(t, `^healthy`, servers[3][1])
	_, metrics := get(c.admin + "/metrics")
	require.Contains(t, metrics, "endpick_unhealthy_endpoints 1\n")
	require.Contains(t, metrics, `endpick_endpoint_share_ratio{endpoint="`+down+`"} 0`)
	c.logs(t, "msg=health endpoint="+down+" state=out reason=un", 1)

	c = start(t, "-backend", down)
	c.shows(t, "1 of 1 servers is unhealthy. Requests are tried there all the same.")
	status, _ := get(c.url + "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
}

// An endpoint that is out but passes its checks again is shown as waiting for a request, not as failing them.
func TestIllness(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		state, class, detail string
		change               func(*health.Status)
	}{
		{"unhealthy", "bad", "it fails its health checks, EOF, for 1m0s", func(s *health.Status) {
			s.State, s.CheckErr, s.Err = health.Unfit, io.EOF, io.ErrNoProgress
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
		{"full", "soso", "it has said that it is full", func(s *health.Status) { s.Alive, s.Full = true, true }},
		{"healthy", "good", "does not report its load", func(s *health.Status) { s.Alive = true }},
	} {
		var s health.Status
		s.Since = now.Add(-time.Minute)
		c.change(&s)
		state, class, detail := condition(&endpick.EndpointStatus{Candidate: verdict("a", 0, nil).Candidate}, &s, now)
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
	for range 21 {
		one := &story{asked: new(endpick.Receipt)}
		rig.Must(g.router.Route(endpick.Request{Receipt: one.asked})).Done(endpick.Outcome{})
		g.watch.stories.add(one)
	}
	text := see(t, g.admin, "/debug/endpick?idle")
	page(t, text)
	require.Len(t, rows(t, text, "endpoints"), 1+100)
	require.Contains(t, text, "900 more are not shown.")
	require.Contains(t, text, "more candidates are not shown.")
	require.Equal(t, 20, strings.Count(text, `<tr class="chosen">`), "the chosen one always is")
	require.Less(t, len(text), 6<<20)
	require.Equal(t, 21, strings.Count(see(t, g.admin, "/debug/endpick?idle&server=server"), `<tr class="chosen">`), "more are found than shown")
}

// What an operator is told of is found by its id, and says what every server did with it.
func TestRequestsAreFound(t *testing.T) {
	good := newBackend(t)
	bad := serving(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	g := newTestGateway(t, "policy: round-robin\nendpoints: [{id: good, url: \""+good.URL+"\", models: [m]}, {id: bad, url: \""+bad.URL+"\", models: [m, n]}]\n"+
		"models: {n: {policy: lmetric}, none: {policy: random}, also: {policy: round-robin}}\nnames: {best: {models: [gone, m]}}\ntenants: {ann: {keys: ["+annsKey+"]}}\n")
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
	require.Equal(t, `transport: endpoint "bad" (attempt 1): EOF`, failed.Error)
	require.Equal(t, "bad did not answer", failed.Why[0])
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
		"of 4 requests 25.0 % failed and 25.0 % were refused.", "gone has no server", "none has no server", "1.", "but 3 models have no server."} {
		require.Contains(t, text, want)
	}
	require.Equal(t, "?id=a+b&sort=ttft", asked{url.Values{"id": {"a b"}}}.By("ttft"))
	require.True(t, asked{url.Values{"server": {"a"}}}.Any())
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
	require.NoError(t, g.router.Report("s-3", endpick.Load{Waiting: 8}))
	require.NoError(t, g.router.Report("s-12", endpick.Load{}))
	require.NoError(t, g.router.Report("s-7", endpick.Load{Waiting: 9}))
	require.NoError(t, g.router.Drain("s-7"))
	defer rig.Must(g.router.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: "s-5"}})).Done(endpick.Outcome{})
	ids := func(query string) (ids []string) {
		p := g.debugPage(asked{rig.Must(url.ParseQuery(query))})
		for _, s := range p.Servers {
			ids = append(ids, s.Candidate.Endpoint.ID)
		}
		return append(ids, fmt.Sprint(p.Idle))
	}
	require.Equal(t, []string{"s-5", "s-7", "18"}, ids(""), "those that have something to do, or are not well")
	require.Equal(t, []string{"s-0", "s-1", "s-2"}, ids("server=s-")[:3])
	require.Contains(t, see(t, g.admin, "/debug/endpick"), "19 servers are healthy, and 1 drained.")
	require.Equal(t, []string{"s-1", "s-10", "s-11", "s-12", "s-13", "s-14", "s-15", "s-16", "s-17", "s-18", "s-19", "0"}, ids("server=s-1"))
	require.Equal(t, []string{"s-7", "s-3", "s-5"}, ids("sort=W&idle")[:3], "others are assumed to have the mean")
	its := g.health.Endpoints()[0]
	its.Alive = true
	state, _, _ := condition(&endpick.EndpointStatus{Candidate: endpick.Candidate{Report: &endpick.Load{Asleep: true}}}, &its, time.Time{})
	require.Equal(t, "asleep", state)
	require.Equal(t, []string{"3", "~3"}, []string{loadOf(&endpick.Candidate{Reported: endpick.RunningSignal}, endpick.RunningSignal, "3", true),
		loadOf(&endpick.Candidate{Reported: endpick.RunningSignal}, endpick.WaitingSignal, "3", true)})
	servers := make([]debugServer, 3)
	for i, names := range [][]string{{"m"}, {"m", "n"}, {}} {
		servers[i].Candidate.Endpoint, servers[i].takes = &endpick.Endpoint{Models: names, Adapters: []string{"l"}[min(i, 1):]}, i == 0
	}
	require.Equal(t, []string{"k", "n"}, lacking(&settings{Models: map[string]modelSettings{"l": {}, "k": {}}}, servers))
}

// seenRequest is a stream from server a, after b failed it, with its first token
// after 100 ms; of 1,000 tokens 640 were expected to be cached and 512 were.
func seenRequest(status string) *transport.Observation {
	ttft, cached := 100.0, 512
	at := time.Unix(1000, 0)
	of := func(id string, prefix int) endpick.Candidate {
		return endpick.Candidate{Endpoint: &endpick.Endpoint{ID: id}, PrefixTokens: prefix}
	}
	return &transport.Observation{
		Request: recording.Request{
			Time: at, Stream: true, Status: status, HTTP: 200, TTFTMillis: &ttft, E2EMillis: 200, InputTokens: 1000, OutputTokens: 3, CachedTokens: &cached,
		},
		Attempts: []transport.ObservedAttempt{
			{Candidate: of("b", 0), At: at, Result: transport.Erred},
			{Candidate: of("a", 640), At: at, Result: transport.Served},
		},
		Serving: 1,
	}
}

func TestHistory(t *testing.T) {
	var h history
	now := time.Unix(1_000_000, 0)
	h.observe(now, seenRequest("completed"))
	h.observe(now.Add(4*time.Second), seenRequest("completed"))
	h.observe(now.Add(5*time.Second), seenRequest("failed"))
	h.observe(now.Add(5*time.Second), seenRequest("canceled"))
	for status, err := range map[int]error{404: nil, 401: nil, 0: &queue.Error{Reason: queue.ErrFull}} { // 401 has no key
		h.observe(now.Add(5*time.Second), &transport.Observation{Request: recording.Request{Status: "refused", HTTP: status}, Err: err, Serving: -1})
	}
	refused := seenRequest("refused")
	refused.HTTP, refused.Serving, refused.Attempts[0].Result = 401, 0, transport.Refused
	h.observe(now.Add(5*time.Second), refused)
	all := h.all.last(now.Add(5 * time.Second))
	require.Len(t, all, slots)
	first, second := *all[slots-2], *all[slots-1]
	assert.Equal(t, []int{2, 0, 0}, []int{first.served, first.failed, first.refused})
	assert.Equal(t, []int{0, 1, 3, 1}, []int{second.served, second.failed, second.refused, second.limited})
	assert.Equal(t, "The only server is healthy, but of the requests that are not refused 100 % fail.", (&debugPage{Serving: 1, Minute: second}).Verdict().Text, "who asks for what is not there hides nothing")
	second.failed, second.served = 0, 1
	var sum slot
	sum.add(&second)
	assert.Equal(t, "All 3 servers are healthy, but 50 % of the requests get 429: too many at once, or over a quota.", (&debugPage{Serving: 3, Minute: sum}).Verdict().Text)
	assert.Equal(t, "2 servers are healthy, and 1 drained, but 1 model has no server.", (&debugPage{Serving: 2, Drained: 1, Lacking: []string{"m"}}).Verdict().Text)
	assert.Equal(t, []float64{2000, 1280, 1024}, []float64{first.prompt, first.expected, first.cached})
	assert.Zero(t, second.prompt, "of what has ended otherwise, that says nothing")
	assert.Nil(t, all[slots-3])
	assert.InEpsilon(t, 0.1, second.ttft.quantile(0.5), 0.05)
	first.inFlight, first.held = 4, 2
	all[slots-2] = &first
	sum.add(&first)
	sum.add(&first)
	assert.Equal(t, 7, sum.ttft[49])
	var seen []string
	plots := figures(all, &sum, 7, &transport.QueueStatus{Stats: queue.Stats{Requests: 2}})
	for _, f := range plots {
		seen = append(seen, f.Value)
	}
	assert.Equal(t, []string{"0.133/s", "102 ms", "51 %", "7"}, seen)
	assert.Equal(t, "now; 2 more wait in the gateway", plots[3].Note)
	assert.Regexp(t, `second" d="M\S+ 17.6h0.1"/>.* main" d="M\S+ 23.4h0.1"`, plots[2].Plot)
	assert.Regexp(t, `main" d="M\S+ 1.0h0.1"/>.* second" d="M\S+ 24.0h0.1"`, plots[3].Plot)

	a := h.servers["a"].last(now.Add(5 * time.Second))[slots-2]
	assert.Equal(t, serverSlot{served: 2, first: 2, ttft: 200 * time.Millisecond}, *a)
	assert.Equal(t, serverSlot{failed: 2}, *h.servers["b"].last(now.Add(5 * time.Second))[slots-2])
	assert.Equal(t, 2, h.servers["b"].last(now.Add(5 * time.Second))[slots-1].failed, "its refusals are none")

	e := debugServer{EndpointStatus: endpick.EndpointStatus{Candidate: endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "a"}}}}
	e.remember(&h, now.Add(5*time.Second))
	assert.Equal(t, 100*time.Millisecond, e.TTFT, "the mean")
	// A slot is reused after ten minutes and starts empty.
	later := now.Add(slots * slotTime)
	assert.Nil(t, h.all.last(later)[slots-1])
	h.observe(later, seenRequest("completed"))
	assert.Equal(t, 1, h.all.last(later)[slots-1].served)

	for i := range 2 * mostServers {
		r := seenRequest("completed")
		r.Attempts[1].Candidate.Endpoint = &endpick.Endpoint{ID: fmt.Sprint(i)}
		h.observe(later, r)
	}
	assert.Len(t, h.servers, mostServers)
}

// Servers that come and go leave no history behind, whether or not anybody looks: after ten
// minutes there is room for others. The machine has no clock of its own, and no time yet.
func TestHistoryForgetsServers(t *testing.T) {
	var h history
	now := time.Unix(0, 0)
	const eachSlot = 10
	for range 3 * slots {
		for i := range eachSlot {
			r := seenRequest("completed")
			id := fmt.Sprint(now.Unix(), " ", i)
			r.Attempts[1].Candidate.Endpoint = &endpick.Endpoint{ID: id}
			h.observe(now, r)
			require.NotNil(t, h.servers[id])
			require.LessOrEqual(t, len(h.servers), eachSlot*slots+1)
		}
		now = now.Add(slotTime)
	}
	require.NotNil(t, h.servers["b"], "which goes on failing")
	assert.NotNil(t, h.servers[fmt.Sprint(now.Add(-(slots-1)*slotTime).Unix(), " 0")], "which the page still shows")
	h.observe(now.Add(slots*slotTime), seenRequest("completed"))
	assert.Len(t, h.servers, 2)
}

func TestHistogram(t *testing.T) {
	var h histogram
	assert.True(t, math.IsNaN(h.quantile(0.5)) && math.IsNaN(latency{Actual: time.Second}.Error()))
	for i := range 100 {
		h.add(time.Duration(i+1) * 10 * time.Millisecond)
	}
	for _, q := range []float64{0.01, 0.5, 0.95, 1} {
		assert.InEpsilon(t, q, h.quantile(q), 0.1)
	}
	h.add(0)
	h.add(-time.Second)
	h.add(time.Duration(math.MaxInt64))
	assert.InEpsilon(t, firstBucket, h.quantile(0.001), 0.1)
	assert.Equal(t, 1, h[len(h)-1])
}

func TestPlot(t *testing.T) {
	nan := math.NaN()
	assert.Equal(t, `<svg viewBox="0 0 240 48" preserveAspectRatio="none" role="img" aria-label="a &lt;b&gt;">`+
		`<path class="area good" d="M0.0 47.0L120.0 24.0L240.0 1.0L240.0 48 L0.0 48 Z"/><path class="line good" d="M0.0 47.0L120.0 24.0L240.0 1.0"/></svg>`,
		string(plot("a <b>", 1, line{"good", []float64{0, 2, 4}, true})))
	assert.Contains(t, string(plot("", 0, line{"x", []float64{nan, 1, nan, 1, 1}, false})), `d="M60.0 1.0h0.1"/><path class="line x" d="M180.0 1.0L240.0 1.0"/>`)
	for _, odd := range [][]float64{nil, {nan}, {nan, nan}, {0}, {math.Inf(1), -1}, {-5, 3}} {
		assert.NotContains(t, string(plot("", 0, line{"x", odd, true})), "NaN")
		assert.NotContains(t, string(plot("", 0, line{"x", odd, true})), "Inf")
	}
}

func TestShown(t *testing.T) {
	all := make([]*int, slots)
	assert.Len(t, shown(all), 2*perMinute)
	all[slots-2] = new(int)
	assert.Len(t, shown(all), 2*perMinute)
	all[10] = new(int)
	assert.Len(t, shown(all), slots-1-10)
	assert.Same(t, all[10], shown(all)[0])
}

func verdict(id string, score float64, change func(*endpick.Candidate)) endpick.Verdict {
	v := endpick.Verdict{Candidate: endpick.Candidate{Endpoint: &endpick.Endpoint{ID: id}}, Score: score}
	if change != nil {
		change(&v.Candidate)
	}
	return v
}

func removed(id, by string) endpick.Verdict {
	v := verdict(id, 0, nil)
	v.RemovedBy = by
	return v
}

func TestSaid(t *testing.T) {
	for want, a := range map[string]transport.ObservedAttempt{
		"served it": {Result: transport.Served, HTTP: 200}, "served the rest": {Result: transport.Served, HTTP: 200, Resumes: true},
		"could not be reached": {Result: transport.Unreachable}, "answered 503": {Result: transport.Erred, HTTP: 503},
		"was full": {Result: transport.Full, HTTP: 429}, "did not answer": {Result: transport.Broken}, "broke off its answer": {Result: transport.Broken, HTTP: 200},
		"was still busy with it when the client left": {Result: transport.Canceled},
	} {
		assert.Equal(t, want, said(&a))
	}
	of := func(id string, a transport.ObservedAttempt) transport.ObservedAttempt {
		a.Candidate.Endpoint = &endpick.Endpoint{ID: id}
		return a
	}
	refused, broken := of("a", transport.ObservedAttempt{Result: transport.Refused, HTTP: 404}), of("b", transport.ObservedAttempt{Result: transport.Broken, HTTP: 200})
	resumed := of("c", transport.ObservedAttempt{Result: transport.Broken, HTTP: 200, Resumes: true})
	all := []transport.ObservedAttempt{refused, broken, resumed, resumed}
	then := []string{"First a answered 404.", "why b.", "Then, because b broke off its answer, c was asked for the rest.", "Then, because c broke off its answer, c was asked for the rest."}
	assert.Equal(t, then, explained([]string{"why b."}, true, all))
	assert.Equal(t, then[1:3], explained([]string{"why b."}, true, all[1:3]))
	assert.Equal(t, []string{"First a answered 404, then b broke off its answer.", "nobody."}, explained([]string{"nobody."}, false, all[:2]))
	assert.Equal(t, []string{"a answered 404", "nobody."}, explained([]string{"nobody."}, false, all[:1]))
	assert.Empty(t, explained(nil, true, nil))
	assert.Equal(t, `Passed over: a prompt of 9 tokens fits no endpoint for model "m": the longest context is 8.`, passed(&endpick.ContextError{Model: "m", InputTokens: 9, MaxContext: 8}))
}

// The decision worked out in docs/concepts.md, and other cases.
func TestWhy(t *testing.T) {
	a := verdict("a", 4.06e-06, func(c *endpick.Candidate) {
		c.Running, c.InFlight.PrefillTokens, c.PrefixTokens = 12, 9000, 608
	})
	b := verdict("b", 0.000165, func(c *endpick.Candidate) { c.Running = 2 })
	c := verdict("c", 7.81e-05, func(c *endpick.Candidate) { c.Waiting, c.Running, c.PrefixTokens = 3, 4, 208 })
	dear := verdict("y", 0.5, nil)
	dear.Why = "costs 20 ms, 10 above the least, most for its first token: its first token 18, its other tokens 2 = w 1 · TTFT 18 + …"
	for name, tc := range map[string]struct {
		receipt endpick.Receipt
		by      string
		want    []string
	}{
		"best": {
			endpick.Receipt{Verdicts: []endpick.Verdict{b, c, a}, Chosen: 0, RunnerUp: 1},
			"load", []string{
				"b had the best score, 0.000165, before c with 7.81e-05.",
				"Compared with c: it holds ~208 fewer tokens of the prompt; 3 fewer requests wait for it; 2 fewer run on it.",
			},
		},
		"avoided": {
			endpick.Receipt{Verdicts: []endpick.Verdict{b}, RunnerUp: -1, Avoided: []string{"a", "c"}},
			"health", []string{"Passed over: a (failing), c (without the model or API, or well since).", "b was the only server that could take it."},
		},
		"by chance": {
			endpick.Receipt{Verdicts: []endpick.Verdict{b, c, a}, Chosen: 2, RunnerUp: 0},
			"chance", []string{
				"a scored 4.06e-06, and b 0.000165: the policy leaves something to chance.",
				"Compared with b: it holds ~608 more tokens of the prompt; it has 9000 more tokens of others to read first; 10 more run on it.",
			},
		},
		"equals": { // as far as anybody sees
			endpick.Receipt{Verdicts: []endpick.Verdict{verdict("x", 1.00001, nil), verdict("y", 1, nil), verdict("z", 1, nil)}, Chosen: 1, RunnerUp: 2, Full: 1},
			"chance", []string{"Not asked, because it has as many requests as it may (max_in_flight): 1 server.", "y scored 1, as did 2 others: chance decided.", "Their load and cached tokens are the same."},
		},
		"predicted": {
			endpick.Receipt{Verdicts: []endpick.Verdict{
				verdict("x", 0.9, func(c *endpick.Candidate) {
					c.Prediction = endpick.Prediction{Has: endpick.TTFT | endpick.TPOT | endpick.E2E, TTFT: 21 * time.Millisecond, TPOT: 8 * time.Millisecond, E2E: 5 * time.Millisecond}
				}),
				verdict("y", 0.1, func(c *endpick.Candidate) {
					c.Prediction = endpick.Prediction{Has: endpick.TTFT | endpick.TPOT | endpick.E2E, TTFT: 1500 * time.Millisecond, TPOT: 12500 * time.Microsecond, E2E: time.Second}
				}),
			}, RunnerUp: 1},
			"load", []string{
				"x had the best score, 0.9, before y with 0.1.",
				"Compared with y: its first token was expected after 21 ms instead of 1.50 s; each further one in 8.0 ms instead of 12 ms; its end was expected after 5.0 ms instead of 1.00 s.",
			},
		},
		"explained": {
			endpick.Receipt{Verdicts: []endpick.Verdict{verdict("x", 1, nil), dear}, RunnerUp: 1}, "load", []string{
				"x had the best score, 1, before y with 0.5.",
				"y costs 20 ms, 10 above the least, most for its first token: its first token 18, its other tokens 2.",
				"Their load and cached tokens are the same.",
			},
		},
		"one": {
			endpick.Receipt{Verdicts: []endpick.Verdict{
				verdict("x", 2, func(c *endpick.Candidate) {
					c.Waiting, c.Prediction = 1, endpick.Prediction{Has: endpick.TTFT, TTFT: 20_100 * time.Microsecond}
				}),
				verdict("y", 1, func(c *endpick.Candidate) {
					c.PrefixTokens, c.Running, c.Prediction = 1, 1, endpick.Prediction{Has: endpick.TTFT, TTFT: 20_200 * time.Microsecond}
				}),
			}, RunnerUp: 1},
			"load", []string{"x had the best score, 2, before y with 1.", "Compared with y: it holds ~1 fewer token of the prompt; 1 more request waits for it; 1 fewer runs on it."},
		},
		"alone": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1}, "only", []string{"a was the only server that could take it."},
		},
		"left": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1, Excluded: 1}, "health", []string{"a was the only one left."},
		},
		"limited": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1, Full: 2, TooShort: 1, Later: 1}, "limit", []string{
				"Not asked, because it has too short a context (max_context): 1 server.",
				"Not asked, because it has as many requests as it may (max_in_flight): 2 servers.",
				"Not asked, because it is of a later tier: 1 server.", "a was the only server that could take it.",
			},
		},
		"too short": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1, TooShort: 1, Later: 1}, "context",
			[]string{"Not asked, because it has too short a context (max_context): 1 server.", "Not asked, because it is of a later tier: 1 server.", "a was the only server that could take it."},
		},
		"first tier": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1, Later: 1}, "tier",
			[]string{"Not asked, because it is of a later tier: 1 server.", "a was the only server that could take it."},
		},
		"filtered": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a, removed("y", "affinity gate"), removed("z", "affinity gate"), removed("w", "tier")}, RunnerUp: -1},
			"prefix", []string{"affinity gate set 2 servers aside.", "tier set 1 server aside.", "That left a."},
		},
		"filtered otherwise": {
			endpick.Receipt{Verdicts: []endpick.Verdict{b, removed("y", "tier")}, RunnerUp: -1}, "room", []string{"tier set 1 server aside.", "That left b."},
		},
		"cached": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a, verdict("y", 1e-7, func(c *endpick.Candidate) { c.Running, c.InFlight.PrefillTokens, c.PrefixTokens = 12, 9000, 600 })}, RunnerUp: 1}, "prefix",
			[]string{"a had the best score, 4.06e-06, before y with 1e-07.", "Compared with y: it holds ~8 more tokens of the prompt."},
		},
		"no opinion": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, RunnerUp: -1, Undecided: []string{"tier"}}, "only",
			[]string{"tier had no opinion: no server met it.", "a was the only server that could take it."},
		},
		"refused": {
			endpick.Receipt{Verdicts: []endpick.Verdict{a}, Chosen: -1, RunnerUp: -1, Err: errors.New("too late")},
			"health", []string{"No server was chosen: too late."},
		},
		"unknown": {
			endpick.Receipt{Chosen: -1, Err: &endpick.NoEndpointError{Endpoints: 3}}, "health", []string{"None of 3 servers has the model."},
		},
		"nobody left": {
			endpick.Receipt{Chosen: -1, Err: &endpick.NoEndpointError{Endpoints: 4, Serving: 4, Excluded: 2, Full: 1, Draining: 1}},
			"health", []string{"No server was left: of 4, 4 have the model; 2 had failed this request or could not be asked; 1 had as many requests as they may; 1 being drained."},
		},
		"nobody asked": {
			endpick.Receipt{Chosen: -1, Err: &endpick.NoEndpointError{Endpoints: 4, Serving: 1, Excluded: 1}}, "health",
			[]string{"No server was left: of 4, 1 has the model; 1 had failed this request or could not be asked."},
		},
	} {
		assert.Equal(t, tc.want, why(&tc.receipt, func(id string) string { return map[string]string{"a": "failing"}[id] }), name)
		assert.Equal(t, tc.by, decidedBy(&tc.receipt, 9*time.Millisecond), name)
		assert.Equal(t, "queue", decidedBy(&tc.receipt, 10*time.Millisecond))
	}
}
