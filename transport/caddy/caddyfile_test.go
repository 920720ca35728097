package caddy

import (
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
)

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
			models        llama qwen
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
			sequences 64
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
		"scrape":500000000,"queue":{"requests":200,"timeout":20000000000,"sequences":64},"tenant":"{http.auth.user.id}",
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
		Queue: &transport.QueueConfig{Bounds: queue.Config{MaxRequests: 200, Timeout: 20 * time.Second}, Saturation: queue.Concurrency(64)},
	}, sending)
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
		"\nendpoint a {\nmodels\n}":              "wrong argument count",
		"\nendpoint a {\nkv_tokens many\n}":      `kv_tokens: "many" is not a whole number above zero`,
		"\nscrape often":                         `scrape: "often" is not a duration above zero`,
		"\nttft 0s":                              `ttft: "0s" is not a duration above zero`,
		"\nstall_timeout -1s":                    `stall_timeout: "-1s" is not a duration above zero`,
		"\nmax_attempts 0":                       `max_attempts: "0" is not a whole number above zero`,
		"\nseed 0":                               `seed: "0" is not a whole number above zero`,
		"\nmax_body big":                         `max_body: "big" is not a size`,
		"\nmax_body":                             "wrong argument count",
		"\nmax_body 0":                           `max_body: "0" is not a size`,
		"\nmax_body 2TiB":                        `max_body: "2TiB" is not a size`,
		"\nscrape":                               "wrong argument count",
		"\nmax_attempts 1 2":                     "wrong argument count",
		"\nqueue 0":                              `queue: "0" is not a number of requests`,
		"\nqueue 1 2":                            `queue: "2" is not a number of requests`,
		"\nshared_cache yes":                     "wrong argument count",
		"\nqueue few":                            `queue: "few" is not a number of requests`,
		"\nqueue 1 {\nlength 3\n}":               `unknown setting "length" of queue`,
		"\nqueue\nqueue":                         "queue is given twice",
		"\nqueue {\nsequences 1.5\n}":            `sequences: "1.5" is not a whole number above zero`,
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
