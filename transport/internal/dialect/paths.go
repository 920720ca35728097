package dialect

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/endpick/endpick/internal/check"
)

// ErrUnknownPath: the path belongs to no known API; see transport.ErrUnknownPath.
var ErrUnknownPath = errors.New("transport: unknown path")

// anyID stands for one segment of a path.
const anyID = "*"

// unread are the known requests whose bodies need not be read, by the ends of their paths,
// and whether they do nothing but compute a response.
var unread = [...]struct {
	method, path string
	inert        bool
}{
	{http.MethodPost, "/audio/speech", true},
	{http.MethodPost, "/images/generations", true},
	{http.MethodPost, "/images/edits", true},
	{http.MethodPost, "/images/variations", true},
	{http.MethodPost, "/moderations", true},
	{http.MethodGet, "/api/version", true},
	{http.MethodHead, "/", true}, // with which Ollama's commands begin
	{http.MethodGet, "/responses/" + anyID, false},
	{http.MethodDelete, "/responses/" + anyID, false},
	{http.MethodGet, "/responses/" + anyID + "/input_items", false},
	{http.MethodPost, "/responses/" + anyID + "/cancel", false},
	{http.MethodGet, "/responses", false}, // a WebSocket, like the next
	{http.MethodGet, "/realtime", false},
	{http.MethodConnect, "/realtime", false},
}

// unreadAs is the place of a request in unread; -1: it has none.
func unreadAs(method, path string) int {
	segments := strings.Split(path, "/")
	for i, u := range unread {
		ends := strings.Split(u.path[1:], "/")
		at := len(segments) - len(ends)
		if u.method == method && at > 0 && slices.EqualFunc(segments[at:], ends, func(is, end string) bool { return is == end || end == anyID && is != "" }) {
			return i
		}
	}
	return -1
}

// Passes are the requests to pass on although they belong to no known API; see
// transport.Config.Pass.
type Passes []string

// validate returns an [endpick.ConfigError] for a pattern that is none, or that no request could have.
func (p Passes) validate() error {
	for _, pattern := range p {
		method, path := splitPattern(pattern)
		if strings.HasPrefix(pattern, " ") || strings.ToUpper(method) != method ||
			!strings.HasPrefix(path, "/") || strings.ContainsFunc(path, unicode.IsSpace) || !isPlain(method, path, path) {
			return check.Bad("transport.Config.Pass", "has %q, which is not a plain path, or a method and a path", pattern)
		}
	}
	return nil
}

func (p Passes) has(method, path string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool {
		m, of := splitPattern(pattern)
		return (m == "" || m == method) && (path == of || strings.HasSuffix(of, "/") && strings.HasPrefix(path, of))
	})
}

// splitPattern returns the method, which may be missing, and the path of a pattern.
func splitPattern(pattern string) (method, path string) {
	method, path, found := strings.Cut(pattern, " ")
	if !found {
		return "", method
	}
	return method, path
}

// Allow returns the path of a request that may reach an endpoint, unescaped. The error is
// [ErrUnknownPath]: it belongs to no known API and is not to be passed on, or servers could read
// it in more than one way. They differ in escapes, empty segments, parameters and line ends, and
// some then find routes that clients must not reach.
func (r *Reader) Allow(method, escaped string) (path string, err error) {
	path, err = url.PathUnescape(escaped)
	if err != nil || !isPlain(method, path, strings.ToLower(escaped)) || !r.knows(method, path) {
		return "", fmt.Errorf("%w: %.200q", ErrUnknownPath, escaped)
	}
	return path, nil
}

