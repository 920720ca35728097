// Package prefix tracks which server holds which prefix of a prompt.
//
// Engines keep the KV cache of a prompt in blocks, and reuse it for the next
// prompt that begins the same way. This package identifies blocks by chained
// hashes, so that a hash stands for a block and everything before it. It
// remembers which blocks were routed to which endpoint, and keeps requests
// near their blocks unless the endpoints that hold them are too busy.
//
// Names, by what they are for:
//
//   - blocks of a prompt: [Scope], [AppendTokens], [AppendText]; of a chat:
//     [Hasher]; the secret behind them: [Key]
//   - which endpoint holds them: [Index], a matcher that learns from what was
//     routed and from the cached tokens that engines report
//   - where to send the request: [NewAffinity], the epsilon-greedy gate; package
//     scorer has scorers for the match
//   - why a cache is not hit: package prefix/diagnose
//
// The caller hashes the prompt of each request with the seed of its scope, and
// puts the blocks, the number of tokens that a block stands for, and the
// prompt's length into the request. All requests of a router must be cut in
// the same way: blocks of tokens never match blocks of text. An Index belongs
// to one router, because it knows endpoints by the router's slots.
//
// # What the hashes protect
//
// Hashes depend on a secret [Key]. A client that does not know it can't craft
// prompts that collide with those of others, and so can't displace their blocks
// in an index, or learn about them from where its own requests go. Prompts of
// different models, adapters, tenants or salts never share a block. In any
// case, a collision would only cost a wrong guess of what is cached, never a
// wrong answer.
//
// Hashes do not protect prompts from somebody who has both hashes and key, and
// can test whether a prompt is among them. Nor are they signatures, or safe to
// publish: from hashes and the prompts they belong to, the seed can be
// computed. Protect hashes, and recordings of them, as you would protect the
// prompts.
//
// Sources: BLIS for an index of what the router has sent where, with
// least-recently-used eviction; predicted-latency scheduling for the gate; vLLM
// for chained block hashes; NH of UMAC (Black et al., CRYPTO 1999) and
// polynomial hashing for the hashes themselves.
package prefix
