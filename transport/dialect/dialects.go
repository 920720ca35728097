package dialect

import (
	"net/http"
	"strings"
)

// A dialect is what is particular to one API. Each has a file of its own, and a
// line in the table of dialects.
type dialect struct {
	// paths are how the paths of its requests end; a gateway may have put
	// something before. Where several dialects match, the longest end counts.
	paths []string
	// place is where a member of the request's object is kept that only some
	// dialects have; nil: it is not looked at.
	place func(c *call, key []byte) *[]byte
	// hasPrompt reports whether the members that were found may be a prompt.
	// A request without one is passed on without being understood.
	hasPrompt func(c *call) bool
	// prompt reads the prompt, and returns false if it turns out to be none.
	prompt func(p *promptReader) bool
	// options says that usage in a stream is asked for by stream_options.
	options bool
	// event reads the data of an event of its streams.
	event func(data []byte) chunk
}

// api is one of the APIs that are understood.
type api uint8

const (
	other api = iota // passed on without being understood
	chat
	completion
)

var dialects = [...]dialect{
	chat:       chatDialect,
	completion: completionDialect,
}

// apiOf tells from method and path.
func apiOf(method, path string) api {
	if method != http.MethodPost {
		return other
	}
	found, longest := other, 0
	for i := range dialects {
		for _, end := range dialects[i].paths {
			if len(end) > longest && strings.HasSuffix(path, end) {
				found, longest = api(i), len(end)
			}
		}
	}
	return found
}
