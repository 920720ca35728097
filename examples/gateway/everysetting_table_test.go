package main

import (
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/replica"
)

var (
	numbers    = [2]string{"3", "5"}
	names      = [2]string{"a", "b"}
	switched   = [2]string{"false", "true"}
	soon       = [2]string{"50ms", "1h"}
	ends       = [2]string{"ends", "goes on"}
	models12   = [2]string{"[m]", "[n]"}
	okOr       = func(other string) [2]string { return [2]string{"200", other} }
	ofOneAlone = [2]string{"127.0.0.1:1", "discover.endpoint: has what belongs to one endpoint alone"}
	noOr200    = func(other string) [2]string { return [2]string{other, "200"} }
)

var everySetting = []settingRow{
	{"listen", "listen: VALUE", [2]string{"127.0.0.1:0", "0.0.0.0:0"}, (*world).clients, [2]string{"this machine", "everybody"}},
	{"admin", "admin: VALUE", [2]string{"127.0.0.1:0", "0.0.0.0:0"}, (*world).operators, [2]string{"this machine", "everybody"}},
	{"tls.cert", "tls: {cert: VALUE, key: key.pem}", [2]string{"one.pem", "two.pem"}, (*world).certificate, [2]string{"1", "2"}},
	{"tls.key", "tls: {cert: one.pem, key: VALUE}", [2]string{"key.pem", "other.pem"}, (*world).certificate, [2]string{"1", "tls: tls: private key does not match public key"}},
	{"h2c", "h2c: VALUE", switched, (*world).http2, [2]string{"no", "2"}},

	{"endpoints[].url", "endpoints: [{url: VALUE}]", [2]string{"ONE", "TWO"}, (*world).servers, [2]string{"1 and 0", "0 and 1"}},
	{"endpoints[].id", "endpoints: [{url: ONE, id: VALUE}]", names, (*world).endpoint, names},
	{"endpoints[].models", "endpoints: [{url: ONE, models: VALUE}]", models12, (*world).status, okOr("404")},
	{"endpoints[].adapters", "endpoints: [{url: ONE, models: [base], adapters: VALUE}]", models12, (*world).status, okOr("404")},
	{"endpoints[].variant", "endpoints: [{url: ONE, variant: VALUE}]", names, described(func(e *endpick.Endpoint) any { return e.Variant }), names},
	{"endpoints[].kv_tokens", "endpoints: [{url: ONE, kv_tokens: VALUE}]", numbers, described(func(e *endpick.Endpoint) any { return e.KVTokens }), numbers},
	{"endpoints[].max_sequences", "endpoints: [{url: ONE, max_sequences: VALUE}]\nqueue: {requests: 1}", numbers, (*world).running, numbers},
	{"endpoints[].rank", "endpoints: [{url: ONE, rank: VALUE}]", numbers, sent("X-Data-Parallel-Rank"), numbers},
	{"endpoints[].labels", "endpoints: [{url: ONE, labels: VALUE}]", [2]string{"{x: y}", "{z: y}"}, described(func(e *endpick.Endpoint) any { return e.Labels }), [2]string{"map[x:y]", "map[z:y]"}},
	{"endpoints[].events", "endpoints: [{url: ONE, models: [m], events: VALUE}]", [2]string{"FIRST", "SECOND"}, (*world).called, [2]string{"first", "second"}},
	{"endpoints[].replay", "endpoints: [{url: ONE, models: [m], events: PUBLISHER, replay: VALUE}]", [2]string{"FIRST", "SECOND"}, (*world).called, [2]string{"first", "second"}},
	{"endpoints[].drain", "endpoints: [{url: ONE, drain: VALUE}]", switched, (*world).status, okOr("503")},

	{"discover.file", "discover: {file: VALUE}", [2]string{"one.list", "two.list"}, (*world).servers, [2]string{"1 and 0", "0 and 1"}},
	{"discover.dns", "discover: {dns: VALUE, port: 1}", [2]string{"127.0.0.1", "127.0.0.2"}, (*world).addresses, [2]string{"127.0.0.1:1", "127.0.0.2:1"}},
	{"discover.port", "discover: {dns: 127.0.0.1, port: VALUE}", numbers, (*world).addresses, [2]string{"127.0.0.1:3", "127.0.0.1:5"}},
	{"discover.network", "discover: {dns: 127.0.0.1, port: 1, network: VALUE}", [2]string{"ip4", "ip6"}, (*world).addresses,
		[2]string{"127.0.0.1:1", "discover: address 127.0.0.1: no suitable address found"}},
	{"discover.srv", "discover: {srv: VALUE}", names, (*world).source, names},
	{"discover.scheme", "discover: {dns: 127.0.0.1, port: 1, scheme: VALUE}", [2]string{"http", "https"}, (*world).addresses, [2]string{"http://127.0.0.1:1", "https://127.0.0.1:1"}},
	{"discover.interval", "discover: {file: one.list, interval: VALUE}", [2]string{"3s", "4m"}, (*world).interval, [2]string{"3s", "4m0s"}},
	{"discover.endpoint.models", "discover: {dns: 127.0.0.1, port: 1, endpoint: {models: VALUE}}", models12, (*world).status, [2]string{"503", "404"}},
	{"discover.endpoint.adapters", "discover: {dns: 127.0.0.1, port: 1, endpoint: {models: [base], adapters: VALUE}}", models12, (*world).status, [2]string{"503", "404"}},
	{"discover.endpoint.variant", "discover: {dns: 127.0.0.1, port: 1, endpoint: {variant: VALUE}}", names, described(func(e *endpick.Endpoint) any { return e.Variant }), names},
	{"discover.endpoint.kv_tokens", "discover: {dns: 127.0.0.1, port: 1, endpoint: {kv_tokens: VALUE}}", numbers, described(func(e *endpick.Endpoint) any { return e.KVTokens }), numbers},
	{"discover.endpoint.max_sequences", "discover: {dns: 127.0.0.1, port: 1, endpoint: {max_sequences: VALUE}}", numbers, described(func(e *endpick.Endpoint) any { return e.MaxSequences }), numbers},
	{"discover.endpoint.labels", "discover: {dns: 127.0.0.1, port: 1, endpoint: {labels: VALUE}}", [2]string{"{x: y}", "{z: y}"}, described(func(e *endpick.Endpoint) any { return e.Labels }), [2]string{"map[x:y]", "map[z:y]"}},
	{"discover.endpoint.url", "discover: {dns: 127.0.0.1, port: 1, endpoint: {url: VALUE}}", [2]string{"''", "x"}, (*world).addresses, ofOneAlone},
	{"discover.endpoint.id", "discover: {dns: 127.0.0.1, port: 1, endpoint: {id: VALUE}}", [2]string{"''", "x"}, (*world).addresses, ofOneAlone},
	{"discover.endpoint.rank", "discover: {dns: 127.0.0.1, port: 1, endpoint: {VALUE}}", [2]string{"", "rank: 0"}, (*world).addresses, ofOneAlone},
	{"discover.endpoint.events", "discover: {dns: 127.0.0.1, port: 1, endpoint: {events: VALUE}}", [2]string{"''", "x"}, (*world).addresses, ofOneAlone},
	{"discover.endpoint.replay", "discover: {dns: 127.0.0.1, port: 1, endpoint: {replay: VALUE}}", [2]string{"''", "x"}, (*world).addresses, ofOneAlone},
	{"discover.endpoint.drain", "discover: {dns: 127.0.0.1, port: 1, endpoint: {drain: VALUE}}", switched, (*world).addresses, ofOneAlone},
	{"engine_key", "engine_key: VALUE", names, sent("Authorization"), [2]string{"Bearer a", "Bearer b"}},

	{"policy", "endpoints: [{url: ONE}, {url: TWO}]\npolicy: VALUE", [2]string{"round-robin", "load-prefix"}, (*world).spread, [2]string{"2 at most", "4 at most"}},
	{"models{}.policy", "endpoints: [{url: ONE}, {url: TWO}]\npolicy: random\nmodels: {m: {policy: VALUE}}", [2]string{"round-robin", "load-prefix"}, (*world).spread, [2]string{"2 at most", "4 at most"}},
	{"models{}.tokens.render", "endpoints: [{url: NOBODY}]\nmodels: {m: {tokens: {render: VALUE, within: 1m}}}", [2]string{"ONE", "TWO"}, (*world).tokenizer, [2]string{"1: /v1/chat/completions/render", "2: /v1/chat/completions/render"}},
	{"models{}.tokens.llama", "endpoints: [{url: NOBODY}]\nmodels: {m: {tokens: {llama: VALUE, within: 1m}}}", [2]string{"ONE", "TWO"}, (*world).tokenizer, [2]string{"1: /apply-template", "2: /apply-template"}},
	{"models{}.tokens.within", "endpoints: [{url: TWO}]\nmodels: {m: {tokens: {render: ONE, within: VALUE}}}", soon, (*world).tokensOfNobody, ends},

	{"tenants{}.keys", "tenants: {ann: {keys: [VALUE]}}", [2]string{annsKey, bobsKey}, (*world).admitted, okOr("401")},
	{"tenants{}.slo.ttft", "record: {file: r.jsonl}\ntenants: {ann: {keys: [" + annsKey + "], slo: {ttft: VALUE}}}", [2]string{"1500ms", "2s"}, (*world).targets, [2]string{"1500 and 0", "2000 and 0"}},
	{"tenants{}.slo.tpot", "record: {file: r.jsonl}\ntenants: {ann: {keys: [" + annsKey + "], slo: {tpot: VALUE}}}", [2]string{"1500ms", "2s"}, (*world).targets, [2]string{"0 and 1500", "0 and 2000"}},
	{"tenants{}.quota.tokens_per_second", "tenants: {ann: {keys: [" + annsKey + "], quota: {tokens_per_second: VALUE, burst: 1}}}", [2]string{"0.1", "0.01"}, (*world).retryAfter, [2]string{"10^2", "10^3"}},
	{"tenants{}.quota.burst", "tenants: {ann: {keys: [" + annsKey + "], quota: {tokens_per_second: 0.001, burst: VALUE}}}", [2]string{"20", "200"}, (*world).admittedTimes, [2]string{"2", "18"}},
	{"tenants{}.quota.requests", "tenants: {ann: {keys: [" + annsKey + "], quota: {requests: VALUE}}}", numbers, (*world).running, numbers},
	{"trust_headers", "trust_headers: VALUE\nrecord: {file: r.jsonl}", switched, (*world).trusted, [2]string{`"" and 0`, `"7" and 7`}},
	{"shared_cache", "shared_cache: VALUE\nrecord: {file: r.jsonl}\ntenants: {ann: {keys: [" + annsKey + "]}, bob: {keys: [" + bobsKey + "]}}", switched, (*world).blocksOfTwo, [2]string{"apart", "shared"}},
	{"deny_unknown", "deny_unknown: VALUE", switched, statusOf("/v1/unheard-of"), okOr("404")},
	{"allow_administration", "allow_administration: VALUE", switched, statusOf("/sleep"), noOr200("403")},
	{"hash_key", "hash_key: VALUE\nrecord: {file: r.jsonl}", [2]string{strings.Repeat("4f", 32), strings.Repeat("5e", 32)}, (*world).blocks, [2]string{}},
	{"seed", "seed: VALUE\npolicy: random\nendpoints: [{url: ONE, id: a}, {url: TWO, id: b}]", numbers, (*world).sequence, [2]string{}},

	{"replicas.nats", aHashKey + "replicas: {nats: VALUE, fleet: f}", [2]string{"nats://FIRST", "nats://SECOND"}, (*world).called, [2]string{"first", "second"}},
	{"replicas.fleet", aHashKey + "replicas: {nats: nats://NATS, fleet: VALUE}", names, told(`^SUB endpick\.([ab])\.all `), names},
	{"replicas.name", aHashKey + "replicas: {nats: nats://NATS, fleet: f, name: VALUE}", names, shares(func(c replica.Config) any { return c.Name }), [2]string{"a", "b"}},
	{"replicas.load_only", aHashKey + "replicas: {nats: nats://NATS, fleet: f, load_only: VALUE}", switched, shares(func(c replica.Config) any { return c.DisableIndex }), [2]string{"false", "true"}},
	{"replicas.forget", aHashKey + "replicas: {nats: nats://NATS, fleet: f, forget: VALUE}", [2]string{"3s", "4m"}, shares(func(c replica.Config) any { return c.Forget }), [2]string{"3s", "4m0s"}},
	{"replicas.credentials", aHashKey + "replicas: {nats: nats://NATS, fleet: f, credentials: VALUE}", [2]string{"one.creds", "two.creds"}, told(`^CONNECT .*"jwt":"e30.e30.([a-z]+)"`), [2]string{"one", "two"}},
	{"replicas.ca", aHashKey + "replicas: {nats: tls://TLS, fleet: f, ca: VALUE}", [2]string{"one.pem", "other-cert.pem"}, told(`^(CONNECT|tls: bad certificate|remote error: tls: .*)`), [2]string{"CONNECT", "remote error: tls: bad certificate"}},
	{"replicas.cert", aHashKey + "replicas: {nats: tls://TLS, fleet: f, ca: one.pem, key: key.pem, cert: VALUE}", [2]string{"one.pem", "two.pem"}, told(`^client (.)`), [2]string{"1", "2"}},
	{"replicas.key", aHashKey + "replicas: {nats: tls://TLS, fleet: f, ca: one.pem, cert: one.pem, key: VALUE}", [2]string{"key.pem", "other.pem"}, told(`^client (.)`),
		[2]string{"1", "replicas.cert: nats: error loading client certificate: tls: private key does not match public key"}},

	{"queue.requests", "endpoints: [{url: ONE, max_sequences: 1}]\nqueue: {requests: VALUE}", numbers, (*world).held, numbers},
	{"queue.tokens", "endpoints: [{url: ONE, max_sequences: 1}]\nqueue: {tokens: VALUE}", [2]string{"20", "40"}, (*world).held, [2]string{"5", "10"}},
	{"queue.bytes", "endpoints: [{url: ONE, max_sequences: 1}]\nqueue: {bytes: VALUE}", [2]string{"1 KiB", "2 KiB"}, (*world).held, [2]string{"12", "24"}},
	{"queue.timeout", "endpoints: [{url: ONE, max_sequences: 1}]\nqueue: {requests: 5, timeout: VALUE}", soon, (*world).waits, ends},

	{"limits.body", "limits: {body: VALUE}", [2]string{"1 KiB", "1 MiB"}, (*world).longBody, noOr200("413")},
	{"limits.header", "limits: {header: VALUE}", [2]string{"1 KiB", "1 MiB"}, (*world).longHeader, noOr200("431")},
	{"limits.items", "limits: {items: VALUE}", [2]string{"2", "20"}, (*world).manyMessages, noOr200("400")},
	{"limits.connections", "limits: {connections: VALUE}", [2]string{"1", "2"}, (*world).connections, [2]string{"1", "2"}},
	{"limits.attempts", "endpoints: [{url: ONE}, {url: TWO}]\nlimits: {attempts: VALUE}", [2]string{"1", "2"}, (*world).attempts, [2]string{"1", "2"}},
	{"timeouts.header", "timeouts: {header: VALUE}", soon, (*world).halfAHeader, ends},
	{"timeouts.body", "timeouts: {body: VALUE}", soon, (*world).halfABody, ends},
	{"timeouts.idle", "timeouts: {idle: VALUE}", soon, (*world).idle, ends},
	{"timeouts.first_byte", "timeouts: {first_byte: VALUE}\nlimits: {attempts: 1}", soon, (*world).noStream, ends},
	{"timeouts.stall", "timeouts: {stall: VALUE}\nlimits: {attempts: 1}", soon, (*world).stalled, ends},
	{"timeouts.response", "timeouts: {response: VALUE}\nlimits: {attempts: 1}", soon, (*world).noResponse, ends},
	{"timeouts.upgrade", "timeouts: {upgrade: VALUE}", soon, (*world).silentSocket, ends},
	{"timeouts.unread", "timeouts: {unread: VALUE}", soon, (*world).unread, ends},
	{"timeouts.grace", "timeouts: {grace: VALUE}", soon, (*world).stopping, ends},

	{"record.file", "record: {file: VALUE}", [2]string{"one.jsonl", "two.jsonl"}, (*world).recordings, [2]string{"one.jsonl", "two.jsonl"}},
	{"record.max_bytes", "record: {file: r.jsonl, max_bytes: VALUE}", [2]string{"1 KiB", "1 MiB"}, (*world).rotated, [2]string{"true", "false"}},
	{"record.files", "record: {file: r.jsonl, max_bytes: 1, files: VALUE}", [2]string{"1", "2"}, (*world).recordings, [2]string{"r.jsonl r.jsonl.1", "r.jsonl r.jsonl.1 r.jsonl.2"}},
	{"record.text", "record: {file: r.jsonl, text: VALUE}", switched, (*world).recordedText, [2]string{`""`, `"Hello."`}},
	{"price.prompt", "price: {cached: 0.5, prompt: VALUE}", [2]string{"1000", "2000"}, (*world).price, [2]string{"0.992000", "1.984000"}},
	{"price.cached", "price: {prompt: 1000, cached: VALUE}", [2]string{"0.5", "0"}, (*world).price, [2]string{"0.992000", "1.984000"}},
	{"log.format", "log: {format: VALUE}", [2]string{"text", "json"}, (*world).firstOfLog, [2]string{"t", "{"}},
	{"log.level", "tls: {cert: one.pem, key: key.pem}\nlog: {level: VALUE}", [2]string{"debug", "info"}, (*world).handshake, [2]string{"logged", "not logged"}},
	{"log.requests", "log: {requests: VALUE}", [2]string{"all", "failed"}, (*world).logged, [2]string{"1", "0"}},
}
