// Package engine models one LLM inference server (continuous batching, chunked
// prefill, paged KV cache with prefix caching, as in vLLM v1) as a state machine
// without I/O, goroutines or a clock of its own.
//
// The driver owns the time. It is a [time.Duration] since an epoch of the driver's
// choice, never decreases, and stays below [MaxTime]. A simulator jumps from
// [Engine.NextEvent] to NextEvent; a server on the wall clock calls [Engine.Advance]
// at [Engine.StepEnd] and asks [Engine.Running] how many tokens each sequence has
// produced.
//
// An index of names:
//
//   - [Config], [New], [Engine]: what a server is made of, and one of them
//   - [Profile], [ProfileByName], [ProfileNames]: the time of a step on real hardware
//   - [Request], [Engine.Submit], [Engine.Abort]: work comes and goes
//   - [Engine.Advance], [Event], [Engine.NextEvent], [Engine.StepEnd]: time passes
//   - [Engine.Load], [Engine.Totals]: what a /metrics page would say
//   - [Engine.CacheEvents]: what KV-cache events would say
//
// # The model
//
// A step runs one batch: one token of every decoding sequence first, then chunks of
// prompts in order of arrival as far as the token budget, the sequence limit and the
// free KV blocks allow; with [Config].PrefillFirst, only prompts as long as there are
// any. The first token of a request appears at the end of the step that completes its
// prefill. When no block is free, the sequence that was admitted last loses its blocks
// and returns to the head of the queue (preemption by recompute).
//
// Full blocks with a known hash stay cached after their sequence ends and are evicted
// least recently used first, the end of a sequence before its head. A block of a
// prompt can be shared as soon as its chunk is scheduled, a generated block from the
// end of its sequence on. A block that a second sequence computes again is merged with
// the cached one.
//
// Runs of pure decode steps are advanced in closed form: their time is a quadratic in
// the number of steps. All arithmetic is in whole picoseconds, so that the closed form
// equals the sum of the steps exactly, and the same calls give the same bytes on every
// platform.
//
// An Engine is not safe for concurrent use.
package engine
