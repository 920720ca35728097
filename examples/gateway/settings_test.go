package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The example in the documentation is a complete file, and means what it says.
func TestDocumentedSettings(t *testing.T) {
	doc := rig.Must(os.ReadFile("../../docs/gateway.md"))
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(doc, -1)
	require.Len(t, blocks, 3)
	first, block := blocks[0], blocks[1]
	dir := t.TempDir()
	writeCertificate(t, dir, 1)
	path := writeFile(t, filepath.Join(dir, "gateway.yaml"), string(block[1]))
	s, _, err := readSettings(path)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "server.pem"), s.TLS.Cert, "paths count from the file")
	assert.Len(t, s.Endpoints, 3)
	assert.Equal(t, "predicted-latency", s.Models["llama-70b"].Policy)
	assert.Equal(t, 500*time.Millisecond, s.Tenants["support"].SLO.TTFT)
	assert.Equal(t, byteSize(32<<20), s.Limits.Body)
	assert.Equal(t, replicaSettings{NATS: "nats://10.0.0.20:4222,nats://10.0.0.21:4222", Fleet: "chat", Name: "gateway-1", Forget: 2 * time.Second}, *s.Replicas)

	quick := rig.Must(parseSettings(path, first[1]))
	assert.Empty(t, quick.warnings())
	assert.Len(t, quick.Endpoints, 3)
	assert.Equal(t, quotaSettings{Rate: 50, Burst: 3000, Requests: 4}, quick.Tenants["support"].Quota)

	// The defaults it gives are the defaults.
	d := defaultSettings()
	given := func(s *settings) []any {
		at := s.Timeouts
		return []any{at.Header, at.Body, at.Idle, at.Grace, s.Limits.Header, s.Limits.Connections, s.Price.Cached, s.Policy, s.Log}
	}
	assert.Equal(t, given(d), given(s))
	for name, value := range map[string]string{"listen": d.Listen, "admin": d.Admin} {
		if port, free := strings.CutSuffix(value, ":0"); free {
			value = "a free port of " + port
		}
		assert.Regexp(t, `(?m)^`+name+`: .*\n?.*[Dd]efault: `+regexp.QuoteMeta(value), string(block[1]))
	}

	assert.Equal(t, "h100", rig.Must(parseSettings(path, blocks[2][1])).Discover.Endpoint.Variant)

	// Every existing field is in the example or in the table below it.
	for _, path := range settingsIn(reflect.TypeFor[settings](), "") {
		for _, name := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]{}", r) }) {
			assert.True(t, bytes.Contains(doc, []byte(name+":")), "docs/gateway.md says nothing of %s", name)
		}
	}

	var stdout, stderr bytes.Buffer
	require.NoError(t, os.WriteFile(filepath.Join(dir, "wakeonlan"), nil, 0o755))
	t.Setenv("PATH", dir)
	require.Equal(t, 0, run(t.Context(), []string{"-config", path, "-check"}, &stdout, &stderr), stderr.String())
	assert.Equal(t, path+" is valid: 3 endpoints, policy marginal-delay, 1 model with settings, 2 tenants\n", stdout.String())
	assert.Empty(t, stderr.String())
	assert.NoError(t, check(writeSettings(t, string(blocks[2][1])), &stdout, &stderr))
	assert.Contains(t, stdout.String(), "is valid: endpoints to be discovered, policy marginal-delay, 0 models with settings, 0 tenants\n")
}

func TestExpiredCertificates(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir, 1)
	path, text := filepath.Join(dir, "gateway.yaml"), []byte("discover: {file: a}\ntls: {cert: server.pem, key: server.key}\n")
	s := rig.Must(parseSettings(path, text))
	assert.Empty(t, s.warnings())
	wakes, want := parsed("endpoints: [{url: http://a, wake: {run: [x], takes: 3s}}]\n"), []string{"tls", "endpoints.wake"}
	assert.Equal(t, [][]string{want, want}, [][]string{restart(s, wakes), restart(wakes, s)})
	certificateUntil(t, dir, 1, time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC))
	assert.Equal(t, []string{"tls.cert: expired on 2021-03-04 05:06:07"}, s.warnings())
}

