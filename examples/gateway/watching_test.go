package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

const watching = "watching"

// needs skips a test if a program from Debian's prometheus package is missing.
func needs(t *testing.T, program string) {
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("there is no %s: apt-get install prometheus", program)
	}
}

func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	needs(t, "promtool")
	c := exec.CommandContext(t.Context(), "promtool", args...)
	c.Dir, c.Stdin = watching, strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s\n%s", args, out)
}

// Each alert fires when it should and not before, on made-up series.
func TestAlerts(t *testing.T) {
	promtool(t, "", "check", "config", "prometheus.yml")
	promtool(t, "", "test", "rules", "alerts_test.yml")
	rules := rig.Must(os.ReadFile(filepath.Join(watching, "alerts.yml")))
	tests := rig.Must(os.ReadFile(filepath.Join(watching, "alerts_test.yml")))
	docs := rig.Must(os.ReadFile("../../docs/watching.md"))
	for _, name := range alertsIn(string(rules)) {
		assert.LessOrEqual(t, 3, strings.Count(string(tests), ": "+name), "%s: silent, too early, and fired", name)
		assert.Contains(t, string(docs), "\n| `"+name+"` |")
	}
	assert.Equal(t, len(alertsIn(string(rules))), strings.Count(string(rules), "runbook_url: https://github.com/endpick/endpick/blob/main/docs/watching.md#alerts\n"))
	assert.Contains(t, string(docs), "\n### Alerts\n")
}

func alertsIn(rules string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)alert: (\S+)$`).FindAllStringSubmatch(rules, -1) {
		names = append(names, m[1])
	}
	return names
}

// load sends streams of two tenants and a few conversations until the context ends.
func load(ctx context.Context, gateway string, group *sync.WaitGroup) {
	for client := range 6 {
		group.Go(func() {
			system := strings.Repeat(fmt.Sprintf("You are assistant number %d. ", client%3), 60)
			for turn := 0; ctx.Err() == nil; turn++ {
				if client == 5 { // one with unique prompts, so that each server gets work
					system = strings.Repeat(fmt.Sprintf("Forget all %d. ", turn), 60)
				}
				body, _ := json.Marshal(map[string]any{
					"model": modelserver.DefaultModel, "stream": true, "max_tokens": 12,
					"messages": []map[string]string{{"role": "system", "content": system}, {"role": "user", "content": fmt.Sprint("Question ", turn, " of ", client)}},
				})
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/chat/completions", bytes.NewReader(body))
				req.Header.Set(tenantHeader, []string{"red", "blue"}[client%2])
				req.Header.Set(slo.TTFTHeader, "60000")
				req.Header.Set(slo.TPOTHeader, "60000")
				if resp, err := http.DefaultClient.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}

// tsdb is a Prometheus that scrapes one gateway.
type tsdb struct {
	url string
	log *rig.Output
}

var listeningOn = regexp.MustCompile(`msg="Listening on" address=(\S+)`)

func startPrometheus(t *testing.T, target string) *tsdb {
	dir := t.TempDir()
	rules := rig.Must(filepath.Abs(filepath.Join(watching, "alerts.yml")))
	config := filepath.Join(dir, "prometheus.yml")
	writeFile(t, config, fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: endpick
    static_configs: [{targets: [%q]}]
`, rules, strings.TrimPrefix(target, "http://")))
	c := exec.Command("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	p := &tsdb{log: &rig.Output{}}
	c.Stdout, c.Stderr = p.log, p.log
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait()
	})
	require.Eventually(t, func() bool { return listeningOn.MatchString(p.log.String()) }, 30*time.Second, 10*time.Millisecond, p.log)
	p.url = "http://" + listeningOn.FindStringSubmatch(p.log.String())[1]
	return p
}

// promSample is a value with its labels.
type promSample struct {
	Metric map[string]string
	Value  [2]any
}

func (s *promSample) number() float64 {
	v, _ := strconv.ParseFloat(s.Value[1].(string), 64)
	return v
}

