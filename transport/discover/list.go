package discover

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/endpick/endpick"
)

// List is a source that the program sets: for endpoints that never change, and for
// your own discovery. The zero List is empty. It is safe for concurrent use.
type List struct {
	mu   sync.Mutex
	list []endpick.Endpoint
}

// NewList returns a list of these endpoints.
func NewList(endpoints ...endpick.Endpoint) *List {
	l := &List{}
	l.Set(endpoints)
	return l
}

// Set replaces the list, and copies it. A [Watcher] notices at its next poll;
// [Watcher.Poll] polls at once.
func (l *List) Set(endpoints []endpick.Endpoint) {
	own := copied(endpoints)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = own
}

// Endpoints implements [Source].
func (l *List) Endpoints(context.Context) ([]endpick.Endpoint, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return copied(l.list), nil
}

// copied is a deep copy.
func copied(list []endpick.Endpoint) []endpick.Endpoint {
	list = slices.Clone(list)
	for i := range list {
		e := &list[i]
		e.Models, e.Adapters, e.Labels = slices.Clone(e.Models), slices.Clone(e.Adapters), maps.Clone(e.Labels)
	}
	return list
}

func compare(a, b *endpick.Endpoint) int {
	return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Rank, b.Rank))
}
