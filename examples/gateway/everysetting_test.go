package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// settingRow shows that a setting has an effect: what is seen of a gateway whose file has one
// value, and of another whose file has the other.
type settingRow struct {
	// file has the value at VALUE, and the addresses of servers at ONE and TWO; endpoints are added if there are none.
	file         string
	value, other string
	see          func(*setting) any
	want         string // with value; empty: something that only the value determines
}

// setting is a gateway that is made, with one value or the other, when something is asked of it.
type setting struct {
	*testing.T
	dir      string
	one, two *backend
	s, next  *settings // next: of a reload, once the gateway has been made; nil: none
	g        *gateway
	records  []recording.Request
}

// fieldOf sees a field, by its path, of something that a gateway is made with.
func fieldOf(of func(*setting) any) func(path string) func(*setting) any {
	return func(path string) func(*setting) any {
		return func(w *setting) any {
			v := reflect.ValueOf(of(w))
			for name := range strings.SplitSeq(path, ".") {
				v = reflect.Indirect(v).FieldByName(name)
			}
			return v.Interface()
		}
	}
}

var (
	endpointOf  = fieldOf(func(w *setting) any { return w.g.router.Endpoints()[0].Candidate.Endpoint })
	settingsOf  = fieldOf(func(w *setting) any { return w.settings() })
	transportOf = fieldOf(func(w *setting) any { return w.g.transportConfig(w.settings()) })
	serverOf    = fieldOf(func(w *setting) any { return w.g.server(w.settings()) })
	limitsOf    = fieldOf(func(w *setting) any { return w.g.limits("ann") })
	queueOf     = fieldOf(func(w *setting) any { return w.settings().hold().Bounds })
	statusOf    = fieldOf(func(w *setting) any { return w.g.router.Endpoints()[0] })
	watchingOf  = fieldOf(func(w *setting) any { return w.g.watching(w.settings()) })
	sourceOf    = fieldOf(func(w *setting) any { return w.settings().source() })
	replicaOf   = fieldOf(func(w *setting) any { return w.settings().Replicas.config(w.settings().hashKey, nil) })
)

func feedOf(see func(eventSettings) any) func(*setting) any {
	return func(w *setting) any { return see(w.g.hearing.feeds["a"].eventSettings) }
}

func unaskedOne(w *setting) any { return w.g.unasked(w.g.router.Endpoints()[0].Candidate.Endpoint) }

// natsOf sees what a connection to NATS is made with.
func natsOf(see func(*setting, *nats.Options) any) func(*setting) any {
	return func(w *setting) any {
		o := &nats.Options{}
		for _, option := range w.settings().Replicas.security() {
			require.NoError(w, option(o))
		}
		return see(w, o)
	}
}

const (
	replicas    = aHashKey + "replicas: {fleet: f, nats: "
	dns         = "discover: {dns: 127.0.0.1, port: 1, "
	ofAnn       = "tenants: {ann: {keys: [" + annsKey + "], "
	twoServers  = "endpoints: [{url: ONE, id: a}, {url: TWO, id: b}]\n"
	annAndBob   = "tenants: {ann: {keys: [" + annsKey + "]}, bob: {keys: [" + bobsKey + "]}}\n"
	keyOfFours  = "4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f"
	keyOfFives  = "5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e"
	ofOneServer = "has what belongs to one endpoint alone"
)

