package diagnose

// Cause is why a prompt was not found in a cache.
type Cause uint8

// The causes, and what each is about.
const (
	Timestamp      Cause = iota // a date or a time of day has changed
	Identifier                  // a UUID, a hash or another generated name has changed
	Number                      // a number has changed
	Whitespace                  // the same words are wrapped or indented differently
	Reworded                    // words have changed: the template has drifted
	ToolsReordered              // the same tools in another order
	ToolsChanged                // the set of tools has changed
	Inserted                    // messages were inserted before old ones
	Dropped                     // earlier messages are missing
	OtherServer                 // the request went to a server that had not seen the prompt
	Evicted                     // the server had seen it and has evicted it
	OtherModel                  // the conversation continued with another model,
	OtherAdapter                // adapter,
	OtherTenant                 // tenant
	OtherSalt                   // or cache_salt
	causes
)

var names = [causes + 1]struct{ name, advice string }{
	Timestamp:      {"timestamp", "move it behind what stays the same, into the last message of the user"},
	Identifier:     {"identifier", "leave it out, or move it into the last message of the user"},
	Number:         {"number", "move it behind what stays the same, into the last message of the user"},
	Whitespace:     {"whitespace", "make the prompt from one template: white space counts"},
	Reworded:       {"reworded", "make the prompt from one template, and change that seldom"},
	ToolsReordered: {"tools reordered", "sort the tools"},
	ToolsChanged:   {"tools changed", "give the same tools in each request"},
	Inserted:       {"inserted", "append to the conversation instead of changing its middle"},
	Dropped:        {"dropped", "cut the history seldom, and then by much"},
	OtherServer:    {"other server", "affinity is preferred, not guaranteed: see the receipts for why it moved"},
	Evicted:        {"evicted", "more KV cache, more servers, or fewer conversations at once"},
	OtherModel:     {"other model", "stay with one model in a conversation"},
	OtherAdapter:   {"other adapter", "stay with one adapter in a conversation"},
	OtherTenant:    {"other tenant", "stay with one key in a conversation"},
	OtherSalt:      {"other salt", "keep the cache_salt as long as its secrets are the same"},
	causes:         {"unknown", ""},
}

// String returns the cause in lower case.
func (c Cause) String() string { return names[min(c, causes)].name }

// Advice is what to do about it, in a few words.
func (c Cause) Advice() string { return names[min(c, causes)].advice }
