package transport_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport"
)

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
