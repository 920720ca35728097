package caddy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/transporttest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// server starts a simulated server on a free port until the test ends.
func server(t *testing.T) string {
	s := rig.Must(modelserver.New(modelserver.Config{Speed: 20, Engine: engine.Config{
		Profile: engine.Profile{Name: "test", StepMicros: 1000, TokenMicros: 10}, Blocks: 10_000,
	}}))
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		assert.NoError(t, <-served)
	})
	return l.Addr().String()
}

// running is a Caddy that listens on a socket in a test directory.
type running struct {
	t      *testing.T
	socket string
	client *http.Client
}

func newRunning(t *testing.T) *running {
	r := &running{t: t, socket: filepath.Join(t.TempDir(), "c.sock")}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.socket)
	}
	r.client = &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 100}}
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		assert.NoError(t, caddy.Stop())
		_, kept := pools.References("default")
		assert.False(t, kept, "a pool outlives all that used it")
	})
	return r
}

const quiet = "{\n\tadmin off\n\tpersist_config off\n\tlog {\n\t\toutput discard\n\t}\n}\n"

// load makes Caddy run with these settings of the transport; more holds other
// lines of the proxy.
func (r *running) load(settings, more string) error {
	adapter := caddyconfig.GetAdapter("caddyfile")
	text := fmt.Sprintf(quiet+"http:// {\n\tbind unix/%s\n\treverse_proxy {\n\t\tdynamic endpick\n%s\n\t\ttransport endpick {\n%s\n\t\t}\n\t}\n}\n", r.socket, more, settings)
	config, _, err := adapter.Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return err
	}
	return caddy.Load(config, true)
}

func (r *running) post(path, body string, header ...string) (*http.Response, string, error) {
	in, err := http.NewRequest(http.MethodPost, "http://caddy"+path, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	// Caddy closes idle connections when it reloads, whatever its transport, so a
	// client must repeat a request that meets that. net/http repeats those marked
	// idempotent, without sending the mark, but not on a connection that Caddy has
	// closed unused.
	in.Header["Idempotency-Key"] = nil
	for i := 0; i < len(header); i += 2 {
		in.Header.Set(header[i], header[i+1])
	}
	response, err := r.client.Do(in)
	for n := 0; n < 10 && err != nil; n++ {
		in.Body, _ = in.GetBody()
		response, err = r.client.Do(in)
	}
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response, string(text), err
}

// asked sends a conversation, which is served.
func (r *running) asked(body string) (*http.Response, string) {
	r.t.Helper()
	response, text, err := r.post("/v1/chat/completions", body)
	require.NoError(r.t, err)
	require.Equal(r.t, http.StatusOK, response.StatusCode, text)
	return response, text
}

// nobody is an address at which nobody listens.
func nobody(t *testing.T) string {
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// chat is a conversation of the given number of turns after a system prompt.
func chat(system string, turns int, stream bool) string {
	messages := []map[string]string{{"role": "system", "content": strings.Repeat(system+" ", 400)}}
	for i := range turns {
		messages = append(messages, map[string]string{"role": "user", "content": fmt.Sprintf("question %d", i)})
	}
	body := rig.Must(json.Marshal(map[string]any{"model": modelserver.DefaultModel, "max_tokens": 5, "stream": stream, "messages": messages}))
	return string(body)
}

const explained = `
		header_down X-To {http.reverse_proxy.endpick.endpoint}
		header_down X-Held {http.reverse_proxy.endpick.matched_tokens}
		header_down X-Of {http.reverse_proxy.endpick.input_tokens}
		header_down X-Policy {http.reverse_proxy.endpick.policy}
		header_down X-Candidates {http.reverse_proxy.endpick.candidates}
		header_down X-Model {http.reverse_proxy.endpick.model}`

// A conversation stays where its prefix is, placeholders say why, and errors
// come in the shape of the API.
func TestProxy(t *testing.T) {
	c := newRunning(t)
	a, b := server(t), server(t)
	require.NoError(t, c.load("endpoint "+a+"\nendpoint "+b, explained))
	first := ""
	for turn := range 6 {
		response, text := c.asked(chat("one", turn+1, turn%2 == 1))
		if turn == 0 {
			first = response.Header.Get("X-To")
			assert.Contains(t, []string{a, b}, first)
			assert.Equal(t, "0", response.Header.Get("X-Held"))
		} else {
			assert.Equal(t, first, response.Header.Get("X-To"), "turn %d", turn)
			assert.NotEqual(t, "0", response.Header.Get("X-Held"))
			assert.Regexp(t, `^[1-9]\d\d`, response.Header.Get("X-Of"))
		}
		assert.Equal(t, "marginal-delay", response.Header.Get("X-Policy"))
		assert.Equal(t, "2", response.Header.Get("X-Candidates"))
		assert.Equal(t, modelserver.DefaultModel, response.Header.Get("X-Model"))
		assert.Empty(t, response.Header.Get("X-Endpick-Endpoint"), "clients are not told where others' prompts are")
		if turn%2 == 1 {
			assert.Contains(t, text, "data: [DONE]")
			assert.NotContains(t, text, `"usage":{`, "nobody asked for it")
		}
	}

	response, _, err := c.post("/v1/messages", `{"model":"\xff"}`)
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, response.StatusCode)
	response, text, err := c.post("/v1/messages", `{"model":"`+strings.Repeat("x", 300)+`","messages":[]}`)
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, response.StatusCode)
	assert.Contains(t, text, `"type":"invalid_request_error"`)
	assert.Contains(t, text, `{"type":"error"`, "as Anthropic's libraries expect it")
	response, text, err = c.post("/sleep", `{}`)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNotFound, response.StatusCode, text)
}