// Keys can be elsewhere; a change of their files is one of the settings.
func TestSecretsElsewhere(t *testing.T) {
	t.Setenv("ENDPICK_TEST_KEY", annsKey)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "key"), "sk-of-the-engines\r\n")
	path, hash := filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "hash")
	text := []byte("endpoints: [{url: http://127.0.0.1:1}, {url: http://localhost:1}]\nadmin: \":81\"\n" +
		"engine_key: {file: key}\nhash_key: {file: " + hash + "}\ntenants: {ann: {keys: [{env: ENDPICK_TEST_KEY}]}}\n")
	require.ErrorContains(t, rig.Err(parseSettings(path, text)), "gateway.yaml:4: hash_key: open")
	writeFile(t, hash, keyOfFours)
	s := rig.Must(parseSettings(path, text))
	assert.Equal(t, []secret{"sk-of-the-engines", keyOfFours, annsKey}, []secret{s.EngineKey, s.HashKey, s.Tenants["ann"].Keys[0]})
	assert.Len(t, s.stamps, 2)
	assert.Len(t, s.warnings(), 2, "the pages are open, and a server has two names: %v", s.warnings())
}

// A policy for a model that no endpoint serves is a mistake, if the models are known.
func TestSettingsThatCanHardlyBeMeant(t *testing.T) {
	const warning = "models.lama: no endpoint serves this model"
	for endpoints, want := range map[string][]string{
		"[{url: http://a, models: [llama]}, {url: http://b, adapters: [x]}]": {warning, "names.n: no endpoint serves the model lama"},
		"[{url: http://a, models: [llama]}, {url: http://b}]":                nil,
		"[{url: http://a, models: [llama], adapters: [lama]}]":               nil,
		"[{url: http://a, models: [x]}, {url: http://b, models: [lama]}]":    nil,
	} {
		path := writeSettings(t, "endpoints: "+endpoints+"\nmodels: {lama: {policy: lmetric}}\nnames: {n: {models: [lama]}}\nlimits: {items: 9}\n")
		s, _, err := readSettings(path)
		require.NoError(t, err)
		assert.Equal(t, want, s.unserved(s.endpoints()), endpoints)
		assert.Empty(t, s.unserved(nil), "not known yet")
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(t.Context(), []string{"-config", path, "-check"}, &stdout, &stderr))
		assert.Contains(t, stdout.String(), "is valid")
		assert.Contains(t, stderr.String(), path+": warning: limits.items: ")
		assert.Equal(t, want != nil, strings.Contains(stderr.String(), path+": warning: "+warning), stderr.String())
	}
	for endpoints, want := range map[string][]string{
		"[{url: http://a}, {url: http://b/base}]":                                        nil,
		"[{url: http://a/v1}, {url: http://a/v1/chat/completions}, {url: http://a/v12}]": {"endpoints[0].url: has /v1, with which the paths of requests begin: leave it out", "endpoints[1].url: has /v1, with which the paths of requests begin: leave it out"},
		"[{url: http://a}, {url: http://b}, {url: http://a/}, {id: b, url: HTTP://b}]":   {"endpoints[2]: is the same server as endpoints[0]", "endpoints[3]: is the same server as endpoints[1]"},
		"[{url: http://a, rank: 0}, {url: http://a, rank: 1}]":                           nil,
		"[{url: http://a, wake: {run: [wake-nobody], takes: 1s}}]":                       {"endpoints[0].wake.run: exec: \"wake-nobody\": executable file not found in $PATH"},
	} {
		assert.Equal(t, want, parsed("endpoints: "+endpoints+"\n").warnings(), endpoints)
	}
	const one = "endpoints: [{url: http://a}]\nlisten: "
	for text, want := range map[string]int{
		one + "':80'": 1, one + "'[::]:80'": 1, one + "0.0.0.0:80": 1, one + "10.0.0.1:80": 0,
		one + "':80'\nopen: true": 0, one + "':80'\ntrust_headers: true": 0, one + "':80'\ntenants: {ann: {keys: [" + annsKey + "]}}": 0,
	} {
		assert.Len(t, parsed(text+"\n").warnings(), want, text)
	}
	// Other units, and words for something else.
	for text, want := range map[string]int{
		"timeouts: {first_byte: 5ms, stall: 0s, response: 10ms, upgrade: 1ms}": 4, "timeouts: {first_byte: 1s, response: 1s}": 0, "timeouts: {stall: 1s, upgrade: 1s}": 0,
		"limits: {body: 32, header: 64, items: 0, attempts: 0}": 4, "limits: {body: 1 MiB}": 0,
		"queue: {requests: 0, bytes: 0, timeout: 0s, tokens: 0}\nrecord: {file: a, max_bytes: 0, files: 0}": 5, "queue: {requests: 1}\nrecord: {file: a}": 0,
		"engine_key: Bearer sk-of-the-engines": 1, "engine_key: sk-of-the-engines": 0,
		"endpoints: [{url: http://a, max_context: 32, kv_tokens: 48, engine: vLLM}, {url: http://b, max_context: 4096, engine: vllm}, {url: http://c, kv_tokens: 4096}]": 3,
	} {
		if !strings.HasPrefix(text, "endpoints") {
			text += "\nendpoints: [{url: http://a}]"
		}
		assert.Len(t, parsed(text+"\n").warnings(), want, text)
	}
	flags := defaultSettings()
	flags.Listen = ":80"
	assert.Empty(t, flags.warnings(), "the log says to whom it is open")
	b := newBackend(t)
	c := startConfig(t, writeSettings(t, "listen: 127.0.0.1:0\nendpoints: [{url: \""+b.URL+"\", models: [llama]}]\nmodels: {lama: {policy: lmetric}}\n"))
	c.logs(t, `level=WARN msg=settings warning="`+warning+`"`, 1)
}

