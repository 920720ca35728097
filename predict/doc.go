// Package predict learns how long requests will take, in process, from the requests that have finished.
//
// [Latency] is an endpick.Predictor and observer that predicts the time to first token and
// the time per output token of every candidate, with an upper bound that nine requests in
// ten stay below. It follows "Predicted-Latency Based Scheduling for LLMs" (llm-d, 2026),
// but predicts in process, where the paper uses a sidecar.
//
//	latency, err := predict.NewLatency(predict.LatencyConfig{})
//	…
//	router, err := endpick.New(endpick.Config{Policy: endpick.Policy{Predictor: latency, …}})
//
// The router passes the predictor what it observes; there is nothing else to call, and
// nothing to close: a model is fitted in a goroutine that ends with the fit, one at a time,
// started by the label that makes it due. A restart begins anew, and knows enough within
// some dozen responses.
//
// The regressor is package predict/boost and can be used on its own.
//
// # What is learned, and what is not
//
// Labels are positive numbers and errors are relative: trees fit the logarithm of
// label/prior. A sample is taken when a request is routed, with the features at that time,
// and labelled at its first token and its end: a server that does not answer teaches
// nothing, and package transport/health is the one that knows of it. If all labels change
// by one factor at once, older ones are corrected by it. A window keeps the newest
// samples of every kind of traffic, so that a kind that pauses is not forgotten.
//
// Labels reach the models in the order of the calls. With Synchronous, the same calls
// produce exactly the same models on the same kind of machine.
package predict
