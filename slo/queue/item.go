package queue

import (
	"fmt"
	"math"
	"time"

	"github.com/endpick/endpick"
)

// Item is a request in a [Queue] and what it carries.
type Item[T any] struct {
	// Priority: higher goes first, below zero is sheddable.
	Priority int
	// Tenant is to whom the request counts. It must not be chosen by the client,
	// who would otherwise be served as much for each name.
	Tenant string
	// Deadline orders the requests of a tenant, the earliest first. A request
	// is not dropped for missing it. Zero, or later than the request may
	// wait: the end of its wait.
	Deadline time.Time
	// Tokens is the length of the prompt. Zero, unknown: it counts as one. At most
	// 2³¹−1.
	Tokens int
	// OutputTokens is the expected length of the response. Together with the
	// prompt, it is what the request costs its tenant until [Queue.Settle]
	// corrects it. Zero: unknown, and free until then. At most 2³¹−1.
	OutputTokens int
	// Bytes is the memory that the request holds, at most 2⁴⁰.
	Bytes int
	// Timeout is how long it may wait. Zero: Config.Timeout.
	Timeout time.Duration
	Value   T

	// epoch is that of the band in which the request was dispatched.
	epoch uint64
}

// NewItem returns the item for a request that arrives now: its deadline is the
// TTFT target, where there is one.
func NewItem[T any](now time.Time, req *endpick.Request, value T) Item[T] {
	item := Item[T]{
		Priority: req.Priority, Tenant: req.Tenant, Value: value,
		Tokens: req.InputTokens, OutputTokens: min(req.ExpectedOutputTokens, math.MaxInt32),
	}
	if req.SLO.TTFT > 0 {
		item.Deadline = now.Add(req.SLO.TTFT)
	}
	return item
}

// validate refuses impossible sizes. The sizes of as many requests as fit into
// memory add up to less than an int64.
func (i *Item[T]) validate() error {
	for _, f := range []struct {
		name     string
		v, limit int64
	}{
		{"Tokens", int64(i.Tokens), math.MaxInt32}, {"OutputTokens", int64(i.OutputTokens), math.MaxInt32}, {"Bytes", int64(i.Bytes), 1 << 40},
		{"Timeout", int64(i.Timeout), math.MaxInt64},
	} {
		if f.v < 0 || f.v > f.limit {
			return &endpick.RequestError{Field: "queue.Item." + f.name, Reason: fmt.Sprintf("is %d, outside 0 to %d", f.v, f.limit)}
		}
	}
	return nil
}

// A bound is a quantity that the queue limits.
type bound int

const (
	requests bound = iota
	tokens
	bytes
	bounds
)

// amounts are quantities by bound.
type amounts [bounds]int64

func (a *amounts) add(b amounts, times int64) {
	for i := range a {
		a[i] += times * b[i]
	}
}

// amounts are those of one request.
func (i *Item[T]) amounts() amounts {
	return amounts{requests: 1, tokens: max(int64(i.Tokens), 1), bytes: int64(i.Bytes)}
}

// maxTokens is longer than any prompt or response: what says more is not believed.
const maxTokens = 1 << 24

// cost is what tokens cost a tenant, in prompt tokens. Both lengths are capped.
func (c *Config) cost(input, output int) int64 {
	output = min(max(output, 0), maxTokens)
	return int64(min(max(input, 0), maxTokens)) + int64(math.Round(c.OutputWeight*float64(output)))
}

// costOf is what a request costs its tenant when it is dispatched.
func costOf[T any](c *Config, i *Item[T]) int64 { return c.cost(max(i.Tokens, 1), i.OutputTokens) }