// query evaluates an instant query; a panel's interval is ten seconds.
func (p *tsdb) query(expr string) ([]promSample, error) {
	expr = strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*", "$model", ".*", "$server", ".*").Replace(expr)
	resp, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []promSample
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" || answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("%s: %s %s", expr, answer.Data.ResultType, answer.Error)
	}
	return answer.Data.Result, nil
}

// panels returns the dashboard's queries, by panel title and query letter.
func panels(t *testing.T) map[string]string {
	text := rig.Must(os.ReadFile(filepath.Join(watching, "grafana", "endpick.json")))
	var dashboard struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr, RefID string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	all := map[string]string{}
	for _, p := range dashboard.Panels {
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
		for _, target := range p.Targets {
			name := p.Title + " " + target.RefID
			require.NotContains(t, all, name)
			all[name] = target.Expr
		}
	}
	return all
}

// rules returns the expressions of the alerts, as Prometheus parsed them.
func (p *tsdb) rules(t *testing.T) map[string]string {
	resp := rig.Must(http.Get(p.url + "/api/v1/rules"))
	defer resp.Body.Close()
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Query, LastError string }
			}
		}
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	all := map[string]string{}
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			require.Empty(t, r.LastError)
			all[r.Name] = r.Query
		}
	}
	return all
}

// expectation is what a query should return while servers are healthy and under load.
type expectation struct {
	labels   []string // of each sample, in any order; nil: one sample without labels; *: any
	from, to float64  // all values are within
}

func (e expectation) check(got []promSample) error {
	var labels []string
	for i := range got {
		s := &got[i]
		var all []string
		for _, name := range []string{"endpoint", "model", "latency", "tenant", "status", "code", "reason", "result"} {
			if v, ok := s.Metric[name]; ok {
				all = append(all, v)
			}
		}
		labels = append(labels, strings.Join(all, " "))
		if v := s.number(); !(v >= e.from && v <= e.to) {
			return fmt.Errorf("%v is %v, not within %v and %v", s.Metric, v, e.from, e.to)
		}
	}
	want := slices.Sorted(slices.Values(e.labels))
	if e.labels == nil {
		want = []string{""}
	}
	slices.Sort(labels)
	if slices.Equal(want, labels) || slices.Contains(want, "*") && len(labels) > 0 {
		return nil
	}
	return fmt.Errorf("labels %q, want %q", labels, want)
}

// expectations has one for each query of the dashboard, with three healthy servers
// and two tenants without failed requests.
func expectations(servers []string) map[string]expectation {
	const most = 1e5
	demo := modelserver.DefaultModel
	both := []string{"ttft", "tpot"}
	learned := []string{demo + " ttft", demo + " tpot"}
	none := []string{}
	return map[string]expectation{
		"Servers that take requests A": {nil, 3, 3},
		"Unhealthy servers A":          {nil, 0, 0},
		"Requests that fail A":         {none, 0, 0}, // the series does not exist yet
		"Targets met A":                {both, 1, 1},
		"Requests A":                   {[]string{"completed"}, 0.1, most},
		"Statuses of failures A":       {none, 0, 0},
		"Reasons A":                    {none, 0, 0},
		"Retries A":                    {nil, 0, 0},
		"Retries B":                    {nil, 0, 0},

		"Time to first token A":   {nil, 1e-4, 60},
		"Time to first token B":   {nil, 1e-4, 60},
		"Time to first token C":   {nil, 1e-4, 60},
		"Time per output token A": {nil, 1e-5, 10},
		"Time per output token B": {nil, 1e-5, 10},
		"Time per output token C": {nil, 1e-5, 10},
		"Whole request A":         {nil, 1e-3, 60},
		"Whole request B":         {nil, 1e-3, 60},
		"Time to decide A":        {nil, 1e-8, 1},
		"Time to decide B":        {nil, 1e-8, 1},
		"Gateway queue A":         {nil, 0, 6},
		"Gateway queue B":         {nil, 0, 6},
		"Saturation A":            {nil, 0, 5},
		"What decided A":          {[]string{"*"}, 0, most},

		"Served by server A":                {servers, 0, most},
		"Share of the traffic A":            {servers, 1, 1},
		"Failures by server A":              {none, 0, 0},
		"In flight A":                       {servers, 0, 6},
		"Waiting in the engine A":           {servers, 0, 6},
		"KV cache in use A":                 {servers, 0, 1},
		"Time to first token by server A":   {servers, 1e-4, 60},
		"Time per output token by server A": {servers, 1e-5, 10},

		"Prompt tokens from the cache A": {nil, 0.1, 1},
		"Prompt tokens from the cache B": {nil, 0.1, 1},
		"Prompt tokens from the cache C": {nil, 0, 0.3},
		"Tokens A":                       {[]string{demo}, 1, 1e7},
		"Tokens B":                       {[]string{demo}, 1, 1e7},
		"Memory of the index A":          {nil, 1, 1e9},
		"Forgotten for lack of room A":   {nil, 0, 1e6},

		"Prediction error A":  {learned, 0, 1},
		"Samples A":           {learned, 10, 1e6},
		"Tokens by tenant A":  {[]string{"red", "blue"}, 1, 1e7},
		"Refused by tenant A": {none, 0, 0},
	}
}

