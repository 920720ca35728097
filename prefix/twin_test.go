package prefix

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// twin is the index as its documentation tells it, block by block: of each
// endpoint a list of heads, the most recent first.
type twin struct {
	endpoints map[uint32]*twinEndpoint
	leases    map[endpick.LeaseRef]twinLease
}

type twinEndpoint struct {
	generation uint32
	gone       bool
	order      []string                    // heads, the most recent first
	vouched    map[string]endpick.LeaseRef // heads that are not sure, and who brought them
}

type twinLease struct {
	ref      endpick.Ref
	matched  int
	doubtful bool
}

func newTwin() *twin {
	return &twin{endpoints: map[uint32]*twinEndpoint{}, leases: map[endpick.LeaseRef]twinLease{}}
}

// heads names every block by all that is before it, a byte each.
func heads(blocks []uint64) []string {
	name := make([]byte, len(blocks))
	for i, b := range blocks {
		name[i] = byte(b)
	}
	all := make([]string, len(blocks))
	for i := range blocks {
		all[i] = string(name[:i+1])
	}
	return all
}

func (t *twin) match(ref endpick.Ref, blocks []uint64) int {
	e := t.endpoints[ref.Slot]
	if e == nil || e.gone || e.generation != ref.Generation {
		return 0
	}
	n := 0
	for _, h := range heads(blocks) {
		if !slices.Contains(e.order, h) {
			break
		}
		n++
	}
	return n
}

func (t *twin) endpoint(ref endpick.Ref) *twinEndpoint {
	e := t.endpoints[ref.Slot]
	if e != nil && (e.generation > ref.Generation || e.generation == ref.Generation && e.gone) {
		return nil
	}
	if e == nil || e.generation < ref.Generation {
		e = &twinEndpoint{generation: ref.Generation, vouched: map[string]endpick.LeaseRef{}}
		t.endpoints[ref.Slot] = e
	}
	return e
}

func (t *twin) routed(key endpick.LeaseRef, ref endpick.Ref, blocks []uint64, capacity int) {
	e := t.endpoint(ref)
	if e == nil {
		return
	}
	blocks = blocks[:min(len(blocks), capacity)]
	l := twinLease{ref: ref, matched: t.match(ref, blocks)}
	all := heads(blocks)
	for _, h := range all[:l.matched] {
		if _, ok := e.vouched[h]; ok {
			l.doubtful = true
		}
	}
	t.leases[key] = l
	for _, h := range all[l.matched:] {
		e.vouched[h] = key
	}
	e.use(all, capacity)
}

// use makes the blocks of a prompt the most recent, the head last, and returns
// how many of them were there.
func (e *twinEndpoint) use(all []string, capacity int) (matched int) {
	for matched < len(all) && slices.Contains(e.order, all[matched]) {
		matched++
	}
	for _, h := range slices.Backward(all) {
		if i := slices.Index(e.order, h); i >= 0 {
			e.order = slices.Delete(e.order, i, i+1)
		}
		e.order = slices.Insert(e.order, 0, h)
	}
	e.evict(capacity)
	return matched
}

func (e *twinEndpoint) evict(capacity int) {
	for len(e.order) > capacity {
		last := e.order[len(e.order)-1]
		e.order = e.order[:len(e.order)-1]
		delete(e.vouched, last)
	}
}

// hasBelow reports whether any held head continues this one.
func (e *twinEndpoint) hasBelow(head string) bool {
	return slices.ContainsFunc(e.order, func(o string) bool {
		return len(o) > len(head) && strings.HasPrefix(o, head)
	})
}

func (t *twin) ended(key endpick.LeaseRef, computed bool) {
	l, ok := t.leases[key]
	if !ok {
		return
	}
	e := t.endpoints[l.ref.Slot]
	if e.generation != l.ref.Generation {
		return
	}
	var mine []string
	for h, v := range e.vouched {
		if v == key {
			mine = append(mine, h)
		}
	}
	// The deepest first.
	slices.SortFunc(mine, func(a, b string) int { return len(b) - len(a) })
	for _, h := range mine {
		delete(e.vouched, h)
		if !computed && !e.hasBelow(h) {
			e.order = slices.DeleteFunc(e.order, func(o string) bool { return o == h })
		}
	}
}

