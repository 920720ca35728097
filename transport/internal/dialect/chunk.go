package dialect

// chunk is the content of one event of a stream.
type chunk struct {
	// choices says that there is a list of choices; content is the length in bytes
	// of the model's output in all of them: text, reasoning, refusals and tool
	// calls. A role alone is no content.
	choices  bool
	content  int
	any      bool // the list of choices is not empty
	finished bool // a choice has a finish reason
	failed   bool // the engine reports an error
	whole    bool // it is the last event
	// cumulative says that content is that of all events so far. tokens is the
	// number of tokens in the event, if it says so.
	cumulative bool
	tokens     int
	// opening says that the usage is from before the first token, so that its
	// output figures mean nothing.
	opening bool

	delta []byte // of the last choice
	usage []byte // the usage object; nil if absent or null
	// [usageAt, usageEnd) is the usage member, an object or null, with its comma.
	usageAt, usageEnd int
	// more says that there is something other than usage and what every event has.
	more bool
	// timings is the member of that name, if it is present.
	timings []byte
}

// hasContent reports whether the event has output of the model.
func (c *chunk) hasContent() bool { return c.content > 0 || c.tokens > 0 }

// hide hides usage from a client that did not ask for it. An event that the engine sends only
// for usage is dropped, because such clients expect choices. From an event with content, only
// a null is removed: a figure would be there unasked. Timings, which llama.cpp puts into the
// last event, are moved to the previous one, where they would be without usage.
func (c *chunk) hide() edit {
	switch {
	case c.usage == nil:
		return edit{cut: c.usageAt, cutEnd: c.usageEnd, hold: c.finished}
	case !c.any && c.more:
		return edit{cut: c.usageAt, cutEnd: c.usageEnd}
	case !c.any:
		return edit{drop: true, join: c.timings, cut: c.usageAt, cutEnd: c.usageEnd}
	}
	return edit{}
}