// A real Prometheus scrapes the gateway under load. Every query of the dashboard and
// every alert returns what it should: while all is well, after one server has died,
// after all have, and when the gateway itself is gone. ENDPICK_WATCH_FOR=1m extends the healthy period.
func TestPrometheus(t *testing.T) {
	needs(t, "prometheus")
	if os.Getenv("ENDPICK_WATCH_FOR") == "" {
		t.Skip("a real Prometheus watches where ENDPICK_WATCH_FOR says for how long: it wants a machine that does nothing else")
	}
	engines := startFleet(t, 3, 16384)
	var urls []string
	// Best fit would fill one server, since targets as loose as these are met there.
	args := []string{"-policy", "predicted-latency:most", "-trust-headers", "-queue", "100", "-seed", "1"}
	for _, e := range engines.Endpoints() {
		urls = append(urls, "http://"+e.Address)
		args = append(args, "-backend", "http://"+e.Address)
	}
	c := start(t, args...)
	p := startPrometheus(t, c.admin)
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	load(ctx, c.url, &group)
	began := time.Now()

	queries, want := panels(t), expectations(urls)
	for name := range want {
		require.Contains(t, queries, name)
	}
	for name, expr := range queries {
		e, ok := want[name]
		require.True(t, ok, "nothing is expected of %s", name)
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			got, err := p.query(expr)
			require.NoError(c, err)
			assert.NoError(c, e.check(got))
		}, 60*time.Second, 100*time.Millisecond, name)
	}
	least, _ := time.ParseDuration(os.Getenv("ENDPICK_WATCH_FOR"))
	for time.Since(began) < least {
		time.Sleep(time.Second)
	}

	alerts := p.rules(t)
	require.Len(t, alerts, len(alertsIn(string(rig.Must(os.ReadFile(filepath.Join(watching, "alerts.yml")))))))
	// pending returns the alerts that would fire if nothing changed.
	pending := func() (names []string, err error) {
		for name, expr := range alerts {
			got, err := p.query(expr)
			if err != nil {
				return nil, err
			}
			if len(got) > 0 {
				names = append(names, strings.TrimPrefix(name, "Endpick"))
			}
		}
		return names, nil
	}
	require.Eventually(t, func() bool {
		names, err := pending()
		return err == nil && len(names) == 0
	}, 60*time.Second, 200*time.Millisecond, "all is well")
	status, page := get(c.admin + "/metrics")
	require.Equal(t, http.StatusOK, status)
	promtool(t, page, "check", "metrics")

	has := func(what string, names ...string) {
		t.Helper()
		var got []string
		require.Eventually(t, func() bool {
			all, err := pending()
			got = all
			return err == nil && !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(got, name) })
		}, 60*time.Second, 200*time.Millisecond, "%s: %v", what, &got)
		// Side effects of a dead server, sooner or later.
		for _, name := range got {
			assert.Contains(t, append(names, "EndpointUnhealthy", "EndpointFails", "EndpointSilent", "RequestsFail", "RetriesDenied", "NobodyServes", "TargetsMissed"), name, what)
		}
	}
	require.NoError(t, engines.Members[0].Kill())
	has("a server has died", "EndpointUnhealthy")
	unhealthy := rig.Must(p.query(alerts["EndpickEndpointUnhealthy"]))
	assert.True(t, slices.ContainsFunc(unhealthy, func(s promSample) bool { return s.Metric["endpoint"] == urls[0] }), "%v", unhealthy)
	shares := rig.Must(p.query(queries["Share of the traffic A"]))
	assert.True(t, slices.ContainsFunc(shares, func(s promSample) bool { return s.Metric["endpoint"] == urls[0] && s.number() < 1 }), "%v", shares)
	require.NoError(t, engines.Members[1].Kill())
	require.NoError(t, engines.Members[2].Kill())
	has("all have", "EndpointUnhealthy", "RequestsFail", "TargetsMissed")
	stop()
	group.Wait()
	c.interrupt()
	has("the gateway is gone", "Down")
}

