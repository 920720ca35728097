package dialect

import (
	"context"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/require"
)

// With token ids, blocks are those of the ids, in the same scope as the text's: model,
// adapter, tenant and salt. Everything else of the request is the same as without.
func TestPromptsAreCutByTheirTokenIDs(t *testing.T) {
	ids := make([]uint32, 50)
	for i := range ids {
		ids[i] = uint32(i * i)
	}
	key := prefix.NewKey()
	chat := `{"model":"m","cache_salt":"s","messages":[{"role":"user","content":"` + strings.Repeat("why ", 100) + `"}]}`
	for _, tc := range []struct {
		name, path, body string
		ids              []uint32
		rest             int
		shared           bool
		host             func(*endpick.Request)
		asked            bool
		want             *prefix.Scope // nil: cut by its text
		tokens           int           // 0: as without ids
	}{
		{"a chat", "/v1/chat/completions", chat, ids, 0, false, nil, true, &prefix.Scope{Key: key, Model: "m", Tenant: "t", Adapter: "a", Salt: "s"}, 50},
		{"of a cache that tenants share", "/v1/chat/completions", chat, ids, 0, true, nil, true, &prefix.Scope{Key: key, Model: "m", Adapter: "a", Salt: "s"}, 50},
		{"under another name", "/v1/chat/completions", chat, ids, 0, false, func(r *endpick.Request) { r.Model = "pool" }, true, &prefix.Scope{Key: key, Model: "m", Tenant: "t", Adapter: "a", Salt: "s"}, 50},
		{"only its head", "/v1/chat/completions", chat, ids[:40], 400, false, nil, true, &prefix.Scope{Key: key, Model: "m", Tenant: "t", Adapter: "a", Salt: "s"}, 239},
		{"a text", "/v1/completions", `{"model":"m","prompt":"why"}`, ids, 0, false, nil, true, &prefix.Scope{Key: key, Model: "m", Tenant: "t", Adapter: "a"}, 50},
		{"not in time", "/v1/chat/completions", chat, nil, 0, false, nil, true, nil, 0},
		{"ids of the client", "/v1/completions", `{"model":"m","prompt":[1,2,3]}`, ids, 0, false, nil, false, nil, 3},
		{"a length of the host", "/v1/chat/completions", chat, ids, 0, false, func(r *endpick.Request) { r.InputTokens = 7 }, false, nil, 7},
		{"blocks of the host", "/v1/chat/completions", chat, ids, 0, false, func(r *endpick.Request) { r.Blocks = []uint64{7}; r.BlockTokens = 16 }, false, nil, 0},
		{"no prompt", "/v1/chat/completions", `{"model":"m"}`, ids, 0, false, nil, false, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			asked := false
			read := func(tokens func(context.Context, *endpick.Request, string, []byte) ([]uint32, int)) *Call {
				w := newTalkWith(t, Config{HashKey: key, SharedCache: tc.shared, Tokens: tokens})
				for range 100 { // what is asked has shorter tokens than usual, and what is answered longer ones
					w.reader.learned.learn("m", sample{promptTokens: 1000, promptBytes: 2000, outputTokens: 1000, outputBytes: 8000, responses: 1})
				}
				return w.ask(tc.path, tc.body, func(r *endpick.Request) {
					r.Tenant, r.Adapter = "t", "a"
					if tc.host != nil {
						tc.host(r)
					}
				})
			}
			plain := read(nil)
			c := read(func(_ context.Context, req *endpick.Request, path string, body []byte) ([]uint32, int) {
				require.Equal(t, []string{plain.Request.Model, "t", tc.path, tc.body}, []string{req.Model, req.Tenant, path, string(body)})
				asked = true
				return tc.ids, tc.rest
			})
			require.Equal(t, tc.asked, asked)
			want := plain.Request
			if tc.want != nil {
				want.Blocks, want.BlockTokens, want.Exact = prefix.AppendTokens(nil, tc.want.Seed(), tc.ids), prefix.BlockTokens, true
				require.Nil(t, c.hasher, "what is answered does not go on from token ids")
			} else {
				require.Equal(t, plain.hasher == nil, c.hasher == nil)
			}
			if tc.tokens > 0 {
				want.InputTokens = tc.tokens
			}
			require.Equal(t, want, c.Request)
			require.Equal(t, plain.promptBytes, c.promptBytes, "the text is learned from all the same")
		})
	}
}