func (t *twin) removed(ref endpick.Ref) {
	if e := t.endpoint(ref); e != nil {
		*e = twinEndpoint{generation: ref.Generation, gone: true, vouched: map[string]endpick.LeaseRef{}}
	}
}

const twinEndpoints = 2

// machine drives an index and its twin with the same events.
type machine struct {
	x       *Index
	twin    *twin
	width   int // blocks in a row for each that is drawn
	bounds  []int
	refs    []endpick.Ref // the living endpoints, by slot
	open    []endpick.Event
	key     endpick.LeaseRef
	prompts [][]uint64
}

// prompt draws blocks of a small alphabet, not chained, so that the same block
// comes after different heads. Many prompts continue or cut an earlier one.
func (m *machine) prompt(t *rapid.T) []uint64 {
	var blocks []uint64
	if len(m.prompts) > 0 && rapid.IntRange(0, 3).Draw(t, "fresh") > 0 {
		head := rapid.SampledFrom(m.prompts).Draw(t, "head")
		blocks = slices.Clone(head[:rapid.IntRange(0, len(head)).Draw(t, "k")])
		if rapid.IntRange(0, 2).Draw(t, "cut") == 0 {
			return blocks
		}
	}
	for _, b := range rapid.SliceOfN(rapid.Uint64Range(1, 3), 0, 6).Draw(t, "tail") {
		for i := range m.width {
			blocks = append(blocks, b+4*uint64(i))
		}
	}
	return blocks
}

func (m *machine) route(t *rapid.T) {
	for range rapid.IntRange(1, 4).Draw(t, "burst") {
		m.routeOne(t)
	}
}

func (m *machine) routeOne(t *rapid.T) {
	blocks := m.prompt(t)
	m.prompts = append(m.prompts, blocks)
	slot := rapid.IntRange(0, twinEndpoints-1).Draw(t, "slot")
	ref := m.refs[slot]
	if rapid.IntRange(0, 9).Draw(t, "late") == 0 && ref.Generation > 1 {
		ref.Generation-- // removed while the request was on its way
	}
	m.key.Generation++
	m.key.Slot = uint32(len(m.open)) // slots are used again
	for slices.ContainsFunc(m.open, func(e endpick.Event) bool { return e.Lease.Slot == m.key.Slot }) {
		m.key.Slot++
	}
	req := &endpick.Request{Blocks: blocks, InputTokens: 16*len(blocks) + 1}
	e := endpick.Event{Lease: m.key, Request: req, Candidate: &endpick.Candidate{
		Endpoint: &endpick.Endpoint{KVTokens: 16 * m.bounds[slot]}, Ref: ref,
	}}
	capacity := m.bounds[slot]
	if s := &m.x.servers; slot < len(*s) && m.x.generations[slot] == ref.Generation {
		if learned := (*s)[slot].learned; learned > 0 {
			capacity = min(capacity, max(learned, len(blocks)))
		}
	}
	m.x.Routed(&e)
	m.twin.routed(m.key, ref, blocks, capacity)
	want, routed := m.twin.leases[m.key]
	if l := m.x.lease(m.key); routed {
		require.Equal(t, want.matched, l.matched)
		require.Equal(t, want.doubtful, l.doubtful)
	} else {
		require.Nil(t, l)
	}
	m.open = append(m.open, e)
}

func (m *machine) firstToken(t *rapid.T) {
	if len(m.open) == 0 {
		return
	}
	e := &m.open[rapid.IntRange(0, len(m.open)-1).Draw(t, "lease")]
	m.x.FirstToken(e)
	m.twin.ended(e.Lease, true)
	e.FirstTokenAt = e.FirstTokenAt.AddDate(1, 0, 0)
}