var everySetting = []settingRow{
	{"listen: VALUE", "127.0.0.1:1", ":2", settingsOf("Listen"), "127.0.0.1:1"},
	{"admin: VALUE", "127.0.0.1:1", ":2", settingsOf("Admin"), "127.0.0.1:1"},
	{"tls: {cert: VALUE, key: key.pem}", "one.pem", "two.pem", (*setting).certificate, "1"},
	{"tls: {cert: one.pem, key: VALUE}", "key.pem", "other.pem", (*setting).certificate, "1"},
	{"h2c: VALUE", "false", "true", (*setting).h2c, "false"},

	{"endpoints: [{url: VALUE}]", "http://a", "http://b", endpointOf("Address"), "http://a"},
	{"endpoints: [{url: ONE, id: VALUE}]", "a", "b", endpointOf("ID"), "a"},
	{"endpoints: [{url: ONE, models: VALUE}]", "[m]", "[n]", endpointOf("Models"), "[m]"},
	{"endpoints: [{url: ONE, models: [base], adapters: VALUE}]", "[m]", "[n]", endpointOf("Adapters"), "[m]"},
	{"endpoints: [{url: ONE, variant: VALUE}]", "a", "b", endpointOf("Variant"), "a"},
	{"endpoints: [{url: ONE, engine: VALUE}]", "a", "b", endpointOf("Engine"), "a"},
	{"endpoints: [{url: ONE, kv_tokens: VALUE}]", "3", "5", endpointOf("KVTokens"), "3"},
	{"endpoints: [{url: ONE, max_sequences: VALUE}]", "3", "5", endpointOf("MaxSequences"), "3"},
	{"endpoints: [{url: ONE, max_in_flight: VALUE}]", "3", "5", endpointOf("MaxInFlight"), "3"},
	{"endpoints: [{url: ONE, max_context: VALUE}]", "3", "5", endpointOf("MaxContext"), "3"},
	{"endpoints: [{url: ONE}, {url: TWO, tier: VALUE}]", "1", "2", func(w *setting) any { return w.g.router.Endpoints()[1].Candidate.Endpoint.Tier }, "1"},
	{"endpoints: [{url: ONE, weight: VALUE}]", "0.5", "5", endpointOf("Weight"), "0.5"},
	{"endpoints: [{url: ONE, wake: {run: VALUE, takes: 3s}}]", "[x]", "[y]", func(w *setting) any { return w.g.settings.Load().Endpoints[0].Wake.Run }, "[x]"},
	{"endpoints: [{url: ONE, wake: {run: [x], takes: VALUE}}]", "3s", "4s", endpointOf("WakeTime"), "3s"},
	{"names: {x: {models: VALUE}}", "[m]", "[n]", transportOf("Names"), "map[x:{[m] []}]"},
	{"names: {x: {models: [m, n], weights: VALUE}}", "[1, 2]", "[2, 1]", transportOf("Names"), "map[x:{[m n] [1 2]}]"},
	{"endpoints: [{url: ONE, rank: VALUE}]", "3", "5", endpointOf("Rank"), "3"},
	{"endpoints: [{url: ONE, labels: VALUE}]", "{x: y}", "{z: y}", endpointOf("Labels"), "map[x:y]"},
	{"endpoints: [{url: ONE, id: a, models: [m], events: VALUE}]", "127.0.0.1:1", "127.0.0.1:2",
		feedOf(func(e eventSettings) any { return e.events }), "127.0.0.1:1"},
	{"endpoints: [{url: ONE, id: a, models: [m], events: 127.0.0.1:1, replay: VALUE}]", "127.0.0.1:2", "127.0.0.1:3",
		feedOf(func(e eventSettings) any { return e.replay }), "127.0.0.1:2"},
	{"endpoints: [{url: ONE, drain: VALUE}]", "false", "true", statusOf("Draining"), "false"},
	{"endpoints: [{url: ONE, rank: 0, unasked: VALUE}, {url: ONE, rank: 1}]", "false", "true", unaskedOne, "false"},

	{"discover: {file: VALUE}", "one.list", "two.list", (*setting).servers, "1 and 0"},
	{"discover: {dns: VALUE, port: 1}", "127.0.0.1", "127.0.0.2", endpointOf("Address"), "127.0.0.1:1"},
	{"discover: {dns: 127.0.0.1, port: VALUE}", "3", "5", endpointOf("Address"), "127.0.0.1:3"},
	{dns + "network: VALUE}", "ip4", "ip6", endpointOf("Address"), "127.0.0.1:1"},
	{dns + "scheme: VALUE}", "http", "https", endpointOf("Address"), "http://127.0.0.1:1"},
	{"discover: {srv: VALUE, scheme: https}", "a", "b", func(w *setting) any {
		return fmt.Sprint(sourceOf("Scheme")(w), " ", sourceOf("Name")(w))
	}, "https a"},
	{"discover: {file: one.list, interval: VALUE}", "3s", "4m", watchingOf("Interval"), "3s"},
	{dns + "endpoint: {models: VALUE}}", "[m]", "[n]", endpointOf("Models"), "[m]"},
	{dns + "endpoint: {models: [base], adapters: VALUE}}", "[m]", "[n]", endpointOf("Adapters"), "[m]"},
	{dns + "endpoint: {variant: VALUE}}", "a", "b", endpointOf("Variant"), "a"},
	{dns + "endpoint: {engine: VALUE}}", "a", "b", endpointOf("Engine"), "a"},
	{dns + "endpoint: {kv_tokens: VALUE}}", "3", "5", endpointOf("KVTokens"), "3"},
	{dns + "endpoint: {max_sequences: VALUE}}", "3", "5", endpointOf("MaxSequences"), "3"},
	{dns + "endpoint: {max_in_flight: VALUE}}", "3", "5", endpointOf("MaxInFlight"), "3"},
	{dns + "endpoint: {max_context: VALUE}}", "3", "5", endpointOf("MaxContext"), "3"},
	{dns + "endpoint: {tier: VALUE}}", "1", "2", endpointOf("Tier"), "1"},
	{dns + "endpoint: {weight: VALUE}}", "0.5", "5", endpointOf("Weight"), "0.5"},
	{dns + "endpoint: {wake: {run: VALUE}}}", "[x]", "[]", (*setting).servers, ofOneServer},
	{dns + "endpoint: {wake: {takes: VALUE}}}", "1s", "0s", (*setting).servers, ofOneServer},
	{dns + "endpoint: {labels: VALUE}}", "{x: y}", "{z: y}", endpointOf("Labels"), "map[x:y]"},
	{dns + "endpoint: {url: VALUE}}", "x", "''", (*setting).servers, ofOneServer},
	{dns + "endpoint: {id: VALUE}}", "x", "''", (*setting).servers, ofOneServer},
	{dns + "endpoint: {VALUE}}", "rank: 0", "", (*setting).servers, ofOneServer},
	{dns + "endpoint: {events: VALUE}}", "x", "''", (*setting).servers, ofOneServer},
	{dns + "endpoint: {replay: VALUE}}", "x", "''", (*setting).servers, ofOneServer},
	{dns + "endpoint: {drain: VALUE}}", "true", "false", (*setting).servers, ofOneServer},
	{dns + "endpoint: {unasked: VALUE}}", "false", "true", unaskedOne, "false"},
	{"poll: VALUE", "3s", "4m", settingsOf("Poll"), "3s"},
	{"endpoints: [{url: ONE}]\nmodels: {m: {tokens: {render: ONE, within: 1m}}}\nengine_key: VALUE", "a", "b", func(w *setting) any {
		w.ask()
		return fmt.Sprint(w.one.last()["Authorization"], w.one.headers[0]["Authorization"], w.one.paths)
	}, "[Bearer a] [Bearer a] [/v1/chat/completions/render /v1/chat/completions]"},

	{twoServers + "policy: VALUE", "round-robin", "always-busiest", (*setting).spread, "2"},
	{twoServers + "policy: random\nmodels: {m: {policy: VALUE}}", "round-robin", "always-busiest", (*setting).spread, "2"},
	{"endpoints: [{url: TWO}]\nmodels: {m: {tokens: {render: VALUE, within: 1m}}}", "ONE", "http://127.0.0.1:1",
		(*setting).tokenizer, "/v1/chat/completions/render"},
	{"endpoints: [{url: TWO}]\nmodels: {m: {tokens: {llama: VALUE, within: 1m}}}", "ONE", "http://127.0.0.1:1",
		(*setting).tokenizer, "/apply-template /tokenize"},
	{"endpoints: [{url: TWO}]\nmodels: {m: {tokens: {render: ONE, within: VALUE}}}", "5ms", "1h", (*setting).withoutTokens, "200"},

	{"tenants: {ann: {keys: [VALUE]}}", annsKey, bobsKey, func(w *setting) any { return w.ask("X-Api-Key", annsKey).Code }, "200"},
	{ofAnn + "priority: VALUE}}", "7", "-7", func(w *setting) any {
		w.ask("X-Api-Key", annsKey)
		return w.records[0].Priority
	}, "7"},
	{ofAnn + "slo: {ttft: VALUE}}}", "1500ms", "2s", (*setting).targets, "1500 and 0"},
	{ofAnn + "slo: {tpot: VALUE}}}", "1500ms", "2s", (*setting).targets, "0 and 1500"},
	{ofAnn + "quota: {tokens_per_second: VALUE}}}", "3", "5", limitsOf("Rate"), "3"},
	{ofAnn + "quota: {tokens_per_second: 1, burst: VALUE}}}", "3", "5", limitsOf("Burst"), "3"},
	{ofAnn + "quota: {requests: VALUE}}}", "3", "5", limitsOf("Requests"), "3"},
	{"origins: [VALUE]", "http://page", "http://other", func(w *setting) any {
		return w.ask("Origin", "http://page").Header().Get("Access-Control-Allow-Origin")
	}, "http://page"},
	{"open: VALUE", "true", "false", settingsOf("Open"), "true"},
	{"trust_headers: VALUE", "true", "false", func(w *setting) any {
		w.ask(transport.PriorityHeader, "7")
		return fmt.Sprint(w.records[0].Priority, w.one.last()[transport.PriorityHeader])
	}, "7 [7]"},
	{annAndBob + "shared_cache: VALUE", "true", "false", func(w *setting) any {
		w.ask("X-Api-Key", annsKey)
		w.ask("X-Api-Key", bobsKey)
		return slices.Equal(w.records[0].Blocks, w.records[1].Blocks)
	}, "true"},
	{"endpoint_header: VALUE", "true", "false", transportOf("EnableEndpointHeader"), "true"},
	{"disable_resume: VALUE", "true", "false", transportOf("DisableResume"), "true"},
	{"pass: [VALUE]", "POST /version", "GET /version", func(w *setting) any { return askGateway(w.g, "/version").Code }, "200"},
	{"hash_key: VALUE", keyOfFours, keyOfFives, func(w *setting) any { w.ask(); return w.records[0].Blocks }, ""},
	{twoServers + "policy: random\nseed: VALUE", "3", "5", (*setting).sequence, ""},

	{replicas + "VALUE}", "nats://127.0.0.1:1", "nats://127.0.0.1:2", settingsOf("Replicas.NATS"), "nats://127.0.0.1:1"},
	{aHashKey + "replicas: {nats: nats://127.0.0.1:1, fleet: VALUE}", "f", "g", settingsOf("Replicas.Fleet"), "f"},
	{replicas + "nats://127.0.0.1:1, name: VALUE}", "a", "b", replicaOf("Name"), "a"},
	{replicas + "nats://127.0.0.1:1, load_only: VALUE}", "true", "false", replicaOf("DisableIndex"), "true"},
	{replicas + "nats://127.0.0.1:1, forget: VALUE}", "3s", "4m", replicaOf("Forget"), "3s"},
	{replicas + "nats://127.0.0.1:1, credentials: VALUE}", "one.creds", "two.creds", natsOf(func(w *setting, o *nats.Options) any {
		return rig.Must(o.UserJWT())
	}), "e30.e30.one"},
	{replicas + "tls://127.0.0.1:1, ca: VALUE}", "one.pem", "other-cert.pem", natsOf(func(w *setting, o *nats.Options) any {
		pool := rig.Must(o.RootCAsCB())
		want := x509.NewCertPool()
		want.AppendCertsFromPEM([]byte(w.read("one.pem")))
		return pool.Equal(want)
	}), "true"},
	{replicas + "tls://127.0.0.1:1, key: key.pem, cert: VALUE}", "one.pem", "two.pem", natsOf(certificateOfNATS), "1"},
	{replicas + "tls://127.0.0.1:1, cert: one.pem, key: VALUE}", "key.pem", "other.pem", natsOf(certificateOfNATS), "1"},

	{"queue: {requests: VALUE}", "3", "5", queueOf("MaxRequests"), "3"},
	{"queue: {tokens: VALUE}", "3", "5", queueOf("MaxTokens"), "3"},
	{"queue: {bytes: VALUE}", "1 KiB", "2KiB", queueOf("MaxBytes"), "1024"},
	{"queue: {requests: 1, timeout: VALUE}", "3s", "4m", queueOf("Timeout"), "3s"},
	{"limits: {body: VALUE}", "3", "1 GiB", transportOf("MaxBodyBytes"), "3"},
	{"limits: {header: VALUE}", "3", "5", serverOf("MaxHeaderBytes"), "3"},
	{"limits: {items: VALUE}", "3", "5", transportOf("MaxItems"), "3"},
	{"limits: {connections: VALUE}", "3", "5", settingsOf("Limits.Connections"), "3"},
	{"limits: {attempts: VALUE}", "3", "5", transportOf("MaxAttempts"), "3"},
	{"timeouts: {header: VALUE}", "3s", "4m", serverOf("ReadHeaderTimeout"), "3s"},
	{"timeouts: {idle: VALUE}", "3s", "4m", settingsOf("Timeouts.Idle"), "3s"},
	{"timeouts: {body: VALUE}", "3s", "4m", settingsOf("Timeouts.Body"), "3s"},
	{"timeouts: {unread: VALUE}", "0", "4m", settingsOf("Timeouts.Unread"), "0s"},
	{"timeouts: {drain: VALUE}", "3s", "4m", settingsOf("Timeouts.Drain"), "3s"},
	{"timeouts: {grace: VALUE}", "3s", "4m", settingsOf("Timeouts.Grace"), "3s"},
	{"timeouts: {first_byte: VALUE}", "3s", "4m", transportOf("FirstByteTimeout"), "3s"},
	{"timeouts: {stall: VALUE}", "3s", "4m", transportOf("StallTimeout"), "3s"},
	{"timeouts: {response: VALUE}", "3s", "4m", transportOf("ResponseTimeout"), "3s"},
	{"timeouts: {upgrade: VALUE}", "3s", "4m", transportOf("UpgradeTimeout"), "3s"},
	{"timeouts: {keep_alive: VALUE}", "3s", "4m", transportOf("KeepAlive"), "3s"},

	{"record: {file: VALUE}", "one.jsonl", "two.jsonl", (*setting).recordings, "one.jsonl"},
	{"record: {file: r.jsonl, max_bytes: VALUE}", "1 KiB", "1 MiB", (*setting).rotated, "true"},
	{"record: {file: r.jsonl, max_bytes: 1, files: VALUE}", "1", "2", (*setting).recordings, "r.jsonl r.jsonl.1"},
	{"record: {file: r.jsonl, text: VALUE}", "false", "true", (*setting).recordedText, "0"},
	{"price: {cached: 0.5, prompt: VALUE}", "1000", "2000", (*setting).price, "0.992000"},
	{"price: {prompt: 1000, cached: VALUE}", "0.5", "0", (*setting).price, "0.992000"},
	{"log: {format: VALUE}", "text", "json", func(w *setting) any { return w.log(slog.LevelError)[:1] }, "t"},
	{"log: {level: VALUE}", "debug", "info", func(w *setting) any { return w.log(slog.LevelDebug) != "" }, "true"},
	{"log: {requests: VALUE}", "all", "failed", func(w *setting) any { return w.g.requests.which }, "all"},
}

