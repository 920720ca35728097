package transport_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport"
)

func TestNamesThatCannotBeAreRefused(t *testing.T) {
	e := startEngine(t, nil)
	long, half := strings.Repeat("é", 128), "llama\xc3"
	for name, tc := range map[string]struct {
		model, session, adapter, tenant string
		field                           string // empty if the request is served
	}{
		"all as long as can be": {long, long, long, long, ""},
		"none":                  {"", "", "", "", ""},
		"model too long":        {long + "m", "", "", "", "model"},
		"session too long":      {"m", long + "s", "", "", transport.SessionHeader},
		"adapter too long":      {"m", "", long + "a", "", "adapter"},
		"tenant too long":       {"m", "", "", long + "t", "tenant"},
		"model cut":             {half, "", "", "", "model"},
		"one byte":              {"\xff", "", "", "", "model"},
		"session cut":           {"m", half, "", "", transport.SessionHeader},
		"adapter cut":           {"m", "", half, "", "adapter"},
		"tenant cut":            {"m", "", "", half, "tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			before := e.requests.Load()
			w := newWorld(t, transport.Config{Describe: func(_ *http.Request, _ []byte, req *endpick.Request) {
				assert.False(t, req.Model == half || len(req.Model) > 256 || req.Session == half, "a host need not reckon with it")
				req.Adapter, req.Tenant = tc.adapter, tc.tenant
			}}, e.URL)
			req := post(t, completions, `{"stream":true,"prompt":"x","model":"`+tc.model+`"}`)
			if tc.session != "" {
				req.Header[transport.SessionHeader] = []string{tc.session}
			}
			_, _, err := w.do(t, req)
			if tc.field == "" {
				require.NoError(t, err)
				assert.Equal(t, before+1, e.requests.Load())
				return
			}
			var bad *endpick.RequestError
			require.ErrorAs(t, err, &bad)
			assert.Equal(t, tc.field, bad.Field)
			assert.Equal(t, 400, transport.StatusOf(err))
			assert.Equal(t, before, e.requests.Load(), "no engine gets to see it")
			w.idle(t)
		})
	}
}

// A compressed body, or a model in a form, is routed like any other, and the
// engine gets a body it can read.
func TestPackedBodiesAndFormsAreRouted(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{Describe: func(in *http.Request, body []byte, _ *endpick.Request) {
		if in.Header.Get("Content-Encoding") == "gzip" {
			assert.Equal(t, chatStream, string(body), "a host gets it unpacked")
		}
	}})
	w.add(t, "a", e.URL, "m")
	packed := zipped(chatStream)
	w.ok(t, post(t, chatPath, packed, "Content-Encoding", "gzip", "Content-Type", "application/json"))
	assert.Equal(t, `{"stream_options":{"include_usage":true},`+chatStream[1:], e.lastBody())
	assert.Empty(t, e.last.Header.Get("Content-Encoding"))
	assert.True(t, w.observer.requests[0].Stream)
	assert.Equal(t, "m", w.observer.requests[0].Model)

	// A body with an unknown coding is refused, unless it is not in it: engines ignore the header.
	for coding, status := range map[string]int{"br": 415, "gzip, br": 415, "gzip, gzip": 415, "": 400} {
		_, _, err := w.do(t, post(t, chatPath, packed, "Content-Encoding", coding))
		assert.Equal(t, status, transport.StatusOf(err), coding)
	}
	w.ok(t, post(t, "/v1/files", packed, "Content-Encoding", "br"))
	assert.Equal(t, packed, e.lastBody())
	assert.Equal(t, "br", e.last.Header.Get("Content-Encoding"))
	w.ok(t, post(t, chatPath, chatStream, "Content-Encoding", "br"))
	assert.Equal(t, "m", w.observer.requests[2].Model)

	form := "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x--"
	w.ok(t, post(t, "/v1/audio/transcriptions", form, "Content-Type", "multipart/form-data; boundary=x"))
	assert.Equal(t, form, e.lastBody())
	assert.Equal(t, "m", w.observer.requests[3].Model)
	w.idle(t)
}

