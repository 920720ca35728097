package precise_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
)

// BenchmarkMatch matches a prompt of which one endpoint in ten holds three quarters,
// and all hold the first tenth.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		for _, tokens := range []int{2 << 10, 16 << 10} {
			b.Run(fmt.Sprintf("endpoints=%d/tokens=%d", n, tokens), func(b *testing.B) {
				x := rig.Must(precise.New(precise.Config{}))
				config := endpick.Config{Policy: endpick.Policy{Matcher: x}, Clock: func() time.Time { return time.Unix(1, 0) }, Seed: 1}
				for i := range n {
					config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint(i)})
				}
				router := rig.Must(endpick.New(config))
				whole := long(1, tokens/prefix.BlockTokens)
				for i := range n {
					ref, _ := router.Ref(fmt.Sprint(i))
					feed := rig.Must(x.Feed(ref, precise.FeedConfig{Scope: scope}))
					feed.Reset(precise.Whole)
					part := len(whole.Hashes) / 10
					if i%10 == 0 {
						part = len(whole.Hashes) * 3 / 4
					}
					feed.Apply([]precise.Event{{Hashes: whole.Hashes[:part], Tokens: whole.Tokens[:16*part]}})
				}
				var candidates []endpick.Candidate
				for _, e := range router.Endpoints() {
					candidates = append(candidates, e.Candidate)
				}
				req := request(whole.Tokens).At(time.Unix(1, 0), 1, 1)
				b.ReportAllocs()
				for b.Loop() {
					x.Match(&req, candidates)
				}
				require.Equal(b, tokens/prefix.BlockTokens*3/4*16, candidates[0].PrefixTokens)
			})
		}
	}
}

// FuzzEvents applies arbitrary sequences of events, and checks that nothing is left
// behind.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("\x00\x00\x03\x00\x00abc"))
	f.Add([]byte("\x00\x00\x03\x00\x20abc\x01\x01\x02\x10\x20ab\x02\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4<<10 {
			return
		}
		fl := newFleet(t, precise.Config{MaxBytes: 1 << 20})
		feed := fl.feed("a", 0)
		next := func() int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b)
		}
		tokens := ids(0, 255)
		for len(data) > 0 {
			kind := next()
			e := precise.Event{Kind: precise.Kind(kind & 3), Tier: precise.Tier(kind >> 2 & 7), Group: kind >> 5}
			for range next() % 9 {
				e.Hashes = append(e.Hashes, precise.Hash(next()))
				e.Opaque = append(e.Opaque, next() > 240)
			}
			if at := next(); at > 0 {
				e.HasParent, e.Parent = true, precise.Hash(at)
			}
			from := next()
			e.Tokens = tokens[min(from, 250):][:next()%(256-max(from, 1))%len(tokens[min(from, 250):])]
			e.BlockTokens, e.Spec, e.Window = next()-1, precise.Spec(next()%4), next()-1
			if e.BlockTokens > 100 {
				e.Keys = make([]uint64, len(e.Hashes))
				for i := range e.Keys {
					e.Keys[i] = uint64(e.Hashes[i])
				}
			}
			feed.Apply([]precise.Event{e})
			require.LessOrEqual(t, fl.matched(request(tokens))["a"], 15*16)
		}
		feed.Close()
		s := fl.index.Stats()
		require.Zero(t, s.Bytes)
	})
}