// Every setting changes something that can be observed. A reload changes it too, or says that a restart is needed.
func TestEverySetting(t *testing.T) {
	missing := map[string]bool{}
	for _, path := range settingsIn(reflect.TypeFor[settings](), "") {
		missing[path] = true
	}
	for _, row := range everySetting {
		path := row.path(t)
		require.Contains(t, missing, path, "given twice, or no setting")
		delete(missing, path)
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			seen, differs := row.look(t, row.value, ""), row.look(t, row.other, "")
			assert.Equal(t, cmp.Or(row.want, row.look(t, row.value, "")), seen)
			assert.NotEqual(t, seen, differs)
			old, err := row.settings(newSetting(t), row.value)
			if err != nil {
				return
			}
			next, err := row.settings(newSetting(t), row.other)
			field := path[:strings.IndexAny(path+".", ".[{")]
			if err == nil && !slices.Contains(restart(old, next), field) {
				assert.Equal(t, differs, row.look(t, row.value, row.other), "a reload has not applied it")
			}
		})
	}
	require.Empty(t, missing, "settings without a row in everySetting")
}

// path is the setting in which the row's files differ.
func (row *settingRow) path(t *testing.T) string {
	values := func(value string) map[string]string {
		s, all := defaultSettings(), map[string]string{}
		require.NoError(t, rig.Err(readStrict("test.yaml", []byte(row.text(value)), s)))
		valuesIn(reflect.ValueOf(s).Elem(), "", all)
		return all
	}
	a, b := values(row.value), values(row.other)
	var differing []string
	for _, path := range settingsIn(reflect.TypeFor[settings](), "") {
		if a[path] != b[path] {
			differing = append(differing, path)
		}
	}
	require.Len(t, differing, 1, row.file)
	return differing[0]
}

