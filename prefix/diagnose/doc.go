// Package diagnose says why prompts were not found in a cache, and what that cost.
//
// [Explain] goes through the requests that a gateway has recorded. For each, it finds
// the earlier one whose cache entry it could have used, and names what prevented that:
// the place where the prompts diverge, or what happened to the cache.
//
//	cause                  what to do
//	Timestamp, Identifier, it changes with every request and precedes what does not:
//	Number                 move it to the end, into the user's last message
//	Whitespace, Reworded   the template has drifted: build the prompt in one place
//	ToolsReordered         sort the tools
//	ToolsChanged           send all tools in each request, and say at the end which
//	                       to use
//	Inserted, Dropped      append to a conversation instead of changing its middle;
//	                       cut the history rarely and by a lot
//	OtherServer            affinity is preferred, not guaranteed; see the receipts
//	Evicted                the server has forgotten it: more KV cache, or fewer
//	                       conversations per server
//	OtherModel, OtherAdapter, OtherTenant, OtherSalt
//	                       caches are not shared between them
//
// The causes are those of the troubleshooting table of Xerotier's prefix caching, and
// those that only a router sees.
//
// # What is counted
//
// Lost tokens are those that an engine computed although it, or another engine, had
// computed them before, for a prompt that was identical up to there except for what is
// blamed. The engine's own figures are used where there are any: the length of an
// earlier prompt with its answer, and the cached tokens. A place within a prompt is
// converted to tokens in proportion to its bytes. Everything is rounded down to the
// blocks of the engine's cache, of 16 tokens or, if cached tokens show that, fewer.
// Losses below Config.MinTokens in one request don't count.
//
// A value that changes is only blamed if something constant follows it, and never in
// the last message of the user or of a tool, where it belongs.
//
// Money is tokens × price × (1 − multiplier): what would have been saved.
package diagnose
