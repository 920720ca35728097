package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tenant is that of the key, whatever else a client sends, and no key reaches a server.
func TestTenantsComeFromKeys(t *testing.T) {
	b := newBackend(t)
	// printf %s sk-bob-0123456789abcdef | sha256sum
	const bobsSum = "sha256:fb358364d67bf422d27e1fb8d84354119bcf3d6f5b4faddc9cbe369e86201d69"
	g := newTestGateway(t, "endpoints: [{url: \""+b.URL+"\"}]\nengine_key: for-the-engine\n"+
		"tenants: {ann: {keys: ["+annsKey+"], slo: {ttft: 5s, tpot: 1s}}, bob: {keys: [\""+bobsSum+"\"]}}\n")
	var ended []recording.Request
	g.ended = func(r recording.Request) { ended = append(ended, r) }
	const chat = "/v1/chat/completions"
	for _, tc := range []struct {
		headers []string
		tenant  string // empty: refused
	}{
		{nil, ""},
		{[]string{"Authorization", "Bearer " + annsKey}, "ann"},
		{[]string{"Authorization", "bearer  " + annsKey}, "ann"},
		{[]string{"X-Api-Key", bobsKey}, "bob"},
		{[]string{"Api-Key", bobsKey, "OpenAI-Organization", "ann"}, "bob"},
		{[]string{"X-Goog-Api-Key", bobsKey}, "bob"},
		{[]string{"X-Goog-Api-Key", bobsKey, "X-Api-Key", annsKey}, ""},
		{[]string{"Sec-WebSocket-Protocol", "realtime, openai-insecure-api-key." + bobsKey + ",openai-beta.realtime-v1"}, "bob"},
		{[]string{"Sec-WebSocket-Protocol", "realtime", "Sec-WebSocket-Protocol", "openai-insecure-api-key." + annsKey}, "ann"},
		{[]string{"Sec-WebSocket-Protocol", "openai-insecure-api-key." + annsKey, "Authorization", "Bearer " + annsKey}, "ann"},
		{[]string{"Sec-WebSocket-Protocol", "openai-insecure-api-key." + annsKey, "Authorization", "Bearer " + bobsKey}, ""},
		{[]string{"Sec-WebSocket-Protocol", "openai-insecure-api-key." + annsKey + ", openai-insecure-api-key." + bobsKey}, ""},
		{[]string{"Sec-WebSocket-Protocol", "realtime, " + annsKey}, ""},
		{[]string{"Authorization", "Bearer " + annsKey, "X-Api-Key", annsKey}, "ann"},
		{[]string{"Authorization", "Bearer " + annsKey, "X-Api-Key", "sk-of-somebody-else"}, "ann"},
		{[]string{"Authorization", "Basic dTpw", "X-Api-Key", bobsKey}, "bob"},
		{[]string{"Authorization", "Bearer " + annsKey, "X-Api-Key", bobsKey}, ""},
		{[]string{"Authorization", "Bearer " + annsKey, "Authorization", "Bearer " + bobsKey}, ""},
		{[]string{"Authorization", "Bearer ", "X-Api-Key", bobsKey, "Authorization", "Bearer " + bobsKey}, "bob"},
		{[]string{"Authorization", annsKey}, ""},
		{[]string{"Authorization", "Basic " + annsKey}, ""},
		{[]string{"Authorization", "Bearer " + annsKey + "x"}, ""},
		{[]string{"Authorization", "Bearer " + bobsSum}, ""},
		{[]string{"Authorization", "Bearer "}, ""},
		{[]string{"OpenAI-Organization", "ann"}, ""},
	} {
		before := len(ended)
		w := askGateway(g, chat, tc.headers...)
		if tc.tenant == "" {
			require.Equal(t, http.StatusUnauthorized, w.Code, tc.headers)
			require.JSONEq(t, `{"error":{"message":"this needs a valid API key","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`, w.Body.String())
			require.Len(t, ended, before)
			continue
		}
		require.Equal(t, http.StatusOK, w.Code, tc.headers)
		require.Len(t, ended, before+1)
		require.Equal(t, tc.tenant, g.tenantName(ended[before].Tenant))
		h := b.last()
		require.Equal(t, []string{"Bearer for-the-engine"}, h["Authorization"])
		require.NotContains(t, fmt.Sprint(h), annsKey)
		require.NotContains(t, fmt.Sprint(h), bobsKey)
		// A tenant's targets apply to requests without any.
		want := map[string][]float64{"ann": {5000, 1000}, "bob": {0, 0}}[tc.tenant]
		require.Equal(t, want, []float64{ended[before].SLOTTFTMillis, ended[before].SLOTPOTMillis})
	}
	require.EqualValues(t, 32<<20, g.longest, "as the transport's")
	require.Equal(t, "1f", g.tenantName(0x1f), "of one that is gone")
	require.Equal(t, http.StatusOK, askGateway(g, chat, "Authorization", "Bearer "+annsKey, "X-Slo-Ttft-Ms", "250").Code)
	last := ended[len(ended)-1]
	require.Equal(t, []float64{250, 0}, []float64{last.SLOTTFTMillis, last.SLOTPOTMillis})

	w := askGateway(g, "/v1/messages")
	require.Equal(t, http.StatusUnauthorized, w.Code)
	require.JSONEq(t, `{"type":"error","error":{"type":"authentication_error","message":"this needs a valid API key"}}`, w.Body.String())
	require.Equal(t, http.StatusOK, send(g, http.MethodGet, "/readyz", "").Code, "a load balancer has no key")
}