// A body is closed even if its request is refused: a client that writes to a pipe waits for
// that.
func TestBodiesAreClosedWhateverIsRefused(t *testing.T) {
	w := newWorld(t, transport.Config{MaxBodyBytes: 1 << 10, Pass: []string{"/v1/files"}}, startEngine(t, nil).URL)
	for _, tc := range []struct{ name, method, path, body string }{
		{"served", "POST", chatPath, chatAtOnce},
		{"a path that climbs", "POST", "/v1/../x", "{}"},
		{"administration", "POST", "/sleep", "{}"},
		{"an unknown path", "POST", "/x", "{}"},
		{"too long", "POST", chatPath, strings.Repeat("x", 2<<10)},
		{"too long, as announced", "POST", chatPath, ""},
		{"a name that is none", "POST", chatPath, `{"model":1}`},
		{"a model that nobody has", "GET", "/v1/models/x", "{}"},
		{"the models", "GET", "/v1/models", "{}"},
	} {
		var open atomic.Int32
		open.Store(1)
		req := rig.Must(http.NewRequest(tc.method, "http://gateway"+tc.path, nil))
		req.Body = &closing{ReadCloser: io.NopCloser(strings.NewReader(tc.body)), open: &open}
		if req.ContentLength = int64(len(tc.body)); tc.body == "" {
			req.ContentLength = 1 << 20
		}
		if resp, err := w.t.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
		assert.Zero(t, open.Load(), tc.name)
	}
}

var testKey = rig.Must(prefix.ParseKey(strings.Repeat("5e", 32)))

// scoped describes requests from their headers.
func scoped(in *http.Request, _ []byte, req *endpick.Request) {
	req.Tenant, req.Adapter = in.Header.Get("X-Team"), in.Header.Get("X-Adapter")
}

// With another key a prompt has other blocks, and with the old one the old ones again.
func TestSetHashKey(t *testing.T) {
	w := newWorld(t, transport.Config{HashKey: testKey}, startEngine(t, nil).URL)
	body := `{"model":"m","prompt":"` + strings.Repeat("A long prompt. ", 100) + `"}`
	for i, key := range []prefix.Key{testKey, testKey, prefix.NewKey(), testKey} {
		w.t.SetHashKey(key)
		w.ok(t, post(t, completions, body))
		assert.Equal(t, i != 2, w.observer.blocks[i][0] == w.observer.blocks[0][0], "%d", i)
	}
}

// The hashes of a prompt's blocks depend on the key, the model, the adapter,
// the tenant and the salt, each by itself, even if they look alike.
func TestBlocksAreThoseOfTheScope(t *testing.T) {
	text := strings.Repeat("the same words again and again ", 20)
	e := startEngine(t, nil)
	for _, shared := range []bool{false, true} {
		w := newWorld(t, transport.Config{HashKey: testKey, SharedCache: shared, Describe: scoped}, e.URL)
		seen := map[uint64]prefix.Scope{}
		for i, tc := range []struct{ model, adapter, tenant, salt string }{
			{model: "m"}, {model: "n"},
			{model: "m", adapter: "n"}, {model: "m", adapter: "B"},
			{model: "m", tenant: "B"}, {model: "m", tenant: "C"},
			// A salt that is the tenant's name in JSON quotes; the bare name; the name as both.
			{model: "m", salt: `\"B\"`}, {model: "m", salt: "B"}, {model: "m", tenant: "B", salt: "B"},
			{model: "m", tenant: "B", salt: "x"}, {model: "m", tenant: "Bx"}, {model: "m", salt: "Bx"},
			{model: "m", adapter: "B", tenant: "B", salt: "x"},
		} {
			body := `{"model":"` + tc.model + `","cache_salt":"` + tc.salt + `","prompt":"` + text + `"}`
			w.ok(t, post(t, completions, body, "X-Team", tc.tenant, "X-Adapter", tc.adapter))
			want := prefix.Scope{Key: testKey, Model: tc.model, Adapter: tc.adapter, Salt: strings.ReplaceAll(tc.salt, `\`, "")}
			if !shared {
				want.Tenant = tc.tenant
			}
			got := w.observer.blocks[i]
			require.Equal(t, prefix.AppendText(nil, want.Seed(), text), got, "%+v", tc)
			other, ok := seen[got[0]]
			require.Equal(t, ok, other == want, "%+v and %+v", want, other)
			seen[got[0]] = want
		}
	}
}

// Without a key in Config, the process's key is used.
func TestHashKeyOfTheProcess(t *testing.T) {
	e := startEngine(t, nil)
	text := strings.Repeat("some prompt ", 20)
	for range 2 {
		w := newWorld(t, transport.Config{}, e.URL)
		w.ok(t, post(t, completions, `{"model":"m","prompt":"`+text+`"}`))
		assert.Equal(t, prefix.AppendText(nil, prefix.Scope{Model: "m"}.Seed(), text), w.observer.blocks[0])
	}
}
