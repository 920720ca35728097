// Package prefix tracks which server holds which prefix of a prompt.
//
// Engines keep the KV cache of a prompt in blocks, and reuse it for the next
// prompt that begins the same way. This package names blocks by chained
// hashes, so that a hash stands for a block and everything before it;
// remembers which blocks were routed to which endpoint; and keeps requests
// near their blocks unless the endpoints that hold them are too busy.
//
// Names, by what they are for:
//
//   - blocks of a prompt: [Scope], [AppendTokens], [AppendText], [AppendChat],
//     [Hasher]; the secret behind them: [Key]
//   - which endpoint holds them: [Index], a matcher that learns from what was
//     routed and from the cached tokens that engines report
//   - where to send the request: [Affinity], the epsilon-greedy gate; package
//     scorer has scorers for the match
//   - why a cache is not hit: [FirstBreak]; in a recording, package prefix/diagnose
//
// The caller hashes the prompt of each request with the seed of its scope, and
// puts the blocks, the number of tokens that a block stands for, and the
// prompt's length into the request. All requests of a router must be cut in
// the same way: tokens for one and text for another are different prompts.
// An Index belongs to one router, because it knows endpoints by the router's
// slots.
//
// # What the hashes protect
//
// Hashes depend on a secret [Key]. A client that does not know it can't make
// prompts that pass for others, and so can't displace their blocks in an index,
// or learn about them from where its own requests go; prompts of two models,
// adapters, tenants or salts have no block in common. A collision would in any
// case cost a wrong guess of what is cached, and never a wrong answer.
//
// They do not protect prompts from those who have hashes and key, and can test
// whether a prompt is among them. Nor are they signatures, or safe to show:
// whoever collects hashes with their prompts can work out the seed. Keep
// hashes, and recordings of them, where the prompts might be.
//
// Sources: BLIS for an index of what the router itself has sent where, 10,000
// blocks for each endpoint, the least recently used forgotten first;
// predicted-latency scheduling for the gate; vLLM for chained block hashes; NH
// of UMAC (Black et al., CRYPTO 1999) and polynomials for the hashes
// themselves.
package prefix