func (row *settingRow) text(value string) string {
	text := strings.Replace(row.file, "VALUE", value, 1) + "\n"
	if !strings.Contains(text, "endpoints:") && !strings.Contains(text, "discover:") {
		text += "endpoints: [{url: ONE}]\n"
	}
	return text
}

func (row *settingRow) settings(w *setting, value string) (*settings, error) {
	text := strings.NewReplacer("ONE", w.one.URL, "TWO", w.two.URL).Replace(row.text(value))
	return parseSettings(filepath.Join(w.dir, "gateway.yaml"), []byte(text))
}

// look returns what the row sees with a value, after a reload that brings the other value if it is
// not empty, or why there is no such gateway.
func (row *settingRow) look(t *testing.T, value, reload string) string {
	w := newSetting(t)
	var err error
	if w.s, err = row.settings(w, value); err == nil && reload != "" {
		w.next, err = row.settings(w, reload)
	}
	if err == nil && !strings.Contains(row.file, "srv:") { // which would ask a name server
		if w.g, err = newGateway(w.s, w.s.endpoints(), slog.New(slog.DiscardHandler)); err == nil {
			t.Cleanup(func() { assert.NoError(t, w.g.close()) })
			w.g.ended = func(r recording.Request) { w.records = append(w.records, r) }
		}
	}
	if bad := new(fileError); errors.As(err, &bad) {
		return bad.Reason
	}
	if err == nil && w.next != nil && w.g != nil {
		err = w.g.apply(w.next)
	}
	if err != nil {
		return strings.ReplaceAll(err.Error(), w.dir, "")
	}
	return fmt.Sprint(row.see(w))
}