// The tenant comes from Caddy's placeholders, and tenants share no prefix. A hash key is the value of its
// placeholders, too, and changes with them.
func TestTenantAndHashKey(t *testing.T) {
	c := newRunning(t)
	settings := "endpoint " + server(t) + "\ntenant {http.request.header.X-Team}\nhash_key {env.ENDPICK_HASH_KEY}"
	knows := func(team string) bool {
		response, _, err := c.post("/v1/chat/completions", chat("one", 1, false), "X-Team", team)
		require.NoError(t, err)
		require.NotEmpty(t, response.Header.Get("X-Held"))
		return response.Header.Get("X-Held") != "0"
	}
	for _, key := range []string{"0f", "f0"} {
		t.Setenv("ENDPICK_HASH_KEY", strings.Repeat(key, 32))
		require.NoError(t, c.load(settings, explained))
		assert.False(t, knows("red"), "what is known under another key is matched by nothing")
		assert.True(t, knows("red"))
		assert.False(t, knows("blue"))
		assert.True(t, knows("blue"))
	}
}

// An invalid configuration is refused, and the running one continues.
func TestBadConfigurations(t *testing.T) {
	c := newRunning(t)
	address := server(t)
	require.NoError(t, c.load("endpoint "+address, explained))
	c.asked(chat("one", 1, false))
	for settings, want := range map[string]string{
		"":                                   "no endpoint is configured",
		"endpoint " + address + "\npolicy x": `policy "x" is unknown`,
		"endpoint " + address + "\nendpoint " + address:                    "is listed twice",
		"endpoint ftp://host":                                              "neither host:port nor",
		"endpoint " + address + "\nhash_key 12":                            "hash_key",
		"endpoint " + address + "\nhash_key {env.ENDPICK_NO_KEY}":          "hash_key: is empty",
		"endpoint 10.0.0.9:1\n}\n}\nreverse_proxy {\ntransport nonesuch {": "nonesuch",
	} {
		assert.ErrorContains(t, c.load(settings, explained), want, settings)
		response, _ := c.asked(chat("one", 1, false))
		assert.Equal(t, address, response.Header.Get("X-To"))
		assert.NotEqual(t, "0", response.Header.Get("X-Held"))
	}
	other := "endpoint " + address + "\n}\n}\nreverse_proxy /other {\ndynamic endpick\ntransport endpick {\nendpoint " + server(t)
	assert.ErrorContains(t, c.load(other, explained), "two transports of one pool differ")
	require.NoError(t, c.load(strings.Replace(other, "/other {\ndynamic endpick\ntransport endpick {", "/other {\ndynamic endpick\ntransport endpick {\npool other", 1), explained))
	response, _ := c.asked(chat("one", 1, false))
	assert.NotEqual(t, "0", response.Header.Get("X-Held"), "the pool is the one there was")

	// Without servers the response is a 503 with a body, not Caddy's empty one.
	require.NoError(t, c.load("endpoint "+nobody(t), ""))
	response, text, err := c.post("/v1/chat/completions", chat("one", 1, true))
	require.NoError(t, err)
	assert.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	assert.Contains(t, text, `"error":{`)
}

