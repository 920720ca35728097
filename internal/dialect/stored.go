package dialect

import (
	"cmp"
	"container/list"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/endpick/endpick/prefix"
)

const (
	// maxStored bounds the responses that are remembered, maxStoredBytes what
	// that takes.
	maxStored      = 1 << 16
	maxStoredBytes = 64 << 20
	storedOverhead = 512
)

// storedTable knows where the responses are that engines have stored, so that who
// refers to one is served by the engine that holds it. An entry is made of a
// response that an engine has given, and found by who has asked for it alone. The
// one that was not used for longest gives way. It is safe for concurrent use.
type storedTable struct {
	mu    sync.Mutex
	byKey map[storedKey]*list.Element
	used  list.List // of *stored, the latest first
	bytes int
	limit int // of bytes; zero: maxStoredBytes
}

type storedKey struct{ tenant, id string }

// stored is a response that an engine holds. It does not change.
type stored struct {
	key      storedKey
	endpoint string
	session  string
	head     uint64 // a hash of tools and instructions
	size     int    // of the conversation, in bytes of text
	// h goes on where the response has ended; nil: that is not known.
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
		t.byKey = map[storedKey]*list.Element{}
	}
	t.drop(t.byKey[s.key])
	t.byKey[s.key] = t.used.PushFront(s)
	t.bytes += s.cost()
	for t.used.Len() > maxStored || t.bytes > cmp.Or(t.limit, maxStoredBytes) && t.used.Len() > 1 {
		t.drop(t.used.Back())
	}
}

func (t *storedTable) drop(e *list.Element) {
	if e == nil {
		return
	}
	s := t.used.Remove(e).(*stored)
	delete(t.byKey, s.key)
	t.bytes -= s.cost()
}

// get returns nil for what is not known.
func (t *storedTable) get(tenant, id string) *stored {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byKey[storedKey{tenant, id}]
	if e == nil {
		return nil
	}
	t.used.MoveToFront(e)
	return e.Value.(*stored)
}

// storedID is the id of the response that a path names, as in
// /v1/responses/{id}/cancel; empty if it names none.
func storedID(path string) string {
	_, rest, ok := strings.Cut(path, "/v1/responses/")
	if !ok {
		return ""
	}
	id, _, _ := strings.Cut(rest, "/")
	return id
}

// headOfResponse is a hash of what a later turn says again beside its input.
func headOfResponse(c *call) uint64 {
	return xxhash.Sum64(c.tools) ^ 3*xxhash.Sum64(c.system)
}
