package prefix

import (
	"hash/maphash"
	"slices"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const twinEndpoints = 2

// machine drives an index and its twin with the same events.
type machine struct {
	x       *Index
	twin    *twin
	width   int // consecutive blocks for each one drawn
	bounds  []int
	tenants []string
	refs    []endpick.EndpointRef // current endpoints, by slot
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
	return append(blocks, m.tail(t)...)
}

func (m *machine) tail(t *rapid.T) (blocks []uint64) {
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
		ref.Generation-- // removed while the request was being routed
	}
	m.key.Generation++
	m.key.Slot = uint32(len(m.open)) // slots are reused
	for slices.ContainsFunc(m.open, func(e endpick.Event) bool { return e.Lease.Slot == m.key.Slot }) {
		m.key.Slot++
	}
	if len(m.open) > 0 && rapid.IntRange(0, 9).Draw(t, "untold") == 0 {
		// The end of another one is never observed: its slot is reused.
		m.key.Slot = m.open[0].Lease.Slot
		if l := m.twin.leases[m.open[0].Lease]; l != nil {
			m.twin.end(l)
			delete(m.twin.leases, m.open[0].Lease)
		}
		m.x.leases.Drop(m.open[0].Lease)
		m.open = m.open[1:]
	}
	m.open = append(m.open, m.routed(t, m.key, ref, rapid.SampledFrom(m.tenants).Draw(t, "tenant"), blocks))
}

// routed notifies both of a request.
func (m *machine) routed(t require.TestingT, key endpick.LeaseRef, ref endpick.EndpointRef, tenant string, blocks []uint64) endpick.Event {
	bound := m.bounds[ref.Slot]
	e := endpick.Event{
		Lease: key, Request: &endpick.Request{Blocks: blocks, InputTokens: 16*len(blocks) + 1, Tenant: tenant},
		Candidate: &endpick.Candidate{Endpoint: &endpick.Endpoint{KVTokens: 16 * bound}, Ref: ref},
	}
	observer{m.x}.Routed(&e)
	m.twin.routed(key, ref, tenant, blocks, size{min(bound, m.twin.most), bound <= m.twin.most})
	l := m.x.leases.Find(key)
	if want := m.twin.leases[key]; want != nil {
		require.Equal(t, []int{want.matched, want.proven}, []int{l.matched, l.proven})
		require.Equal(t, want.doubtful, l.matched > 0 && l.age == 0)
		require.Equal(t, len(want.heads), l.length)
	} else {
		require.Nil(t, l)
	}
	return e
}

// computed updates the twin after the index has observed that a prompt was
// computed.
func (m *machine) computed(e *endpick.Event) {
	if l := m.twin.leases[e.Lease]; l != nil {
		if c := m.x.cacheAt(l.ref); c != nil {
			m.twin.compute(l, c.capacity(), false)
		}
	}
}

func (m *machine) firstToken(t *rapid.T) {
	if len(m.open) == 0 {
		return
	}
	m.answered(&m.open[rapid.IntRange(0, len(m.open)-1).Draw(t, "lease")])
}

// answered notifies both of a first token.
func (m *machine) answered(e *endpick.Event) {
	observer{m.x}.FirstToken(e)
	m.computed(e)
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
		CachedTokens:    rapid.SampledFrom([]int{0, e.Request.InputTokens / 2, e.Request.InputTokens}).Draw(t, "cached"),
	}
	switch rapid.IntRange(0, 3).Draw(t, "response") {
	case 0:
		o.Blocks = m.prompt(t) // which may continue it
	case 1, 2:
		o.Blocks = slices.Concat(e.Request.Blocks, m.tail(t))
		m.prompts = append(m.prompts, o.Blocks)
	}
	m.ended(t, &e, &o)
}

// ended notifies both of the end of a request.
func (m *machine) ended(t require.TestingT, e *endpick.Event, o *endpick.Outcome) {
	ref := e.Candidate.Ref
	before, longest := 0, 0
	if c := m.x.cacheAt(ref); c != nil {
		before = c.capacity()
	}
	if l := m.x.leases.Find(e.Lease); l != nil {
		longest = l.length
	}
	observer{m.x}.Done(e, o)
	observer{m.x}.Done(e, o) // no lease any more
	l := m.twin.leases[e.Lease]
	if l == nil {
		return
	}
	if o.Status == endpick.Completed || !e.FirstTokenAt.IsZero() {
		m.computed(e)
	}
	if c := m.x.cacheAt(ref); c != nil && o.Status == endpick.Completed && len(o.Blocks) > 0 {
		m.twin.respond(l, o.Blocks, c.capacity())
	}
	m.twin.end(l)
	require.Equal(t, m.twin.strays, m.x.Stats().Strays)
	delete(m.twin.leases, e.Lease)
	if c := m.x.cacheAt(ref); c != nil && before > 0 {
		require.GreaterOrEqual(t, c.capacity(), min(before-before/8, c.size.blocks), "at most an eighth at once")
		require.LessOrEqual(t, c.capacity(), max(c.size.blocks, longest))
	}
}