// Twenty reloads under load, each with another setting, number of servers, or
// policy: no request is lost, and prefixes stay known. The pool's router is available from the first request
// on, survives the reloads, and goes with the pool.
func TestReload(t *testing.T) {
	t.Cleanup(func() { assert.Nil(t, Router("default"), "no configuration uses it") })
	c := newRunning(t)
	assert.Nil(t, Router("default"))
	a, b, d := server(t), server(t), server(t)
	base := "endpoint " + a + "\nendpoint " + b + "\nscrape 10ms\n"
	require.NoError(t, c.load(base, explained))
	assert.Nil(t, Router("default"), "nobody has asked for anything yet")
	const conversations = 8
	for i := range conversations {
		c.asked(chat(fmt.Sprint("system ", i), 1, false))
	}
	router := Router("default")
	require.NotNil(t, router)
	assert.Nil(t, Router("other"))
	assert.EqualValues(t, conversations, router.Stats().Routed)

	var stop atomic.Bool
	var asked, cold atomic.Int64
	var wait sync.WaitGroup
	for i := range conversations {
		wait.Go(func() {
			for turn := 2; !stop.Load(); turn++ {
				response, text, err := c.post("/v1/chat/completions", chat(fmt.Sprint("system ", i), turn%20+1, turn%2 == 0))
				if !assert.NoError(t, err) || !assert.Equal(t, http.StatusOK, response.StatusCode, text) {
					return
				}
				asked.Add(1)
				if response.Header.Get("X-Held") == "0" {
					cold.Add(1)
				}
			}
		})
	}
	for n := range 20 {
		settings := base
		switch n % 4 {
		case 0:
			settings += fmt.Sprintf("stall_timeout %ds", 30+n)
		case 1:
			settings += "endpoint " + d
		case 2:
			settings += "policy predicted-latency"
		}
		if !assert.NoError(t, c.load(settings, explained)) {
			break
		}
		for before, began := asked.Load(), time.Now(); asked.Load() < before+conversations && time.Since(began) < 30*time.Second; {
			time.Sleep(time.Millisecond)
		}
	}
	stop.Store(true)
	wait.Wait()
	assert.Same(t, router, Router("default"))
	assert.Len(t, router.Endpoints(), 2)
	require.NoError(t, c.load(base+"endpoint "+d, explained))
	c.asked(chat("one", 1, false))
	assert.Len(t, router.Endpoints(), 3)
	assert.Greater(t, asked.Load(), int64(100))
	// The first request at a server finds an empty cache.
	assert.Less(t, cold.Load(), asked.Load()/10+5)

	shared, there := pools.References("default")
	require.True(t, there)
	require.Equal(t, 1, shared)
}

// Caddy with endpick keeps correct accounts, however an engine misbehaves.
//
// A process has only one Caddy, so one configuration has a pool for each fault.
func TestCaddyConforms(t *testing.T) {
	const fault = "X-Fault"
	var text strings.Builder
	text.WriteString(quiet + "http:// {\n")
	for i := range transporttest.Faults() {
		fmt.Fprintf(&text, "@%d header %s %d\nreverse_proxy @%d {\ndynamic endpick\ntransport endpick {\npool fault-%d\nendpoint 127.0.0.1:1\n}\n}\n", i, fault, i, i, i)
	}
	text.WriteString("}\n")
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text.String()), map[string]any{"filename": "Caddyfile"})
	require.NoError(t, err)
	var config caddy.Config
	require.NoError(t, json.Unmarshal(adapted, &config))
	ctx, err := caddy.ProvisionContext(&config) // it has no listener
	require.NoError(t, err)
	app := rig.Must(ctx.App("http"))
	server := app.(*caddyhttp.App).Servers["srv0"]

	var next atomic.Int64
	t.Run("faults", func(t *testing.T) { // returns when all have ended
		transporttest.Run(t, func(t *testing.T, router *endpick.Router) http.Handler {
			number := fmt.Sprint(next.Add(1) - 1)
			lend(t, "fault-"+number, router)
			return http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
				in.Header.Set(fault, number)
				server.ServeHTTP(w, in)
			})
		})
	})
	assert.EqualValues(t, len(transporttest.Faults()), next.Load())
}

