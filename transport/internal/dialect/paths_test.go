package dialect

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

func TestAdministrationIsForbidden(t *testing.T) {
	for _, p := range []string{
		"POST /sleep", "POST /wake_up", "POST /reset_prefix_cache", "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter", "POST /collective_rpc", "POST /start_profile", "GET /is_sleeping",
		"POST /flush_cache", "GET /flush_cache", "POST /update_weights_from_disk", "POST /release_memory_occupation", "POST /abort_request", "GET /get_server_info", "POST /update_weights",
		"GET /slots", "POST /slots/0", "POST /props", "GET /lora-adapters", "POST /models/load", "POST /models", "DELETE /models", "GET /cors-proxy", "OPTIONS /slots", "OPTIONS /sleep", "POST /base/sleep/", "POST //sleep", "POST /Sleep", "POST /x\\sleep", "POST /sleep;a=1",
		"POST /v1//load_lora_adapter", "POST /v1/./load_lora_adapter", "POST /v1/.;x/load_lora_adapter", "POST /v1/files/..;/load_lora_adapter", "POST /v1/v1/load_lora_adapter",
		"POST /base/v1/load_lora_adapter", "POST /engine/load_lora_adapter", "POST /v1/models/load", "POST /v1/models/unload", "POST /models/unload", "POST /v1beta/sleep", "GET /sleep/x",
		"POST /hicache/storage-backend", "POST /send_weights_to_remote_instance",
	} {
		method, path := cutMethod(p)
		err := (&Config{}).allows(method, path)
		require.ErrorIs(t, err, ErrForbidden, p)
		assert.ErrorContains(t, err, ": "+path)
		assert.NoError(t, (&Config{AllowAdministration: true}).allows(method, path))
		_, err = mustReader(t, Config{}).Read(Incoming{Method: method, Path: path, Header: http.Header{}})
		assert.ErrorIs(t, err, ErrForbidden)
	}
	for _, p := range []string{
		"GET /props", "GET /health", "GET /metrics", "GET /v1/models", "POST /v1/chat/completions", "GET /version", "POST /asleep", "POST /v1/batches", "GET /v1/responses/resp_sleep", "GET /models",
		"GET /v1/files/load_x", "DELETE /v1/files/start_me/content", "GET /v1/files/sleep", "POST /v1/files/unload_x", "GET /v1/models/load_test", "GET /v1/models/load", "GET /v1/models/sleep/pause",
		"POST /v1/fine_tuning/jobs/ft_1/pause", "POST /v1/fine_tuning/jobs/ft_1/resume", "POST /base/v1/vector_stores/workers/search", "POST /v1/responses/stop_1/cancel", "GET /v1beta/files/slots",
		"POST /openai/deployments/start_here/images/generations", "OPTIONS /openai/deployments/start_here/audio/speech",
		"OPTIONS /v1/models", "OPTIONS /props", "OPTIONS /v1/chat/completions", "OPTIONS /v1/x",
	} {
		method, path := cutMethod(p)
		assert.NoError(t, (&Config{}).allows(method, path), p)
	}
}

// Some servers find a route although a line's end follows it.
func TestControlCharactersAreForbidden(t *testing.T) {
	for _, path := range []string{"/flush_cache\n", "/flush_cache\r\n", "/v1/chat/completions\n", "/\x00", "/a\tb"} {
		for _, c := range []Config{{}, {AllowAdministration: true}} {
			assert.ErrorIs(t, c.allows(http.MethodPost, path), ErrForbidden, "%q", path)
		}
	}
}

func TestUnknownPathsAreDeniedIfAskedFor(t *testing.T) {
	deny := &Config{DenyUnknown: true}
	for _, p := range []string{"GET /metrics", "GET /props", "POST /v1/batches", "GET /", "DELETE /v1/models/m", "GET /v1/chat/completions", "OPTIONS /metrics", "OPTIONS /v1/batches"} {
		method, path := cutMethod(p)
		assert.ErrorIs(t, deny.allows(method, path), ErrUnknownPath, p)
	}
	for _, p := range []string{"POST /v1/messages", "POST /tokenize", "GET /v1/models", "GET /v1/models/a/b", "GET /v1/responses/resp_1", "POST /v1/responses/resp_1/cancel", "POST /v1/responses",
		"OPTIONS /v1/messages", "OPTIONS /v1/models", "OPTIONS /v1/models/a/b", "OPTIONS /v1/responses/resp_1", "OPTIONS /v1/responses",
	} {
		method, path := cutMethod(p)
		assert.NoError(t, deny.allows(method, path), p)
	}
	assert.ErrorIs(t, deny.allows("POST", "/sleep"), ErrForbidden)
}