// A browser's key for a WebSocket is taken from among its subprotocols; the server gets the others.
func TestSubprotocolsWithoutTheKey(t *testing.T) {
	b := newBackend(t)
	g := newTestGateway(t, "endpoints: [{url: \""+b.URL+"\"}]\ntenants: {ann: {keys: ["+annsKey+"]}}\n")
	const key = "openai-insecure-api-key." + annsKey
	for offered, want := range map[string][]string{
		"realtime, " + key + ", openai-beta.realtime-v1": {"realtime, openai-beta.realtime-v1"},
		key: nil,
	} {
		require.Equal(t, http.StatusOK, askGateway(g, "/v1/chat/completions", "Sec-WebSocket-Protocol", offered).Code)
		require.Equal(t, want, b.last()["Sec-Websocket-Protocol"])
	}
	require.Equal(t, http.StatusOK, askGateway(g, "/v1/chat/completions", "X-Api-Key", annsKey, "Sec-WebSocket-Protocol", "a,b", "Sec-WebSocket-Protocol", "c").Code)
	require.Equal(t, []string{"a,b", "c"}, b.last()["Sec-Websocket-Protocol"], "as they came")
}

// A browser's preflight comes without a key, and gets the gateway's answer: no server sees it,
// whatever else it asks for. Only pages of the origins that were named may call.
func TestBrowsersAskWithoutAKey(t *testing.T) {
	var page string // as the server sees it
	b := serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NotEqual(t, http.MethodOptions, r.Method)
		if r.Method == http.MethodPost { // and not the gateway's own questions
			page = r.Header.Get("Origin")
		}
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Access-Control-Allow-Origin", "http://whom-the-engine-likes")
		w.Header().Set("Access-Control-Allow-Credentials", "true")
	}))
	for _, origins := range []string{"", "origins: [http://page]", "origins: ['*']"} {
		g := newTestGateway(t, "endpoints: [{url: \""+b.URL+"\"}]\ntenants: {ann: {keys: ["+annsKey+"]}}\n"+origins)
		for _, tc := range []struct {
			name, method, body string
			headers            []string
			status             int
			origin             string // that is allowed, by one of the two settings
		}{
			{"a page asks", "OPTIONS", "", []string{"Origin", "http://page", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization"}, 204, "http://page"},
			{"for a tunnel", "OPTIONS", "", []string{"Origin", "http://page", "Access-Control-Request-Method", "POST", "Connection", "Upgrade", "Upgrade", "websocket"}, 204, "http://page"},
			{"and sends a key that is none of its", "OPTIONS", "", []string{"Origin", "http://page", "Access-Control-Request-Method", "DELETE", "X-Api-Key", "x"}, 204, "http://page"},
			{"with a body", "OPTIONS", "{}", []string{"Origin", "http://page", "Access-Control-Request-Method", "POST"}, 204, "http://page"},
			{"for nothing", "OPTIONS", "", []string{"Origin", "http://page"}, 401, "http://page"},
			{"calls without a key", "POST", "", []string{"Origin", "http://page"}, 401, "http://page"},
			{"calls with a key", "POST", "{}", []string{"Origin", "http://page", "X-Api-Key", annsKey}, 200, "http://page"},
			{"another page", "POST", "{}", []string{"Origin", "http://other", "X-Api-Key", annsKey}, 200, "http://other"},
			{"no page", "POST", "{}", []string{"X-Api-Key", annsKey}, 200, ""},
		} {
			w := send(g, tc.method, "/v1/chat/completions", tc.body, tc.headers...)
			require.Equal(t, tc.status, w.Code, tc.name)
			var want []string
			if tc.origin != "" && (strings.Contains(origins, tc.origin) || strings.Contains(origins, "*")) {
				want = []string{tc.origin}
			}
			require.Equal(t, want, w.Header()["Access-Control-Allow-Origin"], "%s, %s", tc.name, origins)
			require.Empty(t, w.Header().Get("Access-Control-Allow-Credentials"))
			if w.Code == http.StatusOK {
				require.Equal(t, want == nil, w.Header().Get("Access-Control-Expose-Headers") != "Retry-After, X-Should-Retry, X-Request-Id")
				require.Equal(t, want == nil, page == tc.origin, "%s: a server doesn't know the pages that are allowed here", tc.name)
			}
		}
	}
}

// Without keys, a page of any origin could have servers work: browsers ask nobody before they send
// what a form could send, or open a WebSocket, or send anything to where the page's own name leads.
func TestOnlyNamedPagesCallWithoutKeys(t *testing.T) {
	b := serving(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, origins := range []string{"", "origins: [http://page]", "origins: ['null']", "origins: ['*']"} {
		g := newTestGateway(t, "endpoints: [{url: \""+b.URL+"\"}]\n"+origins)
		for _, tc := range []struct {
			page, at string // that asks, and what it asks; empty: it is none, or the gateway's own
			with     []string
		}{
			{"", "", nil},
			{"", "http://[::1]:8080", []string{"Origin", "http://[::1]:8080"}},
			{"", "http://localhost", []string{"Origin", "http://localhost"}},
			{"http://rebound", "http://rebound", []string{"Origin", "http://rebound"}},
			{"", "http://chat.example", []string{"Origin", "https://chat.example", "Sec-Fetch-Site", "same-origin"}},
			{"http://page", "http://page", []string{"Origin", "http://page"}},
			{"http://other", "", []string{"Origin", "http://other", "Sec-Fetch-Site", "cross-site", "Content-Type", "text/plain"}},
			{"http://other", "", []string{"Origin", "http://other"}},
			{"null", "", []string{"Origin", "null"}}, // a file
		} {
			refused := tc.page != "" && !strings.Contains(origins, tc.page) && !strings.Contains(origins, "*")
			w := send(g, "POST", tc.at+"/v1/chat/completions", "{}", tc.with...)
			require.Equal(t, refused, w.Code == http.StatusForbidden, "%v, %s: %d", tc.with, origins, w.Code)
			w = send(g, "GET", tc.at+"/v1/realtime?model=m", "", append(tc.with, "Connection", "Upgrade", "Upgrade", "websocket")...)
			require.Equal(t, refused, w.Code == http.StatusForbidden, "%v, %s: %d", tc.with, origins, w.Code)
		}
	}
	c := start(t, "-backend", b.URL)
	for host, refused := range map[string]bool{"rebound:80": true, "x.localhost.example": true, "localhost:80": false, "[::1]": false, "host.docker.internal": false} {
		r := rig.Must(http.NewRequest("GET", c.admin+"/debug/endpick", nil))
		r.Host = host
		resp := rig.Must(http.DefaultClient.Do(r))
		_ = resp.Body.Close()
		require.Equal(t, refused, resp.StatusCode == http.StatusForbidden, "an operator's page, at %s: %d", host, resp.StatusCode)
		w := httptest.NewRecorder()
		notRebound(b.Config.Handler, &net.TCPAddr{IP: net.IPv4zero}).ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code, "where Prometheus asks for a service's name")
	}
}

// A client that sends its whole body before it reads sees why it was refused, and not a reset connection;
// one that asks before it sends any is not kept waiting.
func TestARefusalReachesWhoIsStillSending(t *testing.T) {
	g := newTestGateway(t, "endpoints: [{url: \"http://localhost:1\"}]\ntenants: {ann: {keys: ["+annsKey+"]}}\n")
	s := serving(t, limitBody(g, time.Minute))
	for _, rest := range []string{"\r\n" + strings.Repeat(" ", 32<<20), "Expect: 100-continue\r\n\r\n"} {
		conn := dial(t, s.URL, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n%s", 32<<20, rest))
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		require.Contains(t, string(rig.Must(io.ReadAll(conn))), "401 Unauthorized") // until the gateway closes it
	}
}

// A tenant can't make the gateway hold more than four long bodies while they arrive, whether or
// not it says how long they are; others are not affected, and what was read counts no more.
func TestATenantsBodiesAreBounded(t *testing.T) {
	var reading *atomic.Int64
	var held atomic.Int64 // bytes that count as being read when a server answers
	server := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		held.Store(reading.Load())
		_, _ = io.WriteString(w, "{}")
	})
	g := newTestGateway(t, annAndBob+"limits: {body: 1 KiB}\nendpoints: [{url: \""+server.URL+"\"}]\n")
	reading = &g.keys.Load().owner(annsKey).reading
	body := `{"messages":[{"content":"` + strings.Repeat("x", 900) + `"}]}`
	send := func(key string, declared bool) (finish func(), answer <-chan *httptest.ResponseRecorder) {
		from, to := io.Pipe()
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", from)
		r.Header.Set("X-Api-Key", key)
		if r.ContentLength = -1; declared {
			r.ContentLength = int64(len(body))
		}
		done := make(chan *httptest.ResponseRecorder, 1)
		go func() {
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			from.CloseWithError(io.ErrClosedPipe)
			done <- w
		}()
		_, _ = io.WriteString(to, body[:len(body)-1])
		return func() { _, _ = io.WriteString(to, body[len(body)-1:]); to.Close() }, done
	}
	for range 3 {
		var finish []func()
		var answers []<-chan *httptest.ResponseRecorder
		for i := range 4 {
			f, a := send(annsKey, i%2 == 0)
			finish, answers = append(finish, f), append(answers, a)
		}
		require.Eventually(t, func() bool { return reading.Load() >= 4*int64(len(body)-1) }, 30*time.Second, time.Millisecond)
		_, refused := send(annsKey, true)
		w := <-refused
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		_, refused = send(annsKey, false)
		require.Equal(t, http.StatusRequestEntityTooLarge, (<-refused).Code)
		f, a := send(bobsKey, true)
		finish, answers = append(finish, f), append(answers, a)
		for i, f := range slices.Backward(finish) {
			f()
			require.Equal(t, http.StatusOK, (<-answers[i]).Code)
		}
		require.Zero(t, held.Load(), "what has been read does not count")
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, askFor(g, "/v1/chat/completions", strings.Repeat(" ", 5<<10), "X-Api-Key", annsKey).Code)
}