func (m *machine) removeAndAdd(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "rarely") > 0 {
		return
	}
	m.succeeded(rapid.IntRange(0, twinEndpoints-1).Draw(t, "slot"))
}

// succeeded notifies both that an endpoint was replaced by another in its slot.
func (m *machine) succeeded(slot int) {
	observer{m.x}.EndpointRemoved(m.refs[slot])
	m.twin.removed(m.refs[slot])
	m.refs[slot].Generation++
}

func (m *machine) check(t *rapid.T) {
	m.agree(t, m.prompt(t), func(candidates []endpick.Candidate) []endpick.Candidate {
		return rapid.Permutation(candidates).Draw(t, "order")
	})
}

// agree fails if index and twin hold different blocks, or match differently.
func (m *machine) agree(t require.TestingT, blocks []uint64, order func([]endpick.Candidate) []endpick.Candidate) {
	require.NoError(t, m.x.check())
	req := &endpick.Request{Blocks: blocks, InputTokens: 16*len(blocks) + 1}
	candidates := make([]endpick.Candidate, 0, 2*twinEndpoints)
	for _, ref := range m.refs {
		candidates = append(candidates, endpick.Candidate{Ref: ref, PrefixTokens: 99})
		if ref.Generation > 1 {
			ref.Generation--
			candidates = append(candidates, endpick.Candidate{Ref: ref, PrefixTokens: 99})
		}
	}
	candidates = order(candidates)
	m.x.Match(req, candidates)
	for _, c := range candidates {
		require.Equal(t, 16*m.twin.match(c.Ref, blocks), c.PrefixTokens, "%v of %v", blocks, c.Ref)
	}
	m.x.MatchUnderWay(req, candidates, func(ref endpick.EndpointRef) bool { return ref.Slot == 0 })
	for _, c := range candidates {
		want := m.twin.match(c.Ref, blocks)
		if c.Ref.Slot == 0 {
			want = len(slices.DeleteFunc(heads(blocks)[:want], func(h string) bool { return !m.twin.needed(c.Ref, h) }))
		}
		require.Equal(t, 16*want, c.PrefixTokens, "%v of %v, under way", blocks, c.Ref)
	}
	for ref, at := range m.x.caches.All() {
		c, e := *at, m.twin.endpoints[ref.Slot]
		require.Equal(t, []int{len(e.order), m.twin.pending(ref, "", true), len(e.retained)}, []int{c.held, c.pending, c.retained}, "%v", ref)
		for _, tenant := range m.tenants {
			held := 0
			if a := m.x.findAccount(c, tenant); a != nil {
				held = a.held
			}
			require.Equal(t, e.held(tenant), held, "%v of %q", ref, tenant)
		}
	}
}

func (x *Index) findAccount(c *cache, tenant string) *account {
	return x.byTenant.entries[accountName{c, x.byName.entries[maphash.String(x.seed, tenant)]}]
}

func TestIndexIsItsTwin(t *testing.T) { rapid.Check(t, checkIndex) }
func FuzzIndex(f *testing.F)          { f.Fuzz(rapid.MakeFuzz(checkIndex)) }

func checkIndex(t *rapid.T) {
	share := rapid.SampledFrom([]float64{0.5, 0.25, 1}).Draw(t, "share")
	m := &machine{twin: newTwin(), width: rapid.SampledFrom([]int{1, 8}).Draw(t, "width")}
	most := rapid.IntRange(1, 16*m.width).Draw(t, "most")
	x := rig.Must(NewIndex(IndexConfig{TenantShare: share, BlocksPerEndpoint: most}))
	m.x, m.twin.share, m.twin.most = x, share, most
	m.tenants = []string{"", "a", "b"}[:rapid.IntRange(1, 3).Draw(t, "tenants")]
	for range twinEndpoints {
		m.bounds = append(m.bounds, rapid.IntRange(1, 16*m.width).Draw(t, "bound"))
		m.refs = append(m.refs, endpick.EndpointRef{Slot: uint32(len(m.refs)), Generation: 1})
	}
	t.Repeat(map[string]func(*rapid.T){
		"route":  m.route,
		"first":  m.firstToken,
		"done":   m.done,
		"remove": m.removeAndAdd,
		"":       m.check,
	})
}
