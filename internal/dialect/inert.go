package dialect

import (
	"net/http"
	"slices"
	"strings"
)

// inert are how paths end of APIs that are not read, and are known to compute a response
// and to do nothing else.
var inert = [...]string{"/audio/speech", "/images/generations", "/images/edits", "/images/variations", "/moderations"}

// isInert reports whether a request is one of those.
func isInert(method, path string) bool {
	return method == http.MethodPost && slices.ContainsFunc(inert[:], func(end string) bool { return strings.HasSuffix(path, end) })
}

// Inert reports whether the call is known to do nothing but compute a response, so that
// it may be sent twice: its API says so, and the engine runs no tools for it. Prompt has
// been called before.
func (c *Call) Inert() bool {
	switch kind := apiOf(c.method, c.path); {
	case kind == other:
		return isInert(c.method, c.path)
	case kind != responses && kind != messages:
		return true // the tools of others are their clients' to run
	case c.api == other:
		return false // they can't be read
	}
	e, _ := elementsOf(c.tools)
	for tool, ok := e.next(); ok; tool, ok = e.next() {
		if !clientRuns(text(field(tool, "type"))) {
			return false
		}
	}
	return true
}

// clientRuns reports whether it is known that clients run a kind of tools themselves. A
// tool of any other kind, such as mcp or code_interpreter, does what it does in the engine.
func clientRuns(kind string) bool {
	switch kind {
	case "", "function", "custom", "local_shell", "apply_patch":
		return true
	}
	for _, of := range [...]string{"bash_", "text_editor_", "computer_", "memory_"} { // with a date
		if strings.HasPrefix(kind, of) {
			return true
		}
	}
	return false
}