const goodSettings = `
listen: 127.0.0.1:0
endpoints:
  - url: http://10.0.0.1:8000
  - url: http://10.0.0.2:8000
    id: b
    models: [m]
tenants:
  ann:
    keys: [sk-0123456789abcdef]
`

// A mistake is reported with file, line and field.
func TestSettingsWithAMistake(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "gateway.yaml")
	require.NoError(t, rig.Err(parseSettings(path, []byte(goodSettings))))
	end := 1 + strings.Count(goodSettings, "\n")
	for _, tc := range []struct {
		name, old, new string
		line           int
		field, reason  string
	}{
		{"events of two models", "models: [m]", "models: [m, n]\n    events: 10.0.0.2:5557", 8, "endpoints[1].events", "needs models to be the one that the server has"},
		{"events without a port", "models: [m]", "models: [m]\n    events: 10.0.0.2", 8, "endpoints[1].events", `"…" is not HOST:PORT`},
		{"events of tenants", "models: [m]", "models: [m]\n    events: tcp://10.0.0.2:5557", 8, "endpoints[1].events", "tell nothing of tenants, who are kept apart: set shared_cache if they may share"},
		{"a rank beyond all ports", "models: [m]", "models: [m]\n    rank: 60000\n    events: tcp://10.0.0.2:5557", 9, "endpoints[1].events", "has no port for rank 60000"},
		{"replays of nothing", "models: [m]", "models: [m]\n    replay: 10.0.0.2:6557", 8, "endpoints[1].replay", "needs events"},
		{"an origin with a path", "listen:", "origins: [\"https://a.example\", \"https://b.example/\"]\nlisten:", 2, "origins[1]", "is no origin, such as https://chat.example, in small letters, with nothing after the host and port"},
		{"an origin of many names", "listen:", "origins: [\"https://a.example\", \"https://*.example\"]\nlisten:", 2, "origins[1]", "is no origin, such as https://chat.example, in small letters, with nothing after the host and port"},
		{"token ids of nobody", "listen:", "models: {m: {tokens: {within: 5ms}}}\nlisten:", 2, "models.m.tokens", "needs one of render and llama"},
		{"token ids of two", "listen:", "models: {m: {tokens: {render: http://a, llama: http://b}}}\nlisten:", 2, "models.m.tokens", "needs one of render and llama"},
		{"token ids from files", "listen:", "models: {m: {tokens: {files: a}}}\nlisten:", 2, "models.m.tokens.files", "is no field any more: engines and renderers know their token ids"},
		{"a field of earlier versions", "listen:", "allow_administration: true\nlisten:", 2, "allow_administration", "is no field any more: name the paths to pass on in pass"},
		{"token ids from no URL", "listen:", "models: {m: {tokens: {render: a}}}\nlisten:", 2, "models.m.tokens.render", `"a" is not http://HOST[:PORT] or https://…`},
		{"token ids from no HTTP/1", "listen:", "models: {m: {tokens: {llama: h2c://a}}}\nlisten:", 2, "models.m.tokens.llama", `"h2c://a" is not http://HOST[:PORT] or https://…`},
		{"token ids at once", "listen:", "models: {m: {tokens: {render: http://a, within: 5ns}}}\nlisten:", 2, "models.m.tokens.within", "is 5ns, less than 1ms"},
		{"replicas without a key", "listen:", "replicas: {nats: \"nats://a\", fleet: x}\nlisten:", 2, "replicas", "needs hash_key, which is the same for all gateways of a fleet"},
		{"replicas nowhere", "listen:", "replicas: {fleet: x}\n" + aHashKey + "listen:", 2, "replicas.nats", "is missing"},
		{"replicas at no URL", "listen:", "replicas:\n  nats: nats://a, http://user:hidden@b\n" + aHashKey + "listen:", 3, "replicas.nats", "URL 2 is not nats://HOST[:PORT] or tls://HOST[:PORT]"},
		{"replicas at an empty URL", "listen:", "replicas: {nats: \"nats://:4222\", fleet: x}\n" + aHashKey + "listen:", 2, "replicas.nats", "URL 1 is not nats://HOST[:PORT] or tls://HOST[:PORT]"},
		{"replicas of no fleet", "listen:", "replicas: {nats: \"nats://a\"}\n" + aHashKey + "listen:", 2, "replicas.fleet", "is missing: the name of the fleet, the same for its gateways and for no others"},
		{"replicas of every fleet", "listen:", "replicas: {nats: \"nats://a\", fleet: \"*\"}\n" + aHashKey + "listen:", 2, "replicas.fleet", `"*" is not up to 64 letters, digits, - and _`},
		{"replicas in no haste", "listen:", "replicas: {nats: \"nats://a\", fleet: x, forget: 1ms}\n" + aHashKey + "listen:", 2, "replicas.forget", "is 1ms, less than 1s"},
		{"replicas as nobody", "listen:", "replicas: {nats: \"nats://a\", fleet: x, credentials: none.creds}\n" + aHashKey + "listen:", 2, "replicas.credentials", "open " + filepath.Join(dir, "…") + ": no such file or directory"},
		{"replicas with half a certificate", "listen:", "replicas: {nats: \"nats://a\", fleet: x, cert: a.pem}\n" + aHashKey + "listen:", 2, "replicas", "needs both cert and key, or neither"},
		{"replicas with no authority", "listen:", "replicas: {nats: \"nats://a\", fleet: x, ca: a.pem}\n" + aHashKey + "listen:", 2, "replicas.ca", "nats: error loading or parsing rootCA file: open " + filepath.Join(dir, "a.pem") + ": no such file or directory"},
		{"replicas with the other half", "listen:", "replicas: {nats: \"nats://a\", fleet: x, key: a.pem}\n" + aHashKey + "listen:", 2, "replicas", "needs both cert and key, or neither"},
		{"replicas with no certificate", "listen:", "replicas: {nats: \"nats://a\", fleet: x, cert: a.pem, key: b.pem}\n" + aHashKey + "listen:", 2, "replicas.cert", "nats: error loading client certificate: open " + filepath.Join(dir, "a.pem") + ": no such file or directory"},
		{"unknown field", "listen:", "listens:", 2, "listens", "is an unknown field"},
		{"like no field", "listen:", "x:", 2, "x", "is an unknown field; there are admin, disable_resume"},
		{"nearly a field", "listen:", "engin_key:", 2, "engin_key", "is an unknown field: did you mean engine_key?"},
		{"nearly two fields", "listen:", "endpoint:", 2, "endpoint", "is an unknown field: did you mean endpoints?"},
		{"a variable", "id: b", "id: ${NAME}", 6, "endpoints[1].id", "has ${, which is not filled in"},
		{"one address for two", "listen:", "admin: localhost:81\nlisten: 127.0.0.1:81 #", 2, "admin", "is the address of listen"},
		{"one port of all addresses", "listen:", "admin: localhost:http\nlisten: :80 #", 2, "admin", "is the address of listen"},
		{"one port of all of IPv6", "listen:", "admin: '[::]:80'\nlisten: 10.0.0.1:80 #", 2, "admin", "is the address of listen"},
		{"a key from nowhere", "listen:", "engine_key: {}\nlisten:", 2, "engine_key", "needs one of file and env"},
		{"a key from two places", "listen:", "engine_key: {file: a, env: b}\nlisten:", 2, "engine_key", "needs one of file and env"},
		{"a key of no file", "listen:", "engine_key: {file: none}\nlisten:", 2, "engine_key", "no such file"},
		{"a key that is not there", "listen:", "engine_key: {env: ENDPICK_NONE}\nlisten:", 2, "engine_key", "names a variable that is not in the environment: ENDPICK_NONE"},
		{"a key of nothing", "listen:", "engine_key: {file: /dev/null}\nlisten:", 2, "engine_key", "is empty"},
		{"a key without end", "listen:", "engine_key: {file: /dev/zero}\nlisten:", 2, "engine_key", "is longer than 65536 bytes"},
		{"unknown field deep down", "id: b", "address: b", 6, "endpoints[1].address", "is an unknown field; there are adapters, drain, engine, events, id, kv_tokens, labels"},
		{"twice", "listen: 127.0.0.1:0", "listen: a\nlisten: b", 3, "listen", "is given twice, first in line 2"},
		{"wrong kind", "models: [m]", "models: m", 7, "endpoints[1].models", "is not a list, such as [a, b]"},
		{"no mapping", "  - url: http://10.0.0.1:8000", "  - http://10.0.0.1:8000", 4, "endpoints[0]", "is not a mapping, such as {url: …}"},
		{"empty", "id: b", "id:", 6, "endpoints[1].id", "is empty"},
		{"an open list at the end", "[m]", "[m", 7, "", "did not find expected ',' or ']'"},
		{"an open quote", "id: b", "id: 'b", 6, "", "found unexpected end of stream"},
		{"an unknown alias that is a key", "[m]", "[*sk-0123456789abcdef]", 7, "", "unknown anchor '…' referenced"},
		{"an alias", "id: b", "id: &b b", 6, "endpoints[1].id", "is or has an alias, which is not supported"},
		{"a tag", "id: b", "id: !env B", 6, "endpoints[1].id", tagged},
		{"a tag of a name", "listen:", "!foo listen:", 2, "listen", tagged},
		{"a key that is a tag", "[sk-0123456789abcdef]", "[!0123456789abcdef ]", 10, "tenants.ann.keys[0]", tagged},
		{"two documents", "tenants:", "---\ntenants:", 8, "", "is a second document; there is to be one"},
		{"no host", "http://10.0.0.1:8000", "http://:8000", 4, "endpoints[0].url", "has no valid host or port: want http://HOST[:PORT], https://… or h2c://…"},
		{"no number of a port", "http://10.0.0.1:8000", "http://10.0.0.1:http", 4, "endpoints[0].url", "has no valid host or port: want http://HOST"},
		{"another scheme", "http://10.0.0.1:8000", "ftp://10.0.0.1:8000", 4, "endpoints[0].url", `has the scheme "ftp": want http://HOST`},
		{"no port", "http://10.0.0.1:8000", "http://10.0.0.1:80000", 4, "endpoints[0].url", "80000 is not a port"},
		{"a query", "http://10.0.0.1:8000", "http://10.0.0.1:8000?x=1", 4, "endpoints[0].url", "has a query or a fragment, which would not be sent"},
		{"a fragment", "http://10.0.0.1:8000", "http://10.0.0.1:8000#x", 4, "endpoints[0].url", "has a query or a fragment, which would not be sent"},
		{"an address without a port", "127.0.0.1:0", "127.0.0.1", 2, "listen", "address …: missing port in address"},
		{"an address with no port", "127.0.0.1:0", "127.0.0.1:80000", 2, "listen", "address 80000: invalid port"},
		{"an operator's address without a port", "listen:", "admin: localhost\nlisten:", 2, "admin", "address …: missing port in address"},
		{"an engine's key of two lines", "listen:", "engine_key: \"a\\n\"\nlisten:", 2, "engine_key", "has a space around it or a control character, which no header can have"},
		{"a key with a space", "[sk-0123456789abcdef]", "[' sk-0123456789abcdef']", 10, "tenants.ann.keys[0]", "has a space around it or a control character, which no header can have"},
		{"tenants that are none", goodSettings[strings.Index(goodSettings, "tenants:"):], "tenants: {}\n", 8, "tenants", "names nobody: say open: true instead if no key is to be needed"},
		{"tenants of an open house", "listen:", "open: true\nlisten:", 2, "open", "needs no key, and tenants have some: there can be one of the two"},
		{"headers without end", "listen:", "limits: {header: 2 GiB}\nlisten:", 2, "limits.header", "is more than 1 GiB"},
		{"no scheme", "http://10.0.0.1:8000", "10.0.0.1:8000", 4, "endpoints[0].url", "has no scheme: want http://HOST"},
		{"same endpoint before others", "  - url: http://10.0.0.2:8000", "  - url: http://10.0.0.1:8000\n    labels: {x: y}\n  - url: http://10.0.0.3:8000\n  - url: http://10.0.0.4:8000\n  - url: http://10.0.0.2:8000", 5, "endpoints[1]", "is listed twice: endpoints[0] has"},
		{"a model without a name", "models: [m]", "models: [m, '']", 7, "endpoints[1].models[1]", "is empty"},
		{"an adapter without a name", "models: [m]", "adapters: ['']", 7, "endpoints[1].adapters[0]", "is empty"},
		{"no number", "id: b", "kv_tokens: many", 6, "endpoints[1].kv_tokens", `"many" is not a whole number`},
		{"nobody", goodSettings[strings.Index(goodSettings, "endpoints:"):strings.Index(goodSettings, "tenants:")], "endpoints: []\n", 3, "endpoints", "names no server: list one or more, or say with discover where to find them"},
		{"negative", "id: b", "kv_tokens: -1", 6, "endpoints[1].kv_tokens", "-1 is negative"},
		{"short key", "sk-0123456789abcdef", "secret", 10, "tenants.ann.keys[0]", "is shorter than 16 bytes"},
		{"a longer hash", "sk-0123456789abcdef", "sha256:" + strings.Repeat("00", 33), 10, "tenants.ann.keys[0]", "is not sha256: and 64 hexadecimal digits"},
		{"bad hash", "sk-0123456789abcdef", "sha256:00", 10, "tenants.ann.keys[0]", "is not sha256: and 64 hexadecimal digits"},
		{"no keys", "    keys: [sk-0123456789abcdef]", "    slo: {ttft: 1s}", 9, "tenants.ann.keys", "is missing"},
		{"an impossible first token", "    keys: [sk-0123456789abcdef]", "    keys: [sk-0123456789abcdef]\n    slo: {ttft: 2h}", 11, "tenants.ann.slo.ttft", "2h0m0s is not within"},
		{"impossible tokens", "    keys: [sk-0123456789abcdef]", "    keys: [sk-0123456789abcdef]\n    slo: {tpot: 2h}", 11, "tenants.ann.slo.tpot", "2h0m0s is not within"},
		{"one key for two", "tenants:", "tenants:\n  bob: {keys: [sk-0123456789abcdef]}", 9, "tenants.bob.keys[0]", "is a key of the tenant in line 10 already"},
		{"more", "", "policy: lmetrics\n", end, "policy", `"lmetrics" is unknown; there are aibrix`},
		{"more", "", "models:\n  m:\n    policy: linear:7\n", end + 2, "models.m.policy", "not a weight in (0, 1]"},
		{"more", "", "models:\n  m: {}\n", end + 1, "models.m.policy", "is missing"},
		{"more", "", "hash_key: abc\n", end, "hash_key", "is not 64 hexadecimal digits"},
		{"more", "", "seed: -1\n", end, "seed", `"-1" is not a whole number`},
		{"more", "", "tls: {cert: a.pem, key: b.pem}\nh2c: true\n", end + 1, "h2c", "is HTTP/2 in the clear, and there is TLS"},
		{"a tenant with a long name", "ann", strings.Repeat("a ", 129), 9, "tenants.…", "is longer than 256 bytes"},
		{"more", "", "h2c: yes\n", end, "h2c", `"yes" is not true or false`},
		{"more", "", "timeouts: {stall: 10}\n", end, "timeouts.stall", `"10" is not a duration, such as 500ms`},
		{"more", "", "timeouts: {stall: 9999999h}\n", end, "timeouts.stall", `"…" is not a duration, such as 500ms`},
		{"more", "", "limits:\n  body: 5 apples\n", end + 1, "limits.body", "is not a number of bytes, such as 65536"},
		{"more", "", "limits:\n  body: 99999999999 GiB\n", end + 1, "limits.body", "is not a number of bytes, such as 65536"},
		{"more", "", "record: {file: none/x}\n", end, "record", "no such file or directory"},
		{"more", "", "record: {file: .}\n", end, "record", "is a directory"},
		{"more", "", "record: {files: 1}\n", end, "record.file", "is missing"},
		{"more", "", "log: {level: loud}\n", end, "log.level", `"loud" is none of`},
		{"more", "", "log: {format: xml}\n", end, "log.format", "is neither text nor json"},
		{"more", "", "log: {requests: some}\n", end, "log.requests", "is none of all, failed, none"},
		{"more", "", "tls: {cert: a.pem}\n", end, "tls.key", "is missing"},
		{"more", "", "tls: {cert: a.pem, key: b.pem}\n", end, "tls", "no such file"},
		{"more", "", "trust_headers: true\n", end, "trust_headers", "there can be one of the two"},
		{"more", "", "discover: {file: list}\n", end, "discover", "can't both be given"},
		{"more", "", "price: {cached: 2}\n", end, "price.cached", "2 is not within 0 and 1"},
		{"more", "", "price: {prompt: -1}\n", end, "price.prompt", "-1 is negative"},
		{"quota", "sk-0123456789abcdef]", "sk-0123456789abcdef]\n    quota: {burst: 1, requests: 2}", 11, "tenants.ann.quota.burst", "needs tokens_per_second"},
	} {
		t.Run(tc.name+" "+tc.field, func(t *testing.T) {
			text := goodSettings + tc.new
			if tc.old != "" {
				text = strings.Replace(goodSettings, tc.old, tc.new, 1)
			}
			writeFile(t, path, text)
			err := check(path, io.Discard, io.Discard)
			var bad *fileError
			require.ErrorAs(t, err, &bad)
			assert.Equal(t, []any{path, tc.line, tc.field}, []any{bad.File, bad.Line, bad.Field}, err)
			assert.Contains(t, bad.Reason, tc.reason)
			assert.NotContains(t, bad.Reason, "endpick: ")
			assert.NotContains(t, err.Error(), "0123456789abcdef", "a key is not shown")
		})
	}
	for text, want := range map[string]string{
		"": "is empty", "# nothing\n": "is empty", "\xff": "is not UTF-8", "listen: ''\nendpoints: []": ":1: listen: is empty",
		"listen: a:1": "endpoints: names no server", "listen: '*:80'": ":1: listen: is no address",
		"discover: {}": ":1: discover: needs one of file, dns and srv", "discover: {file: a, dns: b}": "needs one of",
		"discover: {dns: a}": ":1: discover.port: 0 is not a port", "discover: {srv: a, port: 1}": "discover.port: is for dns",
		"discover: {srv: a, network: ip4}": "discover.network: is for dns", "discover: {dns: a, port: 1, network: ip}": "neither ip4 nor ip6",
		"discover: {srv: a, scheme: ftp}": "discover.scheme: \"ftp\" is none of", "discover: {file: a, scheme: http}": "the file has URLs",
		"discover: {srv: a, interval: -1s}": "discover.interval: -1s is negative", "discover: {srv: a, interval: 1ns}": "discover.interval: is 1ns, less than 1ms", "discover: {srv: a, interval: 9ms}": "discover.interval: is 9ms, less than 100ms",
		"discover: {srv: a, endpoint: {id: b}}":           "belongs to one endpoint alone",
		"discover: {file: a, endpoint: {variant: b}}":     "the file says what each endpoint is",
		"discover: {srv: a, endpoint: {events: \"b:1\"}}": "belongs to one endpoint alone", "discover: {srv: a, endpoint: {replay: \"b:1\"}}": "belongs to one endpoint alone",
		"discover: {srv: a, endpoint: {weight: 0}}": "discover.endpoint.weight: is 0", "discover: {srv: a, endpoint: {models: ['']}}": "discover.endpoint.models[0]: is empty",
	} {
		_, err := parseSettings(path, []byte(text))
		assert.ErrorContains(t, err, path)
		assert.ErrorContains(t, err, want)
	}
}

