package dialect

import (
	"net/http"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Only requests of known APIs pass, whatever engines have besides, under any prefix.
func TestWhichRequestsPass(t *testing.T) {
	r := newTalk(t).reader
	for _, p := range []string{
		"HEAD /", "GET /models", "POST /responses", "GET /responses/resp_1", "POST /v2/embed", "POST /encode",
		"POST /v1/chat/completions", "POST /base/v1/messages", "POST /tokenize", "POST /generate", "POST /v1/responses", "POST /v1/embeddings",
		"POST /v1/audio/speech", "POST /openai/deployments/start_here/images/generations", "POST /v1/moderations",
		"GET /v1/models", "GET /v1/models/a", "GET /v1/models/a/b", "GET /v1/models/a%2Fb", "GET /v1/models/a%20b", "GET /base/v1/models",
		"GET /v1/responses/resp_1", "DELETE /v1/responses/resp_1", "GET /v1/responses/resp_1/input_items", "POST /v1/responses/resp_1/cancel",
		"GET /v1/responses", "GET /v1/realtime", "CONNECT /v1/realtime",
		"OPTIONS /v1/chat/completions", "OPTIONS /v1/models", "OPTIONS /v1/models/a/b", "OPTIONS /v1/responses/resp_1",
	} {
		method, path := cutMethod(p)
		got, err := r.Allow(method, path)
		require.NoError(t, err, p)
		assert.Equal(t, strings.NewReplacer("%2F", "/", "%20", " ").Replace(path), got)
	}
	for _, p := range []string{
		"POST /sleep", "POST /flush_cache", "GET /flush_cache", "POST /v1/load_lora_adapter", "POST /collective_rpc", "POST /hicache/storage-backend", "POST /invocations",
		"POST /models/load", "POST /v1/models", "GET /v1beta/models", "GET /models/", "HEAD /models", "DELETE /v1/models/m", "GET /slots", "GET /props", "GET /metrics", "GET /health", "GET /kv_event_sources", "GET /version", "GET /", "POST /", "POST /v1/batches",
		"GET /v1/chat/completions", "PUT /v1/chat/completions", "post /v1/chat/completions", "HEAD /v1/models", "OPTIONS /sleep", "OPTIONS /metrics", "OPTIONS *", "POST ",
		"GET /v1/responses/", "GET /v1/responses/a/b", "POST /v1/responses/a", "GET /v1/responses/a/cancel", "POST /v1/responses/a/b/cancel", "PATCH /v1/responses/a", "GET /v1/realtime/x",
		"POST /audio/speech/x", "GET /audio/speech", "POST /v1/chat/completions/", "POST /v1/xchat_completions", "GET /v1/models/",
	} {
		method, path := cutMethod(p)
		_, err := r.Allow(method, path)
		require.ErrorIs(t, err, ErrUnknownPath, p)
		assert.ErrorContains(t, err, ": \""+path+"\"")
	}
}

// Servers find routes in many ways of writing one; only one way passes, even where everything is
// passed on.
func TestPathsHaveOneForm(t *testing.T) {
	everything := newTalkWith(t, Config{Pass: Passes{"/"}}).reader
	for _, path := range []string{
		"/flush_cache%0A", "/flush_cache\n", "/v1/chat/completions%0D%0A", "/%00", "/a%09b", "/a%7F", "/a%C2%85",
		"/sleep%2F", "/v1%2fmodels", "/%2e%2E/x", "/v1/%2E", "/a%252F", "/a%25", "/a%3Bb", "/a;b", "/a%5Cb", "/a\\b", "/a%3Fb", "/a%23b",
		"//v1/chat/completions", "/v1//chat/completions", "/v1/./chat/completions", "/v1/../sleep", "/..", "/.", "/a%zz", "/v1/models/%2e%2e/x", "/v1/models/a%2F..%2Fb", "/v1/models/a;b",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			assert.ErrorIs(t, rig.Err(everything.Allow(method, path)), ErrUnknownPath, "%s %s", method, path)
		}
	}
	for _, path := range []string{"/", "/sleep", "/a/", "/...", "/.well-known/x", "/a%20b", "/%C3%A4", "/v1/models/a%2Fb"} {
		assert.NoError(t, rig.Err(everything.Allow(http.MethodGet, path)), path)
	}
}

func TestPasses(t *testing.T) {
	r := newTalkWith(t, Config{Pass: Passes{"GET /version", "/v1/files/", "POST /v1/batches"}}).reader
	for p, want := range map[string]bool{
		"GET /version": true, "POST /version": false, "GET /version/": false, "GET /version/x": false, "GET /versions": false, "GET /base/version": false, "OPTIONS /version": true,
		"GET /v1/files/": true, "DELETE /v1/files/x/y": true, "GET /v1/files": false, "GET /v1/filesx": false, "OPTIONS /v1/files/x": true,
		"POST /v1/batches": true, "GET /v1/batches": false, "POST /sleep": false,
	} {
		method, path := cutMethod(p)
		_, err := r.Allow(method, path)
		assert.Equal(t, want, err == nil, p)
	}
	for _, bad := range []string{"", "version", "GET version", "GET", "GET ", "get /version", "GET  /version", "GET /a b", " /a", "/a\tb", "/a/../b", "/a%2fb", "/a?b", "//"} {
		assert.Equal(t, "transport.Config.Pass", rig.Field(NewReader(Config{Pass: Passes{"/ok", bad}})), "%q", bad)
	}
}