// lend replaces the router that a pool would make.
func lend(t *testing.T, name string, router *endpick.Router) {
	shared, _, err := pools.LoadOrNew(name, func() (caddy.Destructor, error) { return nil, errors.New("no configuration has it") })
	require.NoError(t, err)
	t.Cleanup(func() { // together with the configuration's own use
		for gone := false; !gone; {
			var err error
			gone, err = pools.Delete(name)
			assert.NoError(t, err)
		}
	})
	p := shared.(*pool)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.router = router
	p.applied.policy, p.applied.endpoints = p.wanted.policy, p.wanted.endpoints
}

// All settings, as Caddy's JSON, and as the router's and the transport's configuration.
func TestCaddyfile(t *testing.T) {
	d := caddyfile.NewTestDispenser(`endpick {
		pool      chat
		policy    load-prefix:3:2:2
		endpoint  10.0.0.1:8000
		endpoint  http://10.0.0.2:8000 {
			id            second
			variant       h100-tp2
			engine        vllm
			models        llama
			models        qwen
			adapters      french
			max_sequences 256
			max_in_flight 8
			max_context   8192
			tier          2
			weight        1.5
			kv_tokens     400000
			label         price low
			label         zone a
		}
		scrape    500ms
		queue     200 {
			timeout   20s
			sequences 2
		}
		tenant    {http.auth.user.id}
		ttft      2s
		tpot      50ms
		max_attempts 2
		max_body  64MiB
		first_byte_timeout 30s
		stall_timeout      40s
		response_timeout   5m
		upgrade_timeout    2h
		hash_key  {env.HASH_KEY}
		seed      7
		shared_cache
		disable_usage
		pass /version "GET /health"
	}`)
	var got Transport
	require.NoError(t, got.UnmarshalCaddyfile(d))
	want := `{"pool":"chat","policy":"load-prefix:3:2:2","endpoints":[{"address":"10.0.0.1:8000"},
		{"id":"second","address":"http://10.0.0.2:8000","models":["llama","qwen"],"adapters":["french"],"variant":"h100-tp2","engine":"vllm",
		"max_sequences":256,"kv_tokens":400000,"max_in_flight":8,"max_context":8192,"tier":2,"weight":1.5,"labels":{"price":"low","zone":"a"}}],
		"scrape":500000000,"queue":{"requests":200,"timeout":20000000000,"sequences":2},"tenant":"{http.auth.user.id}",
		"ttft":2000000000,"tpot":50000000,"max_attempts":2,"max_body_bytes":67108864,
		"first_byte_timeout":30000000000,"stall_timeout":40000000000,"response_timeout":300000000000,"upgrade_timeout":7200000000000,
		"hash_key":"{env.HASH_KEY}","seed":7,"shared_cache":true,"disable_usage":true,"pass":["/version","GET /health"]}`
	assert.JSONEq(t, want, string(caddyconfig.JSON(&got.Settings, nil)))

	routing := rig.Must(got.routing())
	assert.EqualValues(t, 7, routing.Seed)
	assert.Equal(t, "load-prefix:3:2:2", routing.Policy.Name)
	assert.Equal(t, []endpick.Endpoint{{Address: "10.0.0.1:8000"}, {
		ID: "second", Address: "http://10.0.0.2:8000", Models: []string{"llama", "qwen"}, Adapters: []string{"french"},
		Variant: "h100-tp2", Engine: "vllm", MaxSequences: 256, KVTokens: 400_000, MaxInFlight: 8, MaxContext: 8192,
		Tier: 2, Weight: 1.5, Labels: map[string]string{"price": "low", "zone": "a"},
	}}, routing.Endpoints)
	got.HashKey = strings.Repeat("0f", 32)
	sending := rig.Must(got.sending())
	assert.NotEqual(t, prefix.Key{}, sending.HashKey)
	assert.Equal(t, transport.Config{
		MaxAttempts: 2, MaxBodyBytes: 64 << 20, SharedCache: true, DisableUsage: true, Pass: []string{"/version", "GET /health"},
		FirstByteTimeout: 30 * time.Second, StallTimeout: 40 * time.Second, ResponseTimeout: 5 * time.Minute, UpgradeTimeout: 2 * time.Hour,
		HashKey: rig.Must(prefix.ParseKey(got.HashKey)), EnableEndpointHeader: true,
		Queue: &transport.QueueConfig{Bounds: queue.Config{MaxRequests: 200, Timeout: 20 * time.Second}, Saturation: queue.Concurrency(2)},
	}, sending)
	assert.Equal(t, transport.Config{DisableUsage: true, EnableEndpointHeader: true, Queue: &transport.QueueConfig{}},
		rig.Must((&Settings{DisableUsage: true, Queue: &Queue{}}).sending()))
}

