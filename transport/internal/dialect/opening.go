package dialect

// Opening reads the beginning of a response, which the client need not see yet: until then, the
// request can still go to another endpoint. A stream begins when it says something instead of
// announcing that something will come, as a role, response.created, a ping or a comment do; JSON
// when it is whole.
type Opening struct {
	response
	filter  eventFilter
	decided bool
	over    bool // the stream has ended

	isJSON bool
	finder usageFinder
}

// Opening returns a reader of the beginning of a response; nil if nothing is known of its format.
func (c *Call) Opening(contentType string) *Opening {
	o := &Opening{response: response{api: c.api}, isJSON: contentType == "application/json"}
	o.filter.inspect, o.filter.lines = o.event, c.api.lines
	if !(o.isJSON && c.api != other || IsStream(contentType) && c.api.lines == (contentType == lineStream) && c.api.event != nil) {
		return nil
	}
	return o
}

// HasEvents reports whether the response is to be a stream of server-sent events.
func (c *Call) HasEvents() bool { return c.stream && c.api.event != nil && !c.api.lines }

// Feed reads the next piece, and reports whether the client should see all this now.
func (o *Opening) Feed(piece []byte) bool {
	if o.isJSON {
		o.finder.write(piece)
		return o.finder.whole
	}
	o.filter.feed(nil, piece)
	o.decided = o.decided || o.filter.skipped
	return o.decided
}

// IsStream reports whether the response is a stream.
func (o *Opening) IsStream() bool { return !o.isJSON }

// Idles reports whether there were only signs of life so far, for which the client may be waiting.
func (o *Opening) Idles() bool { return !o.isJSON || o.finder.depth == 0 }

// Ends says that the response has ended cleanly, and reports whether it broke off all the same: in
// the middle of an object, or after it had announced something.
func (o *Opening) Ends() bool {
	if o.isJSON {
		return o.finder.depth > 0
	}
	o.over = true
	o.filter.end(nil)
	return !o.decided && o.wasCut()
}

func (o *Opening) event(data []byte) edit {
	if o.decided = o.decided || o.filter.skipped; o.decided {
		return edit{drop: true}
	}
	o.read(data, o.filter.isError)
	d := &o.data
	o.decided = o.failed || d.adds() || o.state == whole ||
		!d.known && !o.over || // the last may be half of one
		field(data, "prompt_progress") != nil // for the client to see before the first token
	return edit{drop: true}
}

// Fails reports whether a response with the status 200 begins with an error, or is one: some
// engines, and routers before them, say so in an event or in an object.
func (c *Call) Fails(contentType string, first []byte) bool {
	o := c.Opening(contentType)
	switch {
	case o == nil:
		return c.api != other && contentType == "text/html" // a page of a proxy
	case o.isJSON:
		readChunk(&o.response, first) // errors are alike in all APIs, and ends of choices in whole responses
	case !o.Feed(first):
		o.Ends()
	}
	return o.failed
}