func TestModelsOfWebSockets(t *testing.T) {
	for _, x := range []struct{ method, path, query, body, want string }{
		{"GET", "/v1/realtime", "model=m", "", "m"},
		{"GET", "/openai/realtime", "api-version=1&model=a%2Fb+c", "", "a/b c"},
		{"CONNECT", "/v1/realtime", "model=m", "", "m"},
		{"GET", "/v1/realtime", "model=m&model=n", "", "m"},
		{"GET", "/v1/realtime", "a=%zz&model=m&b;c", "", "m"},
		{"GET", "/v1/realtime", "model=", "", ""},
		{"GET", "/v1/realtime", "", "", ""},
		{"GET", "/v1/realtime/x", "model=m", "", ""},
		{"GET", "/v1/files", "model=m", "", ""},
		{"POST", "/v1/realtime", "model=m", "", ""},
		{"POST", "/v1/realtime", "model=m", `{"model":"n"}`, "n"},
		{"GET", "/v1/models/x/realtime", "model=m", "", "x/realtime"},
	} {
		c, err := mustReader(t, Config{}).Read(Incoming{Method: x.method, Path: x.path, Query: x.query, Header: http.Header{}, Body: []byte(x.body)})
		require.NoError(t, err, x)
		assert.Equal(t, x.want, c.Request.Model, x)
		assert.Equal(t, x.want, c.Model(), x)
	}
	for _, name := range []string{strings.Repeat("m", maxName+1), "%ff"} {
		_, err := mustReader(t, Config{}).Read(Incoming{Method: "GET", Path: "/v1/realtime", Query: "model=" + name, Header: http.Header{}})
		assert.ErrorAs(t, err, new(*endpick.RequestError))
	}
}

func cutMethod(s string) (method, path string) {
	for i := range s {
		if s[i] == ' ' {
			return s[:i], s[i+1:]
		}
	}
	return "", s
}

func mustReader(t testing.TB, c Config) *Reader {
	r, err := NewReader(c)
	require.NoError(t, err)
	return r
}

func TestProblemsHaveTheShapeOfTheirAPI(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/messages":              `{"type":"error","error":{"type":"not_found_error","message":"no"}}`,
		"/v1/messages/count_tokens": `{"type":"error","error":{"type":"not_found_error","message":"no"}}`,
		"/v1/chat/completions":      `{"error":{"message":"no","type":"invalid_request_error","param":"model","code":"404"}}`,
		"/v1/responses":             `{"error":{"message":"no","type":"invalid_request_error","param":"model","code":"404"}}`,
		"":                          `{"error":{"message":"no","type":"invalid_request_error","param":"model","code":"404"}}`,
	} {
		assert.JSONEq(t, want, string(Problem{Status: 404, Message: "no", Param: "model"}.Body(path)), path)
	}
	for status, want := range map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 413: "request_too_large", 429: "rate_limit_error",
		422: "invalid_request_error", 499: "api_error", 500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
	} {
		assert.Contains(t, string(Problem{Status: status}.Body("/v1/messages")), `"type":"`+want+`"`, status)
	}
	assert.Equal(t, `{"error":{"message":"","type":"api_error","param":null,"code":"502"}}`, string(Problem{Status: 502}.Body("/")), "in this order")
	assert.Equal(t, `{"type":"error","error":{"type":"api_error","message":"no"}}`, string(Problem{Status: 502, Message: "no"}.Body("/v1/messages")))
	assert.Contains(t, string(Problem{Status: 499}.Body("/")), "api_error")
	assert.Contains(t, string(Problem{Status: 429}.Body("/")), "rate_limit_error")
}
