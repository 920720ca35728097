// Package diagnose says why prompts were not found in a cache, and what that has cost.
//
// [Explain] goes through what a gateway has recorded of its requests, finds for each
// the earlier one whose cache it could have had, and names what kept it from that: the
// place where their prompts part, or what happened to the cache.
//
//	cause                  what to do
//	Timestamp, Identifier, it changes with every request and stands before what does
//	Number                 not: move it behind, into the last message of the user
//	Whitespace, Reworded   the template has drifted: make the prompt in one place
//	ToolsReordered         sort the tools
//	ToolsChanged           give all tools in each request, and say which to use at
//	                       the end
//	Inserted, Dropped      append to a conversation instead of changing its middle;
//	                       cut the history seldom and by much
//	OtherServer            affinity is preferred, not guaranteed; see the receipts
//	Evicted                the server has forgotten it: more KV cache, or fewer
//	                       conversations on a server
//	OtherModel, OtherAdapter, OtherTenant, OtherSalt
//	                       caches are not shared between them
//
// The causes are those of the troubleshooting table of Xerotier's prefix caching, and
// those that a router sees besides.
//
// # What is counted
//
// Tokens are those of a prompt that an engine has computed though it, or another one,
// had computed them before for a prompt that was the same as far as that, but for what
// is blamed. The engine's own figures are taken where they say it: the length of an
// earlier prompt with its answer, and the cached tokens. A place within a prompt is
// turned into tokens in proportion to its bytes. All is rounded down to the blocks of
// the engine's cache, of 16 tokens or, if cached tokens show that, of fewer. What is
// less than Config.MinTokens in one request counts for nothing.
//
// A value that changes is only blamed if something comes after it that does not, and
// never in the last message of the user or of a tool, where it belongs.
//
// Money is tokens × price × (1 − multiplier): what would have been saved.
package diagnose