// Whatever shape a mistake has, its error does not show a secret: not where it belongs, not anywhere
// else, and not as a name.
func TestErrorsShowNoSecrets(t *testing.T) {
	const secret = "sk-S3cretS3cret"
	shapes := []string{
		"X", "X: {}", "{X: Y}", "[X]", "!X", "*X", "&X a", "'X", "http://u:X@h", "http://u:X@h:X", "\"X\\n\"", "\"X\\x00Y\"", "|\n    -----BEGIN KEY-----\n    X//Y==\n", "X/Y", "{X: {X: X}}",
	}
	for _, field := range []string{
		"listen", "admin", "tls", "tls.cert", "endpoints", "endpoints.0.url", "endpoints.0.rank", "endpoints.0.events", "endpoints.0.labels", "discover", "discover.file", "discover.dns", "engine_key", "policy",
		"models", "models.m", "models.m.policy", "models.m.tokens", "tenants", "tenants.a", "tenants.a.keys", "tenants.a.quota", "tenants.a.slo.ttft", "hash_key", "seed", "h2c", "replicas", "replicas.nats",
		"replicas.credentials", "replicas.fleet", "queue.bytes", "timeouts.stall", "record.file", "log.level", "log.format", "price.cached", secret, secret + ".x", "engine_key:" + secret,
	} {
		for _, shape := range shapes {
			text := "endpoints: [{url: http://127.0.0.1:1}]\n"
			if strings.HasPrefix(field, "endpoints") {
				text = ""
			}
			indent := ""
			for part := range strings.SplitSeq(field, ".") {
				if part == "0" {
					text = strings.TrimSuffix(text, "\n") + "\n" + indent + "-\n"
				} else {
					text += indent + part + ":\n"
				}
				indent += "  "
			}
			text = strings.TrimSuffix(text, "\n") + " " + strings.NewReplacer("X", secret, "Y", "t0pS3cretAsW3ll").Replace(shape) + "\n"
			_, err := parseSettings("f.yaml", []byte(text))
			if err != nil {
				assert.NotContains(t, err.Error(), "S3cret", text)
			}
		}
	}
	for _, args := range [][]string{{"-backend", "http://u:" + secret + "@h h"}, {"-backend", "http://u:" + secret + "@h?x", "-listen", ":1"}, {"-backend", "http://u:p@h", "-backend", "http://u:" + secret + "@h:x"}, {"-listen", ":1", "http://u:" + secret + "@h"}} {
		_, err := parseOptions(args, io.Discard)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "S3cret", args)
	}
}

// Whatever the file contains, reading it yields settings or an error with a place.
func FuzzSettings(f *testing.F) {
	f.Add(goodSettings)
	f.Add("a: &a [*a]\n")
	f.Add("limits: {body: 1 KiB}\n? [x]\n: y\n")
	f.Add("{endpoints: [{url: http://a, labels: {1: 2}}]}")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSettings("f.yaml", []byte(text))
		if err != nil {
			require.ErrorAs(t, err, new(*fileError))
			return
		}
		require.True(t, len(s.Endpoints) > 0 || s.Discover != nil)
	})
}