func (m *machine) done(t *rapid.T) {
	if len(m.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(t, "lease")
	e := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	o := endpick.Outcome{
		Status:          rapid.SampledFrom([]endpick.Status{endpick.Completed, endpick.Completed, endpick.Failed, endpick.Canceled, endpick.Lost}).Draw(t, "status"),
		HasCachedTokens: rapid.Bool().Draw(t, "reported"),
		CachedTokens:    rapid.IntRange(0, e.Request.InputTokens).Draw(t, "cached"),
	}
	slot := e.Candidate.Ref.Slot
	l := m.x.lease(e.Lease)
	before, doubtful, blocks := 0, false, 0
	if l != nil {
		before, doubtful, blocks = m.x.servers[slot].capacity(), l.doubtful, l.blocks
	}
	computed := o.Status == endpick.Completed || !e.FirstTokenAt.IsZero()
	m.x.Done(&e, &o)
	m.x.Done(&e, &o) // no lease any more
	m.twin.ended(e.Lease, computed)
	delete(m.twin.leases, e.Lease)
	if l == nil {
		return
	}
	if m.x.generations[slot] != e.Candidate.Ref.Generation || m.x.servers[slot].gone {
		return
	}
	after := m.x.servers[slot].capacity()
	if doubtful || !computed || !o.HasCachedTokens {
		require.Equal(t, before, after, "not a report to learn from")
	}
	require.GreaterOrEqual(t, after, before-before/4, "one report does not decide")
	require.GreaterOrEqual(t, after, min(blocks, before), "the request's own blocks")
	require.LessOrEqual(t, after, m.x.servers[slot].bound)
	m.twin.endpoints[slot].evict(after)
}

func (m *machine) removeAndAdd(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "rarely") > 0 {
		return
	}
	slot := rapid.IntRange(0, twinEndpoints-1).Draw(t, "slot")
	m.x.EndpointRemoved(m.refs[slot])
	m.twin.removed(m.refs[slot])
	m.refs[slot].Generation++
}

func (m *machine) check(t *rapid.T) {
	require.NoError(t, m.x.check())
	blocks := m.prompt(t)
	req := &endpick.Request{Blocks: blocks, InputTokens: 16*len(blocks) + 1}
	candidates := make([]endpick.Candidate, 0, 2*twinEndpoints)
	for _, ref := range m.refs {
		candidates = append(candidates, endpick.Candidate{Ref: ref, PrefixTokens: 99})
		if ref.Generation > 1 {
			ref.Generation--
			candidates = append(candidates, endpick.Candidate{Ref: ref, PrefixTokens: 99})
		}
	}
	candidates = rapid.Permutation(candidates).Draw(t, "order")
	m.x.Match(req, candidates)
	for _, c := range candidates {
		require.Equal(t, 16*m.twin.match(c.Ref, blocks), c.PrefixTokens, "%v of %v", blocks, c.Ref)
	}
	for slot := range m.x.servers {
		held := 0
		if e := m.twin.endpoints[uint32(slot)]; e != nil {
			held = len(e.order)
		}
		require.Equal(t, held, m.x.servers[slot].held, "slot %d", slot)
	}
}

func TestIndexIsItsTwin(t *testing.T) { rapid.Check(t, checkIndex) }
func FuzzIndex(f *testing.F)          { f.Fuzz(rapid.MakeFuzz(checkIndex)) }

func checkIndex(t *rapid.T) {
	x, err := NewIndex(IndexConfig{})
	require.NoError(t, err)
	m := &machine{x: x, twin: newTwin(), width: rapid.SampledFrom([]int{1, 8}).Draw(t, "width")}
	for range twinEndpoints {
		m.bounds = append(m.bounds, rapid.IntRange(1, 16*m.width).Draw(t, "bound"))
		m.refs = append(m.refs, endpick.Ref{Slot: uint32(len(m.refs)), Generation: 1})
	}
	t.Repeat(map[string]func(*rapid.T){
		"route":  m.route,
		"first":  m.firstToken,
		"done":   m.done,
		"remove": m.removeAndAdd,
		"":       m.check,
	})
}