// A tenant that has used up its tokens gets 429 and a time to come back; others go on, and a reload gives it more.
func TestQuotas(t *testing.T) {
	const quota = ", quota: {tokens_per_second: 0.001, burst: 20}}, bob"
	text := strings.Replace(annAndBob, "}, bob", quota, 1) + "endpoints: [{url: \"" + newBackend(t).URL + "\"}]\n"
	g := newTestGateway(t, text)
	const chat = "/v1/chat/completions"
	last := func() (w *httptest.ResponseRecorder) {
		for n := 0; n < 20 && (w == nil || w.Code == http.StatusOK); n++ {
			w = askGateway(g, chat, "X-Api-Key", annsKey)
		}
		return w
	}
	w := last()
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.NotEmpty(t, w.Header().Get("Retry-After"))
	require.Equal(t, http.StatusOK, askGateway(g, chat, "X-Api-Key", bobsKey).Code)

	require.NoError(t, g.apply(parsed(strings.Replace(text, "tokens_per_second: 0.001, burst: 20", "requests: 1", 1))))
	require.Equal(t, http.StatusOK, last().Code)
}

// Tenants of the file have a name in the metrics even if all that they ask is refused, also after a reload.
func TestMetricsNameTenants(t *testing.T) {
	const text = "endpoints: [{url: \"http://a\", models: [x]}]\ntenants: {ann: {keys: [" + annsKey + "]}}\n"
	g := newTestGateway(t, text)
	require.Equal(t, http.StatusNotFound, askGateway(g, "/v1/chat/completions", "X-Api-Key", annsKey).Code)
	require.NoError(t, g.apply(parsed(strings.Replace(text, "tenants: {", "tenants: {bob: {keys: ["+bobsKey+"]}, ", 1))))
	for range 2 {
		require.Equal(t, http.StatusNotFound, askGateway(g, "/v1/chat/completions", "X-Api-Key", bobsKey).Code)
	}
	metrics := scrapeMetrics(t, g.admin)
	require.Contains(t, metrics, `endpick_tenant_requests_total{status="refused",tenant="ann"} 1`)
	require.Contains(t, metrics, `endpick_tenant_requests_total{status="refused",tenant="bob"} 2`)
}

