// Package kvevents reads what engines publish about their KV caches, for the index of
// package precise.
//
// vLLM, SGLang and TensorRT-LLM publish batches of events over ZeroMQ, each process (a
// data-parallel rank) on a port of its own. They mostly agree, and change details from
// release to release; this package reads all known forms, and counts what it does not
// know instead of failing. See testdata for one of each.
//
//   - [Subscriber], [Config]: one process's events, from its socket into a [Sink]
//   - [State], [Stats]: how that goes
//   - [RankAddress]: ports
//
// A Subscriber checks the numbers of batches. It asks again for missing ones if the
// engine has a replay socket; what can't be recovered costs the knowledge of that
// process's cache and nothing else. It recognizes a restarted engine by its numbers, or
// because it no longer has what it sent before.
//
// Connections are not encrypted. What an engine sends is bounded before memory is
// allocated for it: messages by Config.MaxMessage, what is in them by their length.
package kvevents
