package transport_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport"
)

var testKey = func() prefix.Key {
	k, err := prefix.ParseKey(strings.Repeat("5e", 32))
	if err != nil {
		panic(err)
	}
	return k
}()

// scoped describes requests from their headers.
func scoped(in *http.Request, _ []byte, req *endpick.Request) {
	req.Tenant, req.Adapter = in.Header.Get("X-Team"), in.Header.Get("X-Adapter")
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

// With another key an index starts over; with the first one again, whatever is
// left of it is found.
func TestSetHashKeyStartsAnew(t *testing.T) {
	index, err := prefix.NewIndex(prefix.IndexConfig{})
	require.NoError(t, err)
	e := startEngine(t, nil)
	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "a", Address: e.URL}}, Policy: endpick.Policy{Matcher: index},
	})
	require.NoError(t, err)
	routed, err := transport.New(transport.Config{Router: router, HashKey: testKey})
	require.NoError(t, err)
	t.Cleanup(routed.CloseIdleConnections)
	client := &http.Client{Transport: routed}
	pairs := func() int {
		resp, err := client.Do(post(t, completions, `{"model":"m","prompt":"`+strings.Repeat("some prompt ", 20)+`"}`))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return index.Stats().Pairs
	}
	first := pairs()
	require.NotZero(t, first)
	assert.Equal(t, first, pairs(), "the same blocks")
	routed.SetHashKey(prefix.NewKey())
	assert.Equal(t, 2*first, pairs(), "others")
	routed.SetHashKey(testKey)
	assert.Equal(t, 2*first, pairs(), "the first ones")
}

// The key may change while requests come in; each is hashed with one of the keys.
func TestSetHashKeyAtAnyTime(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{HashKey: testKey}, e.URL)
	other := prefix.NewKey()
	text := strings.Repeat("some prompt ", 20)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 10 {
				w.ok(t, post(t, completions, `{"model":"m","prompt":"`+text+`"}`))
				w.t.SetHashKey(other)
				w.t.SetHashKey(testKey)
			}
		})
	}
	group.Wait()
	both := [][]uint64{
		prefix.AppendText(nil, prefix.Scope{Key: testKey, Model: "m"}.Seed(), text),
		prefix.AppendText(nil, prefix.Scope{Key: other, Model: "m"}.Seed(), text),
	}
	for _, blocks := range w.observer.blocks {
		require.Contains(t, both, blocks)
	}
}
