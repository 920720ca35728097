// Package predict learns how long requests will take, in process, from the requests that have finished.
//
// [Latency] is the whole of it for a router: it is an endpick.Predictor and Observer that fills in the time to first
// token and the time per output token of every candidate, with an upper bound that nine requests in ten stay below.
// It follows "Predicted-Latency Based Scheduling for LLMs" (llm-d, 2026), which asks a sidecar for what is asked of a
// slice here.
//
//	latency, err := predict.NewLatency(predict.LatencyConfig{})
//	…
//	defer latency.Close()
//	router, err := endpick.New(endpick.Config{Policy: endpick.Policy{Predictor: latency, …}})
//
// The router passes the predictor what it observes; there is nothing else to call. A restart loses nothing if
// [Latency.AppendBinary] is saved before and given to [RestoreLatency] after.
//
// # Parts
//
//   - [Latency] predicts candidates, and learns a model of each latency for every served model.
//   - [Learner] is one such model that keeps learning: a window of labels, refits, a spread, health. A [Trainer] trains
//     learners in one background goroutine, or in the caller's when a simulator needs the same bytes every time.
//   - [Window] keeps the newest samples of every kind of traffic, so that what is out of sight is not forgotten.
//   - [Model] is the regressor, usable on its own: [Fit] grows boosted oblivious trees over a linear prior,
//     [Model.Predict] runs them eight rows at a time, [Model.Update] moves them a little, MarshalBinary saves them.
//   - [Features] are what a latency is predicted from.
//
// # What is learned, and what is not
//
// Labels are positive numbers and errors relative: trees fit the logarithm of label over prior. A sample is taken when
// a request is routed, with the features as they were then, and labelled at its first token and its end. Requests that
// are open for longer than predicted take part in refits with the time they have waited so far. If all labels change by
// one factor at once, older ones are corrected by it.
//
// Labels reach the learner in the order of the calls. In a synchronous trainer the same calls make the same models, to
// the last bit, on every architecture.
package predict
