// Package endpick picks, for every LLM request, the inference server that
// should run it. It is the decision core of a gateway: it owns no socket, no
// goroutine and no configuration file. It decides in microseconds, in the
// caller's goroutine, and learns from the responses.
//
// # The path of a request
//
//	Request ── match ── predict ── admit ── filter ── score ── pick ──► Lease
//	             │         │                                             │
//	         prefix index  model                     FirstToken · Tokens · Done(Outcome)
//	             ▲         ▲                                             │
//	             └─────────┴───────────── observers ◄────────────────────┘
//
// [Router.Route] takes the endpoints that serve the request's model, makes a
// [Candidate] of each, and passes them through the stages of the [Policy], each
// stage once:
//
//   - a [Matcher] finds how much of the prompt each endpoint holds already,
//   - a [Predictor] predicts latencies,
//   - each [Admitter] may refuse the request,
//   - each [Filter] narrows the choice,
//   - each [Scorer] grades what is left, and the grades are combined by weight,
//   - the [Picker] chooses.
//
// The result is a [Lease], which says where to send the request and keeps
// account of it. A stage that is also a [RoutedObserver], a
// [FirstTokenObserver] or a [DoneObserver] is notified when the request is
// routed, at its first token and at its end.
//
// # Usage
//
// Make a router from a policy and endpoints; package scorer/preset has policies
// by name:
//
//	config := preset.Default()
//	config.Endpoints = []endpick.Endpoint{{Address: "10.0.0.1:8000"}, {Address: "10.0.0.2:8000"}}
//	router, err := endpick.New(config)
//
// Route each request, report its progress, and close the lease:
//
//	lease, err := router.Route(endpick.Request{Model: "llama", InputTokens: n, Blocks: blocks, Stream: true})
//	if err != nil {
//		return err // nobody serves the model, or an Admitter refused
//	}
//	defer lease.Done(endpick.Outcome{Status: endpick.Canceled}) // unless it is closed below
//	send(lease.Endpoint().Address)
//	lease.Tokens(1) // for each token; the first call reports the first token, too
//	lease.Done(endpick.Outcome{OutputTokens: usage.CompletionTokens})
//
// Package transport does all of this in an http.RoundTripper.
//
// # The caller's duties
//
//   - Close every lease with [Lease.Done]. A lease that is lost all the same is
//     reaped after Config.LeaseTimeout without a call; until then its request
//     counts as in flight.
//   - Say when the first token of a streamed response arrives, and count
//     tokens, not chunks: the router knows what is in flight from this alone.
//     If it hears of none, Config.Warn gets [ErrNoFirstTokens].
//   - Set Request.Stream correctly. A response that does not stream has no
//     first token; its prefill ends in the accounts when its predicted TTFT has
//     passed. If you can't tell when a first token arrives, leave Stream unset,
//     whatever the client asked for: a stream counts as waiting for its first
//     token until somebody reports it.
//   - Report what engines say about themselves, with [Router.Report], a few
//     times a second if possible, with a [Snapshot] taken when the engine was
//     asked. Without reports the router goes by its own account. Report idle
//     engines too: after Config.ReportMaxAge a report no longer counts. List the
//     signals that an engine does not have in Load.Absent: absent is not zero.
//   - Retry a failed request by closing its lease and routing it again with the
//     endpoint in Request.Exclude.
//   - Keep requests away from endpoints that fail: the router goes by load, and
//     the one that fails at once always looks idlest. Package transport does so; other
//     hosts ask package transport/health, or fill Request.Avoid themselves. Done
//     with Failed is for what is the endpoint's fault; a request that the endpoint
//     does not take (4xx) is Refused, and one that the client gives up Canceled.
//   - Leave Request.Blocks alone until Route returns; after that they are the
//     caller's again.
//   - Pass the whole fleet to [Router.SetEndpoints] where discovery delivers a
//     list; Add, Update and Remove are for single changes.
//   - Give each router stages of its own: a stage with state knows endpoints by
//     [EndpointRef] and leases by [LeaseRef], and the same ones mean something else in
//     another router. The policies of one router may share stages, so that a
//     prefix index outlives [Router.SetPolicy].
//
// A router has no Close: it owns no goroutine and no connection, and is garbage
// collected with the last reference to it. To shut a program down cleanly, stop calling
// Route, close the leases as their responses end, and wait until [Stats].OpenLeases is
// zero.
//
// # What is fresh, and what is chance
//
// The router's own counts of what is in flight are exact, and up to date when
// Route returns. An engine's report is as old as its scrape; a Candidate has it
// corrected for the leases that were opened and closed since its Snapshot. For a
// signal that an endpoint does not report it has the others' mean, so silence never looks idle.
//
// Time comes only from Config.Clock, unless that panics. Chance is a hash of the seed, the request's
// number, a salt and the endpoint's ID. So the order of endpoints changes no
// choice, and the same calls in the same order give the same decisions.
//
// # Stages of your own
//
// A scorer is one method over a slice; see the examples of [Scorer], [Filter] and, with
// state, [PerEndpoint]. Stages are called concurrently. They write only what their interface
// says, keep nothing that they are given, and read the time from [Request.Now] and chance
// from [Request.ChanceOf]. Higher scores are better; those that are combined with others
// stay within [0, 1]. State for endpoints belongs in a [PerEndpoint] and state for requests
// in a [PerLease]; a stage that has either embeds [Exclusive]. Stages must not change endpoints
// or the policy: a request whose endpoint has gone is decided again, perhaps for ever. An endpoint
// must neither win nor lose because it has no prediction or report.
//
// Beside the method of its interface, and those of the observers, a stage may have these:
//
//	Name() string                     what receipts and errors call it; else its type
//	Validate() error                  called by New and SetPolicy, which refuse the policy
//	Withdrawn(req *Request)           of an Admitter: what it let in is not routed after all
//	Explain(req *Request, candidates []Candidate, dst []string)
//	                                  of a Scorer: its reasons in words, for receipts
//	Observer() any                    what else hears of requests, such as metrics; a stage
//	                                  that wraps another returns that, or it learns nothing
//	                                  (see RoutedObserver)
//
// If a stage breaks its contract, its result is replaced and the request goes
// on: a score that is not finite becomes the lowest of the others, one beyond [0, 1] beside
// other scorers is cut to that, a filter that leaves none, or returns what it was not given,
// is skipped, one that loses what it removes keeps its choice, a picker's index that is out of
// range becomes that of the best score, an admitter's nil pointer is no refusal, and the result of
// a stage that panics is ignored.
// [Stats] counts all of these, and Config.Warn receives them. What is not looked for is a
// stage that changes what is in a candidate, or their order: scorertest finds it.
package endpick
