// Package shortlist spares the prediction of endpoints that can't win.
//
// A model of trees takes some hundred nanoseconds for each endpoint, more than all else
// in a decision together. A [Filter] in Policy.Shortlist asks its linear part first,
// for a few nanoseconds, and lets through to the prediction
//
//   - those with the lowest estimate of the whole, own latency and delay for others, with
//     and without what the last prediction of each has added to it
//   - among those that hold most of the prompt, the lowest
//   - those with the lowest time to first token, which the affinity gate compares with
//   - those that were chosen since their last prediction, whose load has changed the most
//   - and some by chance.
//
// How often the choice differs from that among all, and what it costs, is in
// docs/performance.md.
package shortlist