func newSetting(t *testing.T) *setting {
	w := &setting{T: t, dir: t.TempDir(), one: newBackend(t), two: newBackend(t)}
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600))
	}
	key, other := newKey(), newKey()
	write("key.pem", keyText(key))
	write("other.pem", keyText(other))
	write("one.pem", certificateText(key, 1, time.Now().Add(time.Hour)))
	write("two.pem", certificateText(key, 2, time.Now().Add(time.Hour)))
	write("other-cert.pem", certificateText(other, 3, time.Now().Add(time.Hour)))
	seed := rig.Must(rig.Must(nkeys.CreateUser()).Seed())
	for _, name := range []string{"one", "two"} {
		write(name+".creds", credentialsText("e30.e30."+name, string(seed)))
	}
	write("one.list", w.one.URL)
	write("two.list", w.two.URL)
	return w
}

// settings are those in force.
func (w *setting) settings() *settings { return cmp.Or(w.next, w.s) }

func (w *setting) read(name string) string {
	return string(rig.Must(os.ReadFile(filepath.Join(w.dir, name))))
}

// ask sends a chat that has blocks; headers are pairs.
func (w *setting) ask(headers ...string) *httptest.ResponseRecorder {
	return askFor(w.g, "/v1/chat/completions", chatWith(prose(1, 4000)), headers...)
}

