// Package kvevents reads what engines publish of their KV caches, for an index that
// knows what they hold: package precise.
//
// vLLM, SGLang and TensorRT-LLM publish batches of events over ZeroMQ, each process (a
// data-parallel rank) on a port of its own. They agree in most and change the rest from
// release to release; this package reads all forms that are known to be out there, and
// counts what it does not know instead of failing. See testdata for one of each.
//
//   - [Subscriber], [Config]: one process's events, from its socket into a [Sink]
//   - [State], [Stats]: how that goes
//   - [Decoder], [Batch]: messages alone, for hosts with a transport of their own
//   - [Topic], [ParseTopic], [RankAddress]: names and ports
//
// A Subscriber numbers what it gets. What is missing it asks for again, where the engine
// has a replay socket; what can't be had costs the knowledge of that process's cache and
// nothing else. It recognises an engine that has restarted, by its numbers or because it
// no longer has what it sent before.
//
// The part of ZeroMQ that is needed, a client of ZMTP 3.0 without encryption, is here and
// not a library's: what comes over the socket is bounded before memory is taken for it.
package kvevents