// A mistake is reported with its line and cause.
func TestCaddyfileMistakes(t *testing.T) {
	for settings, want := range map[string]string{
		"\npolice lmetric":                       `unknown setting "police", at Testfile:2`,
		"\npolicy":                               "wrong argument count",
		"\npolicy a b":                           "wrong argument count",
		"\npolicy a\npolicy b":                   "policy is given twice, at Testfile:3",
		"\nendpoint":                             "wrong argument count",
		"\nendpoint a {\nmass 3\n}":              `unknown setting "mass" of an endpoint, at Testfile:3`,
		"\nendpoint a {\nweight x\n}":            `weight: "x" is not a number above zero, at Testfile:3`,
		"\nendpoint a {\nweight 0\n}":            `weight: "0" is not a number above zero`,
		"\nendpoint a {\nlabel zone\n}":          "wrong argument count",
		"\nendpoint a {\nlabel zone a b\n}":      "wrong argument count",
		"\nendpoint a {\nmodels\n}":              "wrong argument count",
		"\nendpoint a {\nkv_tokens many\n}":      `kv_tokens: "many" is not a whole number above zero`,
		"\nscrape often":                         `scrape: "often" is not a duration above zero`,
		"\nttft 0s":                              `ttft: "0s" is not a duration above zero`,
		"\nstall_timeout -1s":                    `stall_timeout: "-1s" is not a duration above zero`,
		"\nmax_attempts 0":                       `max_attempts: "0" is not a whole number above zero`,
		"\nmax_body big":                         `max_body: "big" is not a size`,
		"\nmax_body 0":                           `max_body: "0" is not a size`,
		"\nmax_body 2TiB":                        `max_body: "2TiB" is not a size`,
		"\nqueue 0":                              `queue: "0" is not a number of requests`,
		"\nqueue 1 2":                            `queue: "2" is not a number of requests`,
		"\nshared_cache yes":                     "wrong argument count",
		"\nqueue few":                            `queue: "few" is not a number of requests`,
		"\nqueue 1 {\nlength 3\n}":               `unknown setting "length" of queue`,
		"\nqueue\nqueue":                         "queue is given twice",
		"\nqueue 1 {\ntimeout 1s\ntimeout soon}": `timeout: "soon}" is not a duration`,
	} {
		var got Transport
		assert.ErrorContains(t, got.UnmarshalCaddyfile(caddyfile.NewTestDispenser("endpick {"+settings+"\n}")), want, settings)
	}
	assert.Error(t, new(Transport).UnmarshalCaddyfile(caddyfile.NewTestDispenser("endpick lmetric")))
	assert.Error(t, new(Upstreams).UnmarshalCaddyfile(caddyfile.NewTestDispenser("endpick lmetric")))
	assert.ErrorContains(t, new(Upstreams).UnmarshalCaddyfile(caddyfile.NewTestDispenser("endpick {\npolicy lmetric\n}")), "there is nothing to set")
	assert.NoError(t, new(Upstreams).UnmarshalCaddyfile(caddyfile.NewTestDispenser("endpick")))
}

// configured returns a transport of a configuration and its log.
func configured(p *pool, s Settings) (*Transport, *observer.ObservedLogs) {
	core, logs := observer.New(zapcore.DebugLevel)
	tr := &Transport{Settings: s, pool: p, logger: zap.New(core)}
	tr.number = rig.Must(p.want(s.definition(), tr))
	return tr, logs
}

// applied applies a configuration to a pool.
func applied(t *testing.T, p *pool, s Settings) *Transport {
	tr, _ := configured(p, s)
	_ = rig.Must(p.apply(tr))
	return tr
}

func newPool(t *testing.T) *pool {
	p := new(pool)
	t.Cleanup(func() { assert.NoError(t, p.Destruct()) })
	return p
}