func (w *setting) h2c() any { return w.g.server(w.settings()).Protocols.UnencryptedHTTP2() }

func (w *setting) certificate() any { return w.g.certificate.Load().Leaf.SerialNumber }

// servers says which servers get a request.
func (w *setting) servers() any {
	w.ask()
	return fmt.Sprint(len(w.one.headers), " and ", len(w.two.headers))
}

// sequence says which servers get sixteen requests.
func (w *setting) sequence() any {
	all := ""
	for range 16 {
		all += rig.Must(w.g.router.Route(endpick.Request{Model: "m", InputTokens: 10})).Endpoint().ID
	}
	return all
}

// spread is the number of servers that get them.
func (w *setting) spread() any {
	all := strings.Split(w.sequence().(string), "")
	slices.Sort(all)
	return len(slices.Compact(all))
}

// tokenizer is the path at which the first server is asked for token ids.
func (w *setting) tokenizer() any {
	w.ask()
	w.one.mu.Lock()
	defer w.one.mu.Unlock()
	return strings.Join(w.one.paths, " ")
}

// withoutTokens is the answer where token ids never come.
func (w *setting) withoutTokens() any {
	w.one.hangs.Store(true)
	ctx, cancel := context.WithTimeout(w.Context(), 1500*time.Millisecond) // less than the tokenizer is given
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", strings.NewReader(chatWith("Hello.")))
	answer := httptest.NewRecorder()
	w.g.ServeHTTP(answer, r)
	return answer.Code
}