// spy records who has sent requests: tenant, priority and session.
type spy struct{ who []string }

func (s *spy) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	s.who = append(s.who, fmt.Sprint(req.Tenant, " ", req.Priority, " ", req.Session))
	return nil
}

func TestHeadersAreTrustedOnDemand(t *testing.T) {
	server := answering(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "acme", r.Header.Get(tenantHeader), "what is the engine's is passed on")
		assert.Equal(t, "192.0.2.1", r.Header.Get("X-Forwarded-For"))
		assert.Equal(t, "Bearer of-the-engine", r.Header.Get("Authorization"), "without tenants keys are, too")
		_, _ = io.WriteString(w, "{}")
	})
	for _, trusted := range []bool{false, true} {
		seen := &spy{}
		s := plain("random")
		s.TrustHeaders = trusted
		g := gatewayOf(t, s, endpick.Endpoint{ID: "a", Address: server.URL})
		require.NoError(t, g.router.SetPolicy(endpick.Policy{Admitters: []endpick.Admitter{seen}}))
		w := askFor(g, "/v1/completions", `{"model":"m","prompt":"hi"}`, tenantHeader, "acme", transport.PriorityHeader, "7", transport.SessionHeader, "chat-1",
			"Authorization", "Bearer of-the-engine")
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		assert.Empty(t, w.Header().Get(transport.EndpointHeader), "where a prompt is cached is nobody's business")
		want := []string{" 0 "}
		if trusted {
			want = []string{"acme 7 chat-1"}
		}
		assert.Equal(t, want, seen.who)
	}
}