// Invented names of models and tenants create no series.
func TestInventedNamesMakeNoSeries(t *testing.T) {
	s := plain("lmetric")
	s.TrustHeaders = true
	g := gatewayOf(t, s, endpick.Endpoint{ID: "a", Address: newBackend(t).URL, Models: []string{"llama"}}) // one without a record in health
	ask := func(i int) {
		name := fmt.Sprint("invented-", i)
		w := askFor(g, "/v1/chat/completions", `{"model":"`+name+`","messages":[{"role":"user","content":"hi"}]}`, tenantHeader, name)
		require.Equal(t, http.StatusNotFound, w.Code)
	}
	lines := func() int { return strings.Count(scrapeMetrics(t, g.admin), "\n") }
	ask(0)
	before := lines()
	for i := range 10_000 {
		ask(i)
	}
	assert.Equal(t, before, lines())
	text := scrapeMetrics(t, g.admin)
	assert.NotContains(t, text, "invented")
	assert.Contains(t, text, `endpick_requests_total{code="404",model="other",reason="unknown_model",status="refused"} 10001`)
	assert.Contains(t, text, `endpick_tenant_requests_total{status="refused",tenant="other"} 10001`)
}

// The container of the compose file serves, and stops when it is asked to.
func TestContainer(t *testing.T) {
	if testing.Short() || exec.Command("docker", "info").Run() != nil || exec.Command("docker", "compose", "version").Run() != nil {
		t.Skip("there is no Docker here, or no time: the image is built, which takes minutes")
	}
	compose := func(args ...string) string {
		out, err := exec.Command("docker", append([]string{"compose", "-p", "endpick-test", "-f", watching + "/compose.yaml"}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s: %s", args, out)
		return string(out)
	}
	compose("config", "--quiet")
	t.Cleanup(func() { compose("down", "--volumes", "--rmi", "local") })
	compose("up", "--build", "--detach", "gateway")
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://127.0.0.1:8080/readyz")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, time.Minute, 100*time.Millisecond)
	status, _ := postTo("http://127.0.0.1:8080/v1/completions", `{"model":"demo-8b","prompt":"Hello.","max_tokens":2}`)
	assert.Equal(t, http.StatusOK, status)
	_, page := get("http://127.0.0.1:9464/metrics")
	assert.Contains(t, page, `endpick_requests_total{code="200"`)
	compose("stop", "--timeout", "20", "gateway")
	assert.Contains(t, compose("ps", "--all", "--format", "json", "gateway"), `"ExitCode":0`)
}

// badNames are possible contents of a model's name.
var badNames = map[string]string{
	"no UTF-8":  "\xff",
	"half rune": "model\xe2\x82",
	"too long":  strings.Repeat("m", 1<<16),
	"empty":     "",
	"markup":    `<script>"\n`,
	"the rest":  "other",
}

func scrapeMetrics(t *testing.T, h http.Handler) string {
	t.Helper()
	return see(t, h, "/metrics")
}

// A streamed request whose client leaves after the first token ends on a
// goroutine without recovery, where a panic would end the process.
func TestAClientCannotEndTheProcessByAName(t *testing.T) {
	server := answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	g := gatewayOf(t, plain("lmetric"), endpick.Endpoint{ID: "a", Address: server.URL})
	front := serving(t, g)
	for what, name := range badNames {
		ctx, leave := context.WithCancel(t.Context())
		req := rig.Must(http.NewRequestWithContext(ctx, http.MethodPost, front.URL+"/v1/chat/completions",
			strings.NewReader(`{"stream":true,"messages":[{"role":"user","content":"hi"}],"model":"`+strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(name)+`"}`)))
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err, what)
		_, _ = resp.Body.Read(make([]byte, 8))
		leave()
		_ = resp.Body.Close()
	}
	require.Eventually(t, func() bool { return g.router.Stats().OpenLeases == 0 }, 30*time.Second, time.Millisecond)
	models := regexp.MustCompile(`(?m)^endpick_ttft_seconds_count\{model="(.*?)"\}`).FindAllStringSubmatch(scrapeMetrics(t, g.admin), -1)
	assert.Len(t, models, 1)
	assert.Equal(t, "other", models[0][1])
	text := see(t, g.admin, "/debug/endpick")
	page(t, text)
	assert.Less(t, len(text), 32<<10, "whatever they are called")
}

type spanReceiver struct {
	collector.UnimplementedTraceServiceServer
	got chan *spans.Span
}

func (r *spanReceiver) Export(_ context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, resource := range in.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				r.got <- s
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// The gateway's spans reach a collector and continue in its servers.
func TestTraces(t *testing.T) {
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	r := &spanReceiver{got: make(chan *spans.Span, 10)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "600000") // spans come at the end

	parents := make(chan string, 1)
	engine := answering(t, func(w http.ResponseWriter, in *http.Request) {
		parents <- in.Header.Get("Traceparent")
		_, _ = w.Write([]byte(`{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`))
	})
	parent := strings.Repeat("a", 32)
	for _, trusted := range []string{"false", "true"} {
		c := start(t, "-backend", engine.URL, "-trust-headers="+trusted)
		status, body := post(t, c.url, false, "Traceparent", "00-"+parent+"-bbbbbbbbbbbbbbbb-01")
		require.Equal(t, http.StatusOK, status, body)
		c.ends(t, 0)
		s := soon(t, r.got, "a span")
		require.Equal(t, "chat demo-8b", s.Name)
		require.Equal(t, trusted == "true", hex.EncodeToString(s.TraceId) == parent)
		require.Equal(t, "00-"+hex.EncodeToString(s.TraceId)+"-"+hex.EncodeToString(s.SpanId)+"-01", <-parents)
		got := map[string]string{}
		for _, a := range s.Attributes {
			got[a.Key] = a.Value.GetStringValue()
		}
		require.Equal(t, engine.URL, got["endpick.endpoint"])
		require.Equal(t, "marginal-delay", got["endpick.policy"])
	}
}

// A collector that is not there is in the gateway's log, in its format.
func TestTracesWithoutCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "50")
	c := start(t, "-backend", newBackend(t).URL)
	status, _ := post(t, c.url, false)
	require.Equal(t, http.StatusOK, status)
	c.logs(t, "level=WARN msg=traces error=", 1)
}
