package main

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"

	"github.com/endpick/endpick"
)

// receipts keeps the accounts of the newest decisions.
type receipts struct {
	most int

	mu   sync.Mutex
	kept []*endpick.Receipt // in order of the first bytes; they never change
}

func newReceipts(most int) *receipts { return &receipts{most: most} }

type receiptKey struct{}

// keep gives every request a receipt for the router to fill, and keeps it when
// the response begins. A request that was tried again shows its last decision.
func (r *receipts) keep(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(in *http.Request) (*http.Response, error) {
		receipt := new(endpick.Receipt)
		defer r.add(receipt)
		return next.RoundTrip(in.WithContext(context.WithValue(in.Context(), receiptKey{}, receipt)))
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(in *http.Request) (*http.Response, error) { return f(in) }

// describe asks the router for the receipt.
func (r *receipts) describe(in *http.Request, _ []byte, req *endpick.Request) {
	req.Receipt, _ = in.Context().Value(receiptKey{}).(*endpick.Receipt)
}

func (r *receipts) add(receipt *endpick.Receipt) {
	if receipt.Number == 0 {
		return // it never came to a decision
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) == r.most {
		r.kept = slices.Delete(r.kept, 0, 1)
	}
	r.kept = append(r.kept, receipt)
}

// newest returns the receipts kept, the newest decision first.
func (r *receipts) newest() []*endpick.Receipt {
	r.mu.Lock()
	all := slices.Clone(r.kept)
	r.mu.Unlock()
	slices.SortFunc(all, func(a, b *endpick.Receipt) int { return cmp.Compare(b.Number, a.Number) })
	return all
}
