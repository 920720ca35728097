// Package shortlist avoids predicting endpoints that can't win.
//
// A tree model takes some hundred nanoseconds per endpoint, more than the rest of a
// decision. A [Filter] in Policy.Shortlist evaluates the model's linear part first, in a
// few nanoseconds, and keeps for the prediction
//
//   - those with the lowest estimated cost, own latency and delay for others, with and
//     without the correction by the last prediction for each
//   - the lowest of those that hold some of the prompt, and of those that hold most of it
//   - those with the lowest time to first token, which the affinity gate compares with
//   - those that were chosen since their last prediction, whose load has changed the most
//   - and some at random.
//
// docs/performance.md says how often the choice differs from that among all endpoints,
// and what that costs.
package shortlist
