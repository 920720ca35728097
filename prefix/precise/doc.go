// Package precise knows which prefix blocks engines hold because the engines say
// so.
//
// vLLM, SGLang and TensorRT-LLM can publish what enters and leaves their KV caches.
// An [Index] takes these events in, and matches prompts against them; it takes the
// place of a [prefix.Index] in a policy and contains one, for endpoints that
// publish nothing and for prompts of which only the text is known.
//
// Names, by what they are for:
//
//   - the matcher: [Index], [New], [Config], [LoadCosts]
//   - what engines say: [Event], [Hash], [Tier], [Spec]; module kvevents reads them off the wire
//   - who says it: [Feed], one for each engine process, [Knowledge]
//   - looking in: [Index.Lookup], [Index.Stats]
//
// # What the caller does
//
// Events name blocks by token ids, so prompts must be cut from the engine's own
// token ids too, and say so (Request.Exact); others are matched approximately. A feed
// is given the scope that the host hashes prompts with: the model's name and the key,
// to which the adapter and the salt of each event are added. Blocks of events without a
// salt are in the scope of no tenant: engines share them among all their users. A host
// that keeps its tenants apart gives each a salt in the engine too (cache_salt), or its
// tenants will find out from the time of the first token what others have asked; see
// [FeedConfig].
//
// # What counts
//
// A match is a head without gaps, in whole blocks of the engine. Blocks in GPU memory
// count whole; those that have to be loaded from elsewhere count for what loading them
// saves of computing them, see [LoadCosts]. Of a model whose layers are of several kinds
// the head ends where all kinds can go on: sliding windows need the window before it,
// recurrent layers the state at it.
//
// What has been routed to an endpoint counts from that moment, and until its events must
// have come: the first token is out, and [Config].Grace has passed. So the second of two
// requests with the same head is sent after the first.
package precise