func (w *setting) targets() any {
	w.ask("X-Api-Key", annsKey)
	return fmt.Sprint(w.records[0].SLOTTFTMillis, " and ", w.records[0].SLOTPOTMillis)
}

// recordings are the files after six requests.
func (w *setting) recordings() any {
	for range 6 {
		w.ask()
	}
	require.NoError(w, w.g.recorder.close())
	all := rig.Must(filepath.Glob(filepath.Join(w.dir, "*.jsonl*")))
	for i := range all {
		all[i] = filepath.Base(all[i])
	}
	return strings.Join(all, " ")
}

func (w *setting) rotated() any { return strings.Contains(w.recordings().(string), ".1") }

func (w *setting) recordedText() any {
	w.ask()
	return len(w.records[0].Prompt.Messages[0].Text)
}

// price is what the debug page says that a second prompt has cost, of which only the time is new.
func (w *setting) price() any {
	w.one.answer.Store(`{"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":1,` +
		`"prompt_tokens_details":{"cached_tokens":0}}}`)
	for _, now := range []string{"10:30", "10:31", "10:32"} {
		system := `[{"role":"system","content":"It is ` + now + `. ` + prose(1, 4000) + `"},`
		askFor(w.g, "/v1/chat/completions", strings.Replace(chatWith("Hello."), "[", system, 1))
	}
	return regexp.MustCompile(`tokens, ([0-9.]+), were computed again`).FindStringSubmatch(textIn(page(w.T, cachesOf(w.T, w.g))))[1]
}

// log is what is logged at a level.
func (w *setting) log(level slog.Level) string {
	var b bytes.Buffer
	newLogger(&b, &w.s.Log).Log(w.Context(), level, "Hello.")
	return b.String()
}

func certificateOfNATS(w *setting, o *nats.Options) any {
	return rig.Must(x509.ParseCertificate(rig.Must(o.TLSCertCB()).Certificate[0])).SerialNumber
}

// settingsIn returns the paths of all settings in a type, with [] and {} for elements of lists and mappings.
func settingsIn(of reflect.Type, path string) (all []string) {
	switch {
	case of.Kind() == reflect.Pointer:
		return settingsIn(of.Elem(), path)
	case of.Kind() == reflect.Slice && of.Elem().Kind() == reflect.Struct:
		return settingsIn(of.Elem(), path+"[]")
	case of.Kind() == reflect.Map && of.Elem().Kind() == reflect.Struct:
		return settingsIn(of.Elem(), path+"{}")
	case of.Kind() != reflect.Struct:
		return []string{path}
	}
	for i := range of.NumField() {
		if name := of.Field(i).Tag.Get("yaml"); name != "" {
			all = append(all, settingsIn(of.Field(i).Type, strings.TrimPrefix(path+"."+name, "."))...)
		}
	}
	return all
}

// valuesIn adds the values of all settings, as text, by path.
func valuesIn(v reflect.Value, path string, all map[string]string) {
	switch {
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			valuesIn(v.Elem(), path, all)
		}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		for i := range v.Len() {
			valuesIn(v.Index(i), path+"[]", all)
		}
	case v.Kind() == reflect.Map && v.Type().Elem().Kind() == reflect.Struct:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
		for _, key := range keys {
			valuesIn(v.MapIndex(key), path+"{}", all)
		}
	case v.Kind() != reflect.Struct:
		all[path] += fmt.Sprintf("%#v\n", v.Interface())
	default:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Tag.Get("yaml"); name != "" {
				valuesIn(v.Field(i), strings.TrimPrefix(path+"."+name, "."), all)
			}
		}
	}
}
