package precise_test

import (
	"fmt"
	"testing"

	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/stretchr/testify/require"
)

// BenchmarkMatch matches a prompt of which one endpoint in ten holds three quarters,
// and all hold the first tenth.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		for _, tokens := range []int{2 << 10, 16 << 10} {
			b.Run(fmt.Sprintf("endpoints=%d/tokens=%d", n, tokens), func(b *testing.B) {
				var all []string
				for i := range n {
					all = append(all, fmt.Sprint(i))
				}
				f := newFleet(b, precise.Config{}, all...)
				whole := long(1, tokens/prefix.BlockTokens)
				for i, id := range all {
					part := len(whole.Hashes) / 10
					if i%10 == 0 {
						part = len(whole.Hashes) * 3 / 4
					}
					f.feed(id, 0).Apply([]precise.Event{stored(whole.Hashes[:part], whole.Tokens[:16*part])})
				}
				candidates := f.router.AppendCandidates(nil)
				req := request(whole.Tokens).At(f.now, 1, 1)
				b.ReportAllocs()
				for b.Loop() {
					f.index.Match(&req, candidates)
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
		require.Zero(t, fl.index.Stats().Bytes)
	})
}
