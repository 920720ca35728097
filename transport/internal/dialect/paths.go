package dialect

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"unicode"
)

// Why a path is refused, for errors.Is.
var (
	// ErrForbidden: the path administers an engine; see transport.ErrForbidden.
	ErrForbidden = errors.New("transport: clients may not administer engines")
	// ErrUnknownPath: the path belongs to no known API.
	ErrUnknownPath = errors.New("transport: unknown path")
)

// administration matches segments of paths.
var administration = regexp.MustCompile("(?s)^(" + strings.Join([]string{
	"abort_requests?", "add_worker", "attach_hicache_storage_backend", "begin_weight_update",
	"clear_hicache_storage_backend", "close_session", "collective_rpc", "commit_weights_update",
	"configure_logging", "continue_generation", "cors-proxy", "detach_hicache_storage_backend",
	"flush_cache", "freeze_gc", "get_internal_state", "get_server_info", "get_weights_by_name",
	"get_world_size", "hicache", "is_paused", "is_scaling_elastic_ep", "is_sleeping", "lora-adapters",
	"open_session", "pause", "pause_generation", "release_memory_occupation", "remove_worker",
	"reset_encoder_cache", "reset_mm_cache", "reset_prefix_cache", "resume",
	"resume_memory_occupation", "scale_elastic_ep", "server_info", "set_internal_state",
	"set_trace_level", "sleep", "slots", "slow_down", "update_config", "wake_up", "weights_checker",
	"workers", "(update_weight|init_weight|destroy_weight|send_weight|dump_|load_|unload_|start_|stop_).*",
}, "|") + ")$")

// allows refuses requests that clients may not make.
func (c *Config) allows(method, path string) error {
	if strings.ContainsFunc(path, unicode.IsControl) { // some servers drop a line's end
		return fmt.Errorf("%w: a path with a control character", ErrForbidden)
	}
	sending, reading := method, method
	if method == http.MethodOptions { // a browser asks before it sends a request
		sending, reading = http.MethodPost, http.MethodGet
	}
	known := apiOf(sending, path) != other
	if !known && !(sending == http.MethodPost && inert.MatchString(path)) && !c.AllowAdministration && administers(reading, path) {
		return fmt.Errorf("%w: %s", ErrForbidden, path)
	}
	if c.DenyUnknown && !known && !reads(reading, path) {
		return fmt.Errorf("%w: %s", ErrUnknownPath, path)
	}
	return nil
}

func administers(method, path string) bool {
	// As lenient servers read it.
	path = strings.ToLower(strings.ReplaceAll(path, `\`, "/"))
	reads := method == http.MethodGet || method == http.MethodHead
	const start, version, collection = 0, 1, 2 // the preceding segment
	before := start
	for segment := range strings.SplitSeq(path, "/") {
		segment, _, _ = strings.Cut(segment, ";")
		switch {
		case segment == "", segment == ".":
			continue
		case segment == "..": // to servers that resolve it
			before = start
		case isVersion(segment):
			before = version
		case before == version:
			before = collection
		case before == collection:
			// In /v1/files/load_x and /v1/fine_tuning/jobs/x/pause it names an object or
			// an action on one: engines have their administration at the top level.
			continue
		}
		if segment == "props" && !reads || administration.MatchString(segment) {
			return true
		}
	}
	// The administration of llama.cpp's router.
	return !reads && (strings.HasSuffix(path, "/models") || strings.HasSuffix(path, "/models/load") ||
		strings.HasSuffix(path, "/models/unload"))
}

// isVersion reports whether a segment is that of an API's version, such as v1 or v1beta.
func isVersion(segment string) bool {
	return len(segment) >= 2 && segment[0] == 'v' && segment[1]-'0' < 10
}

// reads reports whether the path belongs to a known request without a prompt: the
// list of models, and stored responses.
func reads(method, path string) bool {
	if IsModelList(method, path) {
		return true
	}
	_, isModel := ModelOf(method, path)
	return isModel || strings.Contains(path, "/v1/responses/")
}

// IsModelList reports whether a request asks for the list of models.
func IsModelList(method, path string) bool {
	return method == http.MethodGet && strings.HasSuffix(path, "/v1/models")
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

// inert matches paths of APIs that are not parsed but are known to do nothing but compute a
// response; clientTools the kinds of tools that clients are known to run themselves, some of
// which have a date. Any other kind, such as mcp or code_interpreter, runs in the engine.
var (
	inert       = regexp.MustCompile("/(audio/speech|images/(generations|edits|variations)|moderations)$")
	clientTools = regexp.MustCompile("^(|function|custom|local_shell|apply_patch|(?s:(bash|text_editor|computer|memory)_.*))$")
)

// Inert reports whether the call is known to do nothing but compute a response, so that
// it may be sent twice: its API does no more, and the engine runs no tools for it.
// Prompt must have been called before.
func (c *Call) Inert() bool {
	switch kind := apiOf(c.method, c.path); {
	case kind == other:
		return c.method == http.MethodPost && inert.MatchString(c.path)
	case kind != responses && kind != messages:
		return true // clients run the tools of other APIs
	case c.api == other:
		return false // the tools can't be parsed
	}
	for e := elementsOf(c.parts[toolsPart]); e.element(); {
		if !clientTools.MatchString(plain(field(e.value(), "type"))) {
			return false
		}
	}
	return true
}
