package dialect

import (
	"cmp"
	"container/list"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/endpick/endpick/prefix"
	"github.com/google/btree"
)

const (
	// maxStored limits the number of responses that are remembered, maxStoredBytes
	// their memory.
	maxStored      = 1 << 16
	maxStoredBytes = 64 << 20
	storedOverhead = 512
)

// storedTable knows which endpoints hold stored responses, so that a request that
// refers to one is served by the engine that has it. Entries are made from
// responses that engines have sent, first or again, and found only by the tenant that
// asked for them. When the table is full, the tenant that holds the most loses what it has
// not used for longest, so that a flood only evicts its own. It is safe for
// concurrent use.
type storedTable struct {
	mu      sync.Mutex
	byKey   map[storedKey]*list.Element
	tenants map[string]*storedTenant
	byBytes *btree.BTreeG[*storedTenant]
	bytes   int
	limit   int // in bytes; zero: maxStoredBytes
}

// storedTenant is what one tenant has in the table.
type storedTenant struct {
	name  string
	used  list.List // of *stored, most recently used first
	bytes int
}

type storedKey struct{ tenant, id string }

// stored is a response that an engine holds. It is immutable.
type stored struct {
	key      storedKey
	endpoint string
	session  string
	head     uint64 // a hash of tools and instructions
	size     int    // of the conversation, in bytes of text
	// h continues the response's hashes; nil: not known.
	h *prefix.Hasher
}

func (s *stored) cost() int {
	n := storedOverhead + len(s.key.tenant) + len(s.key.id) + len(s.session)
	if s.h != nil {
		n += 8 * cap(s.h.Blocks())
	}
	return n
}

func (t *storedTable) put(s *stored) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byKey == nil {
		t.byKey, t.tenants = map[storedKey]*list.Element{}, map[string]*storedTenant{}
		t.byBytes = btree.NewG(8, func(a, b *storedTenant) bool {
			return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(b.name, a.name)) < 0
		})
	}
	t.drop(t.byKey[s.key])
	tenant := t.tenants[s.key.tenant]
	if tenant == nil {
		tenant = &storedTenant{name: s.key.tenant}
		t.tenants[tenant.name] = tenant
	}
	t.byKey[s.key] = tenant.used.PushFront(s)
	t.account(tenant, s.cost())
	for len(t.byKey) > maxStored || t.bytes > cmp.Or(t.limit, maxStoredBytes) && len(t.byKey) > 1 {
		most, _ := t.byBytes.Max()
		t.drop(most.used.Back())
	}
}

func (t *storedTable) drop(e *list.Element) {
	if e == nil {
		return
	}
	s := e.Value.(*stored)
	delete(t.byKey, s.key)
	tenant := t.tenants[s.key.tenant]
	tenant.used.Remove(e)
	t.account(tenant, -s.cost())
	if tenant.used.Len() == 0 {
		delete(t.tenants, tenant.name)
	}
}

// account changes how much a tenant holds.
func (t *storedTable) account(tenant *storedTenant, bytes int) {
	t.byBytes.Delete(tenant)
	tenant.bytes += bytes
	t.bytes += bytes
	if tenant.bytes > 0 {
		t.byBytes.ReplaceOrInsert(tenant)
	}
}

// get returns nil if the response is not known.
func (t *storedTable) get(tenant, id string) *stored {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byKey[storedKey{tenant, id}]
	if e == nil {
		return nil
	}
	t.tenants[tenant].used.MoveToFront(e)
	return e.Value.(*stored)
}

// storedID is the id of the response in a path such as
// /responses/{id}/cancel, or empty.
func storedID(path string) string {
	_, rest, _ := strings.Cut(path, "/responses/")
	id, _, _ := strings.Cut(rest, "/")
	return id
}

// headOfResponse is a hash of what later turns repeat besides their input.
func headOfResponse(c *request) uint64 {
	return xxhash.Sum64(c.parts[toolsPart]) ^ xxhash.Sum64(c.parts[systemPart])
}