// The newest configuration that has served a request counts, whatever requests older
// ones get later; unchanged parts stay.
func TestPoolFollowsItsConfigurations(t *testing.T) {
	p := newPool(t)
	base := Settings{Endpoints: []Endpoint{{Address: "10.0.0.1:1"}}}
	ids := func() (all []string) {
		for _, e := range p.router.Endpoints() {
			all = append(all, e.Candidate.Endpoint.ID)
		}
		return all
	}
	first, firstLogs := configured(p, base)
	sender := rig.Must(p.apply(first))
	router, index := p.router, p.policy.Matcher
	p.warn(nil, errors.New("before"))
	assert.Equal(t, 1, firstLogs.Len())

	more := base
	more.Endpoints = []Endpoint{{Address: "10.0.0.1:1"}, {Address: "10.0.0.2:1"}}
	second, secondLogs := configured(p, more)
	assert.Same(t, sender, rig.Must(p.apply(first)), "nobody has asked the second one")
	assert.Equal(t, []string{"10.0.0.1:1"}, ids())
	assert.Same(t, sender, rig.Must(p.apply(second)), "how requests are sent has not changed")
	assert.Equal(t, []string{"10.0.0.1:1", "10.0.0.2:1"}, ids())
	assert.Same(t, sender, rig.Must(p.apply(first)))
	assert.Len(t, ids(), 2, "the first is over")
	p.warn(&http.Request{URL: &url.URL{Path: "/v1/x"}}, errors.New("after"))
	p.warn(nil, errors.New("after"))
	assert.Equal(t, 1, firstLogs.Len())
	assert.Equal(t, 2, secondLogs.Len())
	assert.Equal(t, "/v1/x", secondLogs.All()[0].ContextMap()["path"])

	// A configuration with the same contents still becomes the newest.
	third := applied(t, p, more)
	_ = rig.Must(p.apply(second))
	assert.Equal(t, third.number, p.newest)

	slower := more
	slower.StallTimeout = caddy.Duration(time.Minute)
	ref, _ := router.Ref("10.0.0.2:1")
	p.health.Core().Sent("10.0.0.2:1", ref).Ended(transport.Unreachable)
	fourth, _ := configured(p, slower)
	other := rig.Must(p.apply(fourth))
	assert.NotSame(t, sender, other)
	assert.Equal(t, []int{1, 1}, []int{sender.Stats().Unhealthy, other.Stats().Unhealthy}, "who is out stays out")
	assert.Same(t, router, p.router)
	assert.Same(t, index, p.policy.Matcher)

	// The default policy may be named, and polling is no matter of the sender.
	named := slower
	named.Policy = "marginal-delay"
	assert.Equal(t, slower.definition(), named.definition())
	slower.Scrape = caddy.Duration(time.Hour)
	applied(t, p, slower)
	assert.Same(t, other, p.sender)

	// A change of policy carries learned state over to the next one, and the one after it.
	var learned endpick.Predictor
	for _, name := range []string{"predicted-latency", "predicted-latency:most", "lmetric", "predicted-latency"} {
		slower.Policy = name
		applied(t, p, slower)
		assert.Equal(t, name, p.policy.Name)
		assert.Same(t, other, p.sender, "how requests are sent has not changed")
		assert.Same(t, index, p.policy.Matcher, name)
		if name == "predicted-latency:most" {
			assert.Same(t, learned, p.policy.Predictor)
		}
		learned = p.policy.Predictor
	}

	// Two transports of one configuration must agree.
	_ = rig.Must(p.want(slower.definition(), third))
	assert.ErrorContains(t, rig.Err(p.want(base.definition(), third)), "two transports of one pool differ")

	// A configuration that can't be applied changes nothing and is tried again.
	bad := slower
	bad.Endpoints = []Endpoint{{Address: "ftp://x"}}
	fifth := &Transport{Settings: bad, pool: p, logger: zap.NewNop(), number: p.number + 1}
	for range 2 {
		assert.Error(t, rig.Err(p.apply(fifth)))
		assert.Len(t, ids(), 2)
	}
}

func conversation() *http.Request {
	const body = `{"model":"m","messages":[{"role":"user","content":"Hi"}]}`
	return httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
}

