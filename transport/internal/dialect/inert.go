package dialect

import (
	"net/http"
	"slices"
	"strings"
)

// inert are path suffixes of APIs that are not parsed but are known to do nothing but
// compute a response.
var inert = [...]string{
	"/audio/speech", "/images/generations", "/images/edits", "/images/variations", "/moderations",
}

// isInert reports whether a request belongs to one of these APIs.
func isInert(method, path string) bool {
	isEnd := func(end string) bool { return strings.HasSuffix(path, end) }
	return method == http.MethodPost && slices.ContainsFunc(inert[:], isEnd)
}

// Inert reports whether the call is known to do nothing but compute a response, so that
// it may be sent twice: its API does no more, and the engine runs no tools for it.
// Prompt must have been called before.
func (c *Call) Inert() bool {
	switch kind := apiOf(c.method, c.path); {
	case kind == other:
		return isInert(c.method, c.path)
	case kind != responses && kind != messages:
		return true // clients run the tools of other APIs
	case c.api == other:
		return false // the tools can't be parsed
	}
	for e := elementsOf(c.parts[toolsPart]); e.element(); {
		if !clientRuns(plain(field(e.value(), "type"))) {
			return false
		}
	}
	return true
}

// clientRuns reports whether clients are known to run this kind of tool themselves. Any
// other kind, such as mcp or code_interpreter, runs in the engine.
func clientRuns(kind string) bool {
	switch kind {
	case "", "function", "custom", "local_shell", "apply_patch":
		return true
	}
	for _, of := range [...]string{"bash_", "text_editor_", "computer_", "memory_"} { // followed by a date
		if strings.HasPrefix(kind, of) {
			return true
		}
	}
	return false
}
