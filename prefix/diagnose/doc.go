// Package diagnose says why prompts were not found in a cache, and what that cost.
//
// [Explain] goes through the requests that a gateway has recorded. For each, it finds
// the earlier one whose cache entry it could have used, and names what prevented that: the
// place where the prompts diverge, or what happened to the cache. Package sketch writes into a
// recording what this needs to know of a prompt, without the text.
//
// Lost tokens are those that an engine computed although it, or another engine, had
// computed them before, for a prompt that was identical up to there except for what is
// blamed. They are estimated: a place in a prompt is converted to tokens by its bytes, and
// rounded down to whole blocks (Config.BlockTokens). What was computed as an answer does not count, nor do
// losses below Config.MinTokens in one request. Money is tokens × price × (1 − multiplier).
//
// A value that changes is only blamed if something constant follows it, and never in
// the last message of the user or of a tool, where it belongs.
//
// Sources: the causes are those of the troubleshooting table of Xerotier's prefix caching,
// and those that only a router sees.
package diagnose