// isPlain reports whether all servers read a path in the same way.
func isPlain(method, path, escaped string) bool {
	_, isModel := ModelOf(method, path) // has slashes, which clients may escape
	if !isModel && strings.Contains(escaped, "%2f") || strings.Contains(escaped, "%2e") ||
		strings.ContainsFunc(path, func(r rune) bool { return unicode.IsControl(r) || strings.ContainsRune(`%;\?#`, r) }) {
		return false
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return !strings.Contains(path, "//")
}

// knows reports whether a request belongs to a known API, or is to be passed on.
func (r *Reader) knows(method, path string) bool {
	if method == http.MethodOptions { // a browser asks before it sends a request
		return slices.ContainsFunc([]string{http.MethodPost, http.MethodGet, http.MethodDelete}, func(m string) bool { return r.knows(m, path) }) ||
			r.config.Pass.has(method, path)
	}
	_, isModel := ModelOf(method, path)
	_, isList := ListOf(method, path)
	return isModel || isList || apiOf(method, path) != other || unreadAs(method, path) >= 0 || r.config.Pass.has(method, path)
}

// List is a list of models, and how it looks: an object with a list under Key, in which each model
// has an ID.
type List struct{ Path, Key, ID string }

// lists are OpenAI's list, and those of what Ollama has on disk and in memory.
var lists = [...]List{{"/v1/models", "data", "id"}, {"/api/tags", "models", "name"}, {"/api/ps", "models", "name"}, {"/models", "data", "id"}}

// ListOf is the list that a request asks for; false if it asks for something else.
func ListOf(method, path string) (List, bool) {
	for _, l := range lists {
		if method == http.MethodGet && (path == l.Path || l.Path != "/models" && strings.HasSuffix(path, l.Path)) {
			return l, true
		}
	}
	return List{}, false
}

// Others reports whether models that no engine has listed belong there too: those that are known to be
// served, if only their names are, but not those of other engines to what Ollama has on disk.
func (l List) Others(engine string) bool {
	return l.ID == "id" || l.Path == "/api/tags" && (engine == "" || engine == "ollama")
}

// Entry describes a model of which only the name is known. Ollama's command shows twelve digits of a digest.
func (l List) Entry(name string) any {
	if l.ID == "name" {
		none := strings.Repeat("0", 64)
		return map[string]any{"name": name, "model": name, "modified_at": "1970-01-01T00:00:00Z", "size": 0, "digest": none, "details": struct{}{}}
	}
	return map[string]any{ // what OpenAI's clients expect, what vLLM's do, and what Anthropic's do
		"id": name, "object": "model", "created": 0, "owned_by": "endpick", "root": name,
		"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z",
	}
}

// ModelOf is the model that a request asks about, as in GET /v1/models/{model};
// false if there is none.
func ModelOf(method, path string) (model string, ok bool) {
	if method != http.MethodGet {
		return "", false
	}
	_, model, _ = strings.Cut(path, "/v1/models/")
	return model, model != ""
}

// realtimeModel is the model for which a WebSocket is opened, as in GET
// /v1/realtime?model={model}; empty if there is none.
func realtimeModel(method, path, query string) string {
	if method != http.MethodGet && method != http.MethodConnect || !strings.HasSuffix(path, "/realtime") {
		return ""
	}
	values, _ := url.ParseQuery(query) // invalid parts are left out
	return values.Get("model")
}

// clientTools are the kinds of tools that clients are known to run themselves, and datedTools
// the beginnings of those that have a date. A search runs in the engine, but does nothing that
// could not be done twice. Any other kind, such as mcp or code_interpreter, may.
var (
	clientTools = [...]string{"", "function", "custom", "local_shell", "apply_patch", "file_search"}
	datedTools  = [...]string{"bash_", "text_editor_", "computer_", "memory_", "web_search", "tool_search"}
)

// actsOnce reports whether the engine may do something for a list of tools that must not be
// done twice. A namespace is a list with a name, in which there is no other.
func actsOnce(tools []byte, nested bool) bool {
	for e := elementsOf(tools); e.element(); {
		tool := e.value()
		kind := plain(field(tool, "type"))
		if kind == "namespace" && !nested && !actsOnce(field(tool, "tools"), true) {
			continue
		}
		if !slices.Contains(clientTools[:], kind) && !slices.ContainsFunc(datedTools[:], func(begin string) bool { return strings.HasPrefix(kind, begin) }) {
			return true
		}
	}
	return false
}

// Inert reports whether the call is known to do nothing but compute a response, so that
// it may be sent twice: its API does no more, and its body asks the engine neither to run tools
// that do, nor to keep anything. Prompt must have been called before.
func (c *Call) Inert() bool {
	if c.api == other {
		i := unreadAs(c.method, c.path)
		return i >= 0 && unread[i].inert
	}
	if len(c.body) == 0 && (c.api == responses || c.api == messages) {
		return false // the host does not see it: there may be tools that the engine runs
	}
	return !c.acts
}
