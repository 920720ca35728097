// Package precise knows which prefix blocks engines hold, because the engines report it.
//
// vLLM, SGLang and TensorRT-LLM can publish what enters and leaves their KV caches. An Index
// receives these events, and matches prompts against them. It replaces a prefix.Index in a
// policy, and contains one for endpoints that publish nothing and for prompts of which only the
// text is known.
//
// Names, by what they are for:
//
//   - the matcher: [Index], [New], [Config]
//   - what engines say: [Event], [Hash], [Tier], [Spec]; module kvevents reads them off the wire
//   - who says it: [Feed], one for each engine process, [Knowledge]
//   - looking in: [Index.Stats]
//
// # What the caller does
//
// Events name blocks by token ids, so prompts must be cut from the engine's own token ids too,
// and say so (Request.Exact); others are matched approximately. A feed is given the scope that
// the host hashes prompts with: the model's name and the key, to which the adapter and the salt
// of each event are added. Blocks of events without a salt are in the scope of no tenant,
// because engines share them among all their users. A host that isolates its tenants gives each
// of them a salt in the engine too (cache_salt); otherwise tenants can find out from the time to
// first token what others have asked; see FeedConfig.
//
// # What counts
//
// A match starts at the beginning of the prompt, has no gaps, and consists of whole blocks of
// the engine. Blocks in GPU memory count fully; blocks that have to be loaded from elsewhere
// count for the time that loading saves over computing, see Config.LoadCost. For a model with several
// kinds of layers, the match ends where all kinds can continue: sliding windows need the window
// before that point, recurrent layers the state at it.
//
// What requests under way need counts from when they are routed until they end, as the approximate
// index knows it. So the second of two requests with the same beginning follows the first.
package precise