// Connections no longer in use are closed: those of a replaced sender, and those of a
// pool that is gone.
func TestIdleConnectionsAreClosed(t *testing.T) {
	var closed atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	p := newPool(t)
	settings := Settings{Endpoints: []Endpoint{{Address: server.URL}}}
	ask := func() *Transport {
		tr, _ := configured(p, settings)
		response := rig.Must(tr.RoundTrip(conversation()))
		require.Equal(t, http.StatusOK, response.StatusCode)
		_ = rig.Must(io.Copy(io.Discard, response.Body))
		require.NoError(t, response.Body.Close())
		return tr
	}
	ask()
	ask()
	assert.Zero(t, closed.Load())
	wait := func(of string) {
		require.Eventually(t, func() bool { return closed.Swap(0) > 0 }, 30*time.Second, time.Millisecond, "a connection stays open: %s", of)
	}
	settings.StallTimeout = caddy.Duration(time.Minute)
	ask()
	wait("of the sender before")
	ask().CloseIdleConnections()
	wait("of a transport of which that is asked")
	ask()
	require.NoError(t, p.Destruct())
	wait("of a pool that is gone")
}

// Servers are polled as often as the newest configuration says, and no longer if it does
// not.
func TestPoolPolls(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n")
	}))
	defer server.Close()
	p := newPool(t)
	base := Settings{Endpoints: []Endpoint{{Address: server.URL}}, Scrape: caddy.Duration(time.Millisecond)}
	applied(t, p, base)
	require.Eventually(t, func() bool { return asked.Load() > 5 }, 30*time.Second, time.Millisecond)

	stopped, stop := 0, p.stop
	p.stop = func() { stopped++; stop() }
	slower := base
	slower.StallTimeout = caddy.Duration(time.Minute)
	applied(t, p, slower)
	assert.Zero(t, stopped, "nothing has changed for it")
	slower.Scrape = caddy.Duration(time.Hour)
	applied(t, p, slower)
	assert.Equal(t, 1, stopped)
	seldom := asked.Load()
	time.Sleep(500 * time.Millisecond)
	assert.LessOrEqual(t, asked.Load(), seldom+2, "one is new, and one may have been on its way")

	never := base
	never.Scrape = 0
	applied(t, p, never)
	assert.Nil(t, p.stop)

	applied(t, p, base)
	before := asked.Load()
	require.Eventually(t, func() bool { return asked.Load() > before }, 30*time.Second, time.Millisecond)
	require.NoError(t, p.Destruct())
	before = asked.Load()
	p.polled.Wait()
	assert.Equal(t, before, asked.Load(), "a pool that is gone asks nobody")
	slower.Scrape = caddy.Duration(time.Minute)
	applied(t, p, slower)
	assert.Nil(t, p.stop, "not even for a configuration whose first request was late")
}

// Caddy supplies what only the host knows about a request.
func TestDescribe(t *testing.T) {
	describing := func(s Settings, slo endpick.SLO) endpick.Request {
		values := caddy.NewReplacer()
		values.Set("who", "red")
		ctx := context.WithValue(context.Background(), caddy.ReplacerCtxKey, values)
		r := &request{by: &Transport{Settings: s}}
		in := (&http.Request{}).WithContext(context.WithValue(ctx, requestKey{}, r))
		req := endpick.Request{SLO: slo}
		describe(in, nil, &req)
		assert.Same(t, &r.receipt, req.Receipt)
		return req
	}
	targets := Settings{TTFT: caddy.Duration(2 * time.Second), TPOT: caddy.Duration(50 * time.Millisecond)}
	assert.Equal(t, endpick.SLO{TTFT: 2 * time.Second, TPOT: 50 * time.Millisecond}, describing(targets, endpick.SLO{}).SLO)
	asked := endpick.SLO{TPOT: time.Second}
	assert.Equal(t, asked, describing(targets, asked).SLO, "a request that brings a target brings them all")
	assert.Zero(t, describing(Settings{}, endpick.SLO{}).SLO)
	assert.Equal(t, "team red", describing(Settings{Tenant: "team {who}"}, endpick.SLO{}).Tenant)
	assert.Equal(t, "team ", describing(Settings{Tenant: "team {nobody}"}, endpick.SLO{}).Tenant)
	assert.Empty(t, describing(Settings{}, endpick.SLO{}).Tenant)
	var req endpick.Request
	describe(&http.Request{}, nil, &req)
	assert.Zero(t, req, "one of nobody's")
}

