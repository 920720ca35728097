package prefix_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// fleet is n endpoints as candidates.
func fleet(n int) []endpick.Candidate {
	candidates := make([]endpick.Candidate, n)
	for i := range candidates {
		candidates[i].Endpoint = &endpick.Endpoint{ID: fmt.Sprint("e", i)}
		candidates[i].Ref = endpick.EndpointRef{Slot: uint32(i), Generation: 1}
	}
	return candidates
}

func newIndex(tb require.TestingT, config prefix.IndexConfig) *prefix.Index {
	x, err := prefix.NewIndex(config)
	require.NoError(tb, err)
	return x
}

// traffic makes prompts of n blocks that share their first quarter.
type traffic struct {
	shared, blocks []uint64
	next           uint64
}

func newTraffic(n int, seed uint64) *traffic {
	t := &traffic{blocks: make([]uint64, n), next: seed << 40}
	for i := range n / 4 {
		t.shared = append(t.shared, uint64(i+1)*0x9e3779b97f4a7c15)
	}
	return t
}

func (t *traffic) prompt() []uint64 {
	k := copy(t.blocks, t.shared)
	for i := range t.blocks[k:] {
		t.next++
		t.blocks[k+i] = t.next * 0xbf58476d1ce4e5b9
	}
	return t.blocks
}

// rounds routes requests to the endpoints in turn until the index is full.
func rounds(x *prefix.Index, t *traffic, holders []endpick.Candidate, n int) {
	for i := range n {
		req := endpick.Request{Blocks: t.prompt(), InputTokens: 16 * len(t.blocks)}
		routed(x, &req, &holders[i%len(holders)], endpick.LeaseRef{Slot: 0, Generation: uint32(i) + 1})
	}
}

func routed(x *prefix.Index, req *endpick.Request, c *endpick.Candidate, key endpick.LeaseRef) {
	e := endpick.Event{Lease: key, Request: req, Candidate: c}
	prefix.Listen(x).Routed(&e)
	prefix.Listen(x).Done(&e, &endpick.Outcome{})
}

// fill routes prompts of so many blocks to every endpoint: shared ones, which
// are the same for all, and own ones.
func fill(tb testing.TB, endpoints, shared, own, length int) *prefix.Index {
	x := newIndex(tb, prefix.IndexConfig{})
	candidates := fleet(endpoints)
	blocks := make([]uint64, length)
	key := endpick.LeaseRef{}
	route := func(c *endpick.Candidate, first uint64, n int) {
		for i := range n {
			blocks[i] = (first + uint64(i)) * 0x9e3779b97f4a7c15
		}
		key.Generation++
		req := endpick.Request{Blocks: blocks[:n], InputTokens: 16 * n}
		routed(x, &req, c, key)
	}
	for i := range candidates {
		for at := 0; at < shared; at += length {
			route(&candidates[i], uint64(at), min(length, shared-at))
		}
		for at := 0; at < own; at += length {
			route(&candidates[i], uint64(i+1)<<32+uint64(at), min(length, own-at))
		}
	}
	return x
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	time.Sleep(time.Millisecond)
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