// What the engine does besides computing a response must not be done twice; of several members
// of the body with a name, engines differ in which they take.
func TestInert(t *testing.T) {
	const (
		chat      = `POST /v1/chat/completions {"messages":[{}]`
		responses = `POST /v1/responses {"input":"x"`
		messages  = `POST /v1/messages {"messages":[{}]`
	)
	w := newTalk(t)
	for request, want := range map[string]bool{
		chat + `}`: true, responses + `}`: true, messages + `}`: true, `POST /v1/completions {"prompt":7}`: true, `POST /tokenize {}`: true,
		`POST /v1/images/edits {}`: true, `POST /v1/audio/speech x`: true, `POST /v1/moderations {}`: true, `POST /v1/images/other {}`: false,
		`POST /v1/responses `: false, `POST /v1/messages `: false, `POST /v1/chat/completions `: true,
		`POST /v1/batches {}`: false, `GET /v1/responses/a `: false, `POST /v1/responses/a/cancel `: false, `GET /v1/realtime `: false,

		responses + `,"tools":[{"type":"function"},{"type":"custom"},{},{"type":null}]}`: true, responses + `,"tools":[{"type":"function"},{"type":"mcp"}]}`: false,
		responses + `,"tools":[{"type":"mcp","type":"function"}]}`: true, responses + `,"tools":[{"type":"function","type":"mcp"}]}`: false,
		responses + `,"tools":[{"type":"mcp"}],"tools":[]}`: false, responses + `,"t\u006fols":[{"typ\u0065":"m\u0063p"}]}`: false, responses + `,"tools":[{"type":"loc\u0061l_shell"}]}`: true,
		messages + `,"tools":[{"name":"a"},{"type":"bash_20250124"},{"type":"computer_1"},{"type":"memory_1"},{"type":"text_editor_1"},{"type":"apply_patch"}]}`: true,
		messages + `,"tools":[{"type":"web_fetch_20250910"}]}`: false, messages + `,"tools":[{"type":"bash"}]}`: false, chat + `,"tools":[{"type":"mcp"}]}`: false,
		messages + `,"mcp_servers":[{}]}`: false, messages + `,"container":"c"}`: false, chat + `,"web_search_options":{}}`: true,
		messages + `,"tools":[{"type":"web_search_20250305"},{"type":"tool_search_tool_regex_20251119"}]}`: true, responses + `,"tools":[{"type":"file_search"}]}`: true,
		responses + `,"tools":[{"type":"namespace","tools":[{"type":"function"}]},{"type":"web_search"}]}`: true, // Codex
		responses + `,"tools":[{"type":"namespace","tools":[{"type":"mcp"}]}]}`:                            false, responses + `,"tools":[{"type":"namespace","tools":[{"type":"namespace"}]}]}`: false,

		responses + `,"store":false}`: true, responses + `,"store":null}`: true, responses + `,"store":true}`: false, responses + `,"store":"yes"}`: false,
		responses + `,"store":true,"store":false}`: false, chat + `,"store":true}`: false,
		responses + `,"background":true}`: false, responses + `,"background":false}`: true, responses + `,"background":1}`: false,
		responses + `,"conversation":"c"}`: false, responses + `,"conversation":{"id":"c"}}`: false, responses + `,"conversation":null}`: true,
		responses + `,"metadata":{"store":true}}`: true,
	} {
		method, rest, _ := strings.Cut(request, " ")
		path, body, _ := strings.Cut(rest, " ")
		assert.Equal(t, want, w.read(Incoming{Method: method, Path: path, Body: []byte(body)}, nil).Inert(), request)
	}
}

// A request about a model goes to a server that has it, whatever its body says; a WebSocket names it
// in its query.
func TestThePathNamesTheModel(t *testing.T) {
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
		{"GET", "/v1/models/llama", "", "", "llama"},
		{"GET", "/v1/models/org/llama", "", "", "org/llama"},
		{"GET", "/gateway/v1/models/llama", "", `{"model":"other"}`, "llama"},
		{"GET", "/v1/models/", "", "", ""},
		{"GET", "/v1/models", "", "", ""},
		{"GET", "/models/m", "", "", ""},
		{"POST", "/v1/models/llama/x", "", `{"model":"other"}`, "other"},
		{"POST", "/v1/chat/completions", "", `{"model":"other"}`, "other"},
		{"POST", "/api/show", "", `{"name":"other"}`, "other"},
		{"POST", "/api/show", "", `{"model":"other","name":""}`, "other"},
	} {
		c := newTalk(t).read(Incoming{Method: x.method, Path: x.path, Query: x.query, Body: []byte(x.body)}, nil)
		assert.Equal(t, x.want, c.Request.Model, x)
		assert.Equal(t, x.want, c.Model(), x)
	}
	for _, name := range []string{strings.Repeat("m", maxName+1), "%ff"} {
		_, err := newTalk(t).reader.Read(Incoming{Method: "GET", Path: "/v1/realtime", Query: "model=" + name, Header: http.Header{}})
		assert.ErrorAs(t, err, new(*endpick.RequestError))
	}
}

func cutMethod(s string) (method, path string) {
	method, path, _ = strings.Cut(s, " ")
	return method, path
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