// The placeholders describe the chosen server, whatever its place among the candidates,
// and are empty if there was none.
func TestPlaceholders(t *testing.T) {
	verdict := func(id string, matched int) endpick.Verdict {
		return endpick.Verdict{Candidate: endpick.Candidate{Endpoint: &endpick.Endpoint{ID: id}, PrefixTokens: matched}}
	}
	two := []endpick.Verdict{verdict("a", 7), verdict("b", 9)}
	for _, x := range []struct {
		endpoint string
		receipt  endpick.Receipt
		want     map[string]any
	}{
		{"a", endpick.Receipt{Policy: "p", Model: "m", InputTokens: 30, Chosen: 0, Verdicts: two}, map[string]any{"endpoint": "a", "policy": "p", "model": "m", "input_tokens": 30, "candidates": 2, "matched_tokens": 7}},
		{"b", endpick.Receipt{Policy: "p", Model: "m", InputTokens: 30, Chosen: 1, Verdicts: two}, map[string]any{"endpoint": "b", "matched_tokens": 9}},
		{"", endpick.Receipt{Policy: "p", Model: "m", Chosen: -1, Verdicts: two}, map[string]any{"endpoint": "", "candidates": 2, "matched_tokens": 0}},
		{"", endpick.Receipt{}, map[string]any{"endpoint": "", "policy": "", "candidates": 0, "matched_tokens": 0}},
	} {
		values := caddy.NewReplacer()
		in := (&http.Request{}).WithContext(context.WithValue(context.Background(), caddy.ReplacerCtxKey, values))
		explain(in, x.endpoint, &x.receipt)
		for name, want := range x.want {
			got, ok := values.Get(placeholders + name)
			assert.True(t, ok, name)
			assert.Equal(t, want, got, name)
		}
	}
	explain(&http.Request{}, "a", &endpick.Receipt{}) // not from Caddy
}

// A failure becomes a whole response in the shape of the API; a client that has gone
// gets none.
func TestFailuresAreResponses(t *testing.T) {
	tr, logs := configured(newPool(t), Settings{Endpoints: []Endpoint{{Address: nobody(t)}}})
	values := caddy.NewReplacer()
	send := func(ctx context.Context) (*http.Response, error) {
		in := conversation().WithContext(context.WithValue(ctx, caddy.ReplacerCtxKey, values))
		in.Header.Set(transport.PriorityHeader, "high")
		return tr.RoundTrip(in)
	}
	response := rig.Must(send(context.Background()))
	defer response.Body.Close()
	body := rig.Must(io.ReadAll(response.Body))
	assert.Equal(t, "503 Service Unavailable", response.Status)
	assert.EqualValues(t, len(body), response.ContentLength)
	assert.Equal(t, "application/json", response.Header.Get("Content-Type"))
	assert.Contains(t, string(body), `"error"`)
	assert.Equal(t, 1, logs.FilterMessage("request failed").FilterLevelExact(zap.ErrorLevel).Len())
	assert.Equal(t, 1, logs.FilterMessage("something is wrong with a request").Len(), "its priority")
	endpoint, _ := values.Get(placeholders + "endpoint")
	assert.Equal(t, "", endpoint, "it was served by nobody")
	policy, _ := values.Get(placeholders + "policy")
	assert.Equal(t, "marginal-delay", policy)

	gone, cancel := context.WithCancel(context.Background())
	cancel()
	response, err := send(gone)
	assert.Nil(t, response)
	assert.ErrorIs(t, err, context.Canceled)
	_ = rig.Must(tr.RoundTrip(httptest.NewRequest(http.MethodPost, "/nowhere", nil)))
	assert.Equal(t, zap.InfoLevel, logs.All()[2].Level, "of a client's mistake")
	new(Transport).CloseIdleConnections() // without any request
}

// Impossible settings are refused before anything starts.
func TestChecks(t *testing.T) {
	good := Settings{Endpoints: []Endpoint{{Address: "a:1"}}}
	require.NoError(t, (&Transport{Settings: good}).check())
	for want, change := range map[string]func(*Settings){
		"scrape, ttft or tpot is negative": func(s *Settings) { s.Scrape = -1 },
		"ttft or tpot is negative":         func(s *Settings) { s.TTFT = -1 },
		"tpot is negative":                 func(s *Settings) { s.TPOT = -1 },
		"MaxBodyBytes":                     func(s *Settings) { s.MaxBodyBytes = -1 },
	} {
		s := good
		change(&s)
		assert.ErrorContains(t, (&Transport{Settings: s}).check(), want)
	}
	assert.NoError(t, new(Transport).Cleanup(), "that was never provided for")
}
