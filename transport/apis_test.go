package transport_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request that computes no prompt, such as counting tokens, completes and teaches nothing.
func TestCountingIsNoPrompt(t *testing.T) {
	w := newWorld(t, transport.Config{}, startEngine(t, says("application/json", `{"input_tokens":14}`)).URL)
	_, body := w.ok(t, post(t, "/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`))
	assert.Equal(t, `{"input_tokens":14}`, body)
	assert.Equal(t, endpick.Outcome{Status: endpick.Canceled}, w.outcome(t))
	assert.Equal(t, "completed", w.record(t).Status)
	w.idle(t)
}

const (
	long = "long enough that it fills blocks of its own, and then some more of them, whatever comes before or after it "
	sure = "sure, that is long enough that it fills blocks of its own, and then some more of them, whatever comes before "
)

// The response becomes part of the next turn's prompt and is known once the first
// turn ends: the second turn matches up to the end of the response.
func TestTheNextTurnIsKnown(t *testing.T) {
	const stop = "data: [DONE]\n\n"
	event := func(data string) string { return "data: " + data + "\n\n" }
	message := func(blocks string) string {
		return event(`{"type":"message_start","message":{"id":"msg_1"}}`) + blocks + event(`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}`) + event(`{"type":"message_stop"}`)
	}
	text := event(`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}`) +
		event(`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"sure, "}}`) +
		event(`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"`+sure[6:]+`"}}`)
	thinking := event(`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`) + event(`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}`)
	use := event(`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t1","name":"f","input":{}}}`) +
		event(`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"b\": \"`+long+`\","}}`) +
		event(`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"\"a\":1}"}}`)
	chatTurn := `{"model":"m","messages":[{"role":"user","content":"` + long + `"}`
	messagesTurn := `{"model":"m","system":"x","messages":[{"role":"user","content":"` + long + `"}`
	responsesTurn := `{"model":"m","instructions":"x","input":[{"role":"user","content":"` + long + `"}`
	output := `[{"type":"reasoning","id":"r","summary":[]},{"type":"message","id":"m1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"` + sure + `","annotations":[]}]},{"type":"function_call","id":"f1","call_id":"c1","name":"f","arguments":"{}"}]`
	for name, tc := range map[string]struct {
		path, turn, kind, response string
		back                       string // what the client adds to its next turn
		unknown                    bool
	}{
		"chat": {chatPath, chatTurn, "", delta(`"role":"assistant","content":""`) + delta(`"content":"sure, "`) + delta(`"content":"`+sure[6:]+`"`) + finish + stop,
			`{"role":"assistant","content":"` + sure + `"}`, false},
		"chat, at once": {chatPath, chatTurn, "application/json", `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"` + sure + `","tool_calls":null},"finish_reason":"stop"}]}`,
			`{"role":"assistant","content":"` + sure + `"}`, false},
		"chat, tools": {chatPath, chatTurn, "", delta(`"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]`) + delta(`"tool_calls":[{"index":0,"function":{"arguments":"{\"b\":\"`+long+`\","}}]`) +
			delta(`"tool_calls":[{"index":0,"function":{"arguments":"\"a\":1}"}}]`) + delta(`"tool_calls":[{"index":1,"id":"c2","function":{"name":"g","arguments":"{}"}}]`) + finish + stop,
			`{"role":"assistant","content":"","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"b\":\"` + long + `\",\"a\":1}"}},{"id":"c2","function":{"name":"g","arguments":"{}"}}]}`, false},
		"chat, reasoning": {chatPath, chatTurn, "", delta(`"reasoning_content":"hm"`) + delta(`"content":"`+sure+`"`) + finish + stop, `{"role":"assistant","content":"` + sure + `"}`, true},
		"chat, reasoning at once": {chatPath, chatTurn, "application/json", `{"choices":[{"message":{"role":"assistant","reasoning_content":"hm","content":"` + sure + `"}}]}`,
			`{"role":"assistant","content":"` + sure + `"}`, true},
		"two choices": {chatPath, `{"n":2,` + chatTurn[1:], "", delta(`"content":"`+sure+`"`) + finish + stop, `{"role":"assistant","content":"` + sure + `"}`, true},
		"messages":    {"/v1/messages", messagesTurn, "", message(text), `{"role":"assistant","content":[{"type":"text","text":"` + sure + `"}]}`, false},
		"messages, tools": {"/v1/messages", messagesTurn, "", message(thinking + text + use),
			`{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"` + sure + `"},{"type":"tool_use","id":"t1","name":"f","input":{"b":"` + long + `","a":1}}]}`, false},
		"messages, thinking": {"/v1/messages", messagesTurn, "", message(thinking + text), `{"role":"assistant","content":[{"type":"text","text":"` + sure + `"}]}`, true},
		"messages, at once": {"/v1/messages", messagesTurn, "application/json", `{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"` + sure + `"},{"type":"tool_use","id":"t1","name":"f","input":{}}]}`,
			`{"role":"assistant","content":[{"type":"text","text":"` + sure + `"},{"type":"tool_use","id":"t1","name":"f","input":{}}]}`, false},
		"responses": {"/v1/responses", responsesTurn, "", event(`{"type":"response.created","response":{"id":"resp_1"}}`) + event(`{"type":"response.completed","response":{"id":"resp_1","output":`+output+`}}`),
			output[1 : len(output)-1], false},
		"responses, at once": {"/v1/responses", responsesTurn, "application/json", `{"id":"resp_1","output":` + output + `}`, output[1 : len(output)-1], false},
	} {
		kind := tc.kind
		first := tc.turn + `]}`
		if kind == "" {
			kind = "text/event-stream"
			first = `{"stream":true,` + first[1:]
		}
		w := newWorld(t, transport.Config{}, startEngine(t, says(kind, tc.response)).URL)
		w.ok(t, post(t, tc.path, first))
		w.ok(t, post(t, tc.path, tc.turn+`,`+tc.back+`,{"role":"user","content":"`+long+`"}]}`))
		w.idle(t)
		prompt, said, next := w.observer.blocks[0], w.observer.said[0], w.observer.blocks[1]
		require.NotEmpty(t, prompt, name)
		if tc.unknown {
			assert.Empty(t, said, name)
			continue
		}
		require.Greater(t, len(said), len(prompt), name)
		require.Greater(t, len(next), len(said), name)
		assert.Equal(t, said, next[:len(said)], name)
	}
}

// The turn after a stored response goes to the server that holds it, and so do
// requests for the response itself; other tenants' requests do not.
func TestStoredResponsesAreFoundAgain(t *testing.T) {
	held := func(id string) handler {
		return says("application/json", `{"id":"resp_`+id+`","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"`+sure+`"}]}],"usage":{"input_tokens":9,"output_tokens":9}}`)
	}
	a, b := startEngine(t, held("a")), startEngine(t, held("b"))
	w := newWorld(t, transport.Config{Describe: func(in *http.Request, body []byte, req *endpick.Request) {
		if req.Tenant = in.Header.Get("X-Team"); req.Tenant == "counting" { // itself, so that its prompts are not hashed
			req.InputTokens = 9
			if !bytes.Contains(body, []byte("previous")) {
				req.Exclude = []string{"B"}
			}
		}
	}}, a.URL)
	turn := func(more string) string { return `{"model":"m","instructions":"x","input":"` + long + `"` + more + `}` }
	w.ok(t, post(t, "/v1/responses", turn("")))
	w.add(t, "B", b.URL) // the first in order, all else being equal
	w.ok(t, post(t, "/v1/responses", turn("")))

	for i, tc := range []struct{ path, method, body, team, want string }{
		{"/v1/responses", "POST", turn(`,"previous_response_id":"resp_a"`), "", "a"},
		{"/v1/responses", "POST", turn(`,"previous_response_id":"resp_b"`), "", "B"},
		{"/v1/responses/resp_a", "GET", "", "", "a"},
		{"/v1/responses/resp_a/cancel", "POST", "", "", "a"},
		{"/v1/responses", "POST", turn(`,"previous_response_id":"resp_a"`), "others", "B"},
		{"/v1/responses", "POST", turn(`,"previous_response_id":"resp_x"`), "", "B"},
		{"/v1/responses", "POST", strings.Replace(turn(`,"previous_response_id":"resp_a"`), `"x"`, `"y"`, 1), "", "a"},
		{"/v1/responses", "POST", turn(`,"tools":[{"type":"function","name":"f"}],"previous_response_id":"resp_a"`), "", "a"},
		{"/v1/responses", "POST", turn(""), "counting", "a"},
		{"/v1/responses", "POST", turn(`,"previous_response_id":"resp_a"`), "counting", "a"},
	} {
		req := rig.Must(http.NewRequest(tc.method, "http://gateway"+tc.path, strings.NewReader(tc.body)))
		req.Header.Set("X-Team", tc.team)
		w.ok(t, req)
		w.idle(t)
		assert.Equal(t, tc.want, w.records[len(w.records)-1].Endpoint, "%d", i)
	}
	said, next := w.observer.said[0], w.observer.blocks[2]
	require.NotEmpty(t, said)
	require.Greater(t, len(next), len(said))
	assert.Equal(t, said, next[:len(said)], "what came before is known")
	assert.Empty(t, w.observer.blocks[6], "in another tenant nothing is")
	assert.Empty(t, w.observer.blocks[8], "nor where the instructions are others")
	assert.Empty(t, w.observer.blocks[9], "or the tools are")
	assert.Equal(t, w.observer.requests[0].Session, w.observer.requests[2].Session)

	require.NoError(t, w.router.Drain("a"))
	w.ok(t, getting("/v1/responses/resp_a"))
	w.idle(t)
	assert.Equal(t, "a", w.records[len(w.records)-1].Endpoint, "it is drained, and has it still")
	require.NoError(t, w.router.Resume("a"))

	// Once the server is gone, the others answer from what they know, even while it
	// still has a request to finish.
	last := rig.Must(w.router.Route(endpick.Request{Exclude: []string{"B"}}))
	require.Equal(t, "a", last.Endpoint().ID)
	require.NoError(t, w.router.Remove("a"))
	w.ok(t, post(t, "/v1/responses", turn(`,"previous_response_id":"resp_a"`)))
	last.Done(endpick.Outcome{})
	w.ok(t, post(t, "/v1/responses", turn(`,"previous_response_id":"resp_a"`)))
}

// A client that reconnects to the stream of a background response, or cancels it, reaches
// the server that computes it.
func TestAResponseThatGoesOnIsFoundAgain(t *testing.T) {
	background := func(id string) handler {
		return func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			if r.URL.Path == "/v1/responses" {
				return hangs("data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_"+id+"\",\"status\":\"queued\"}}\n\n")(w, r, nil)
			}
			fmt.Fprint(w, id)
			return true
		}
	}
	w := newWorld(t, transport.Config{Describe: func(in *http.Request, _ []byte, req *endpick.Request) {
		if in.URL.Path == "/v1/responses" {
			req.Exclude = []string{"a"} // the server for everything else
		}
	}}, startEngine(t, background("a")).URL, startEngine(t, background("b")).URL, startEngine(t, background("c")).URL)
	resp := rig.Must(w.client.Do(post(t, "/v1/responses", `{"model":"m","input":"x","stream":true,"background":true}`)))
	first := make([]byte, 256)
	n := rig.Must(resp.Body.Read(first))
	_, id, _ := strings.Cut(string(first[:n]), "resp_")
	for _, left := range []bool{false, true} {
		if left {
			require.NoError(t, resp.Body.Close())
			w.idle(t)
		}
		for _, path := range []string{"GET ?stream=true&starting_after=0", "GET ", "POST /cancel"} {
			method, rest, _ := strings.Cut(path, " ")
			req := rig.Must(http.NewRequest(method, "http://gateway/v1/responses/resp_"+id[:1]+rest, nil))
			_, body := w.ok(t, req)
			assert.Equal(t, id[:1], body, path)
		}
	}
}

// Where a response is that the gateway has not seen itself, as after a restart, is asked once.
func TestAStoredResponseIsLearned(t *testing.T) {
	lacks := startEngine(t, status(404))
	w := newWorld(t, transport.Config{}, lacks.URL, startEngine(t, says("application/json", `{"id":"resp_1"}`)).URL)
	for range 20 {
		w.ok(t, getting("/v1/responses/resp_1"))
	}
	w.idle(t)
	assert.LessOrEqual(t, lacks.requests.Load(), int64(1))
}

// A client with a wrong key gets the engine's own refusal, not a server failure,
// which it would retry.
func TestRefusedModelsAreRefused(t *testing.T) {
	refuses := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.Header().Set("Content-Type", "application/problem+json")
		return status(401, `{"error":"no `+r.Header.Get("Api-Key")+`"}`)(w, r, nil)
	})
	fails := startEngine(t, status(500))
	gone := nobody()
	for _, tc := range []struct {
		name    string
		engines []string
		status  int
	}{
		{"one refuses", []string{refuses.URL}, 401},
		{"one is gone, another refuses", []string{gone, refuses.URL}, 401},
		{"one refuses, another is gone", []string{refuses.URL, gone}, 401},
		{"one fails", []string{fails.URL}, 500},
		{"one is gone", []string{gone}, 503},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, transport.Config{}, tc.engines...)
			for _, path := range []string{"/v1/models", "/v1/models/m"} {
				req := getting(path)
				req.Header.Set("Api-Key", "x")
				if tc.status == 503 {
					_, _, err := w.do(t, req)
					require.Equal(t, tc.status, transport.StatusOf(err))
					continue
				}
				resp, body := w.gets(t, tc.status, req)
				if tc.status != 401 {
					continue
				}
				assert.Equal(t, `{"error":"no x"}`, body)
				assert.Equal(t, []string{"Bearer"}, resp.Header["Www-Authenticate"])
				assert.Equal(t, []string{"application/problem+json"}, resp.Header["Content-Type"])
				assert.EqualValues(t, len(body), resp.ContentLength)
			}
		})
	}
}

// A page in a browser may read the list if the engine allows that page to.
func TestModelsForBrowsers(t *testing.T) {
	var asked atomic.Int32
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		asked.Add(1)
		if origin := r.Header.Get("Origin"); origin == "http://page" {
			w.Header().Set("Access-Control-Allow-Origin", origin)
			w.Header().Set("Vary", "Origin")
		}
		w.Header().Set("X-Engine", "its own")
		fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
		return true
	})
	w := newWorld(t, transport.Config{}, startEngine(t, status(404)).URL, e.URL)
	for _, path := range []string{"/v1/models", "/v1/models/m"} {
		for _, origin := range []string{"http://page", "http://other"} {
			req := getting(path)
			req.Header.Set("Origin", origin)
			resp, _ := w.ok(t, req)
			if origin == "http://page" {
				assert.Equal(t, []string{origin}, resp.Header["Access-Control-Allow-Origin"])
				assert.Equal(t, []string{"Origin"}, resp.Header["Vary"])
			} else {
				assert.Empty(t, resp.Header["Access-Control-Allow-Origin"])
			}
			assert.Empty(t, resp.Header["X-Engine"])
			assert.Equal(t, []string{"application/json"}, resp.Header["Content-Type"])
		}
	}

	// A page fares no worse where names are known.
	for _, address := range []string{"127.0.0.1:1", e.URL} {
		w = newWorld(t, transport.Config{})
		w.add(t, "d", address, "n")
		for _, origin := range []string{"", "http://page"} {
			asked.Store(0)
			req := getting("/v1/models")
			if origin != "" {
				req.Header.Set("Origin", origin)
			}
			resp, body := w.ok(t, req)
			assert.Contains(t, body, `"id":"n"`)
			assert.NotContains(t, body, `"id":"m"`)
			assert.Equal(t, address == e.URL, asked.Load() == 1)
			assert.Equal(t, origin != "" && address == e.URL, resp.Header.Get("Access-Control-Allow-Origin") == "http://page")
		}
	}
}

func TestModelsAreThoseOfThePool(t *testing.T) {
	var asked atomic.Int32
	lists := func(ids ...string) *engine {
		return startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			asked.Add(1)
			if r.Header.Get("Authorization") == "Bearer bad" {
				return status(401)(w, r, nil)
			}
			var data []string
			for _, id := range ids {
				data = append(data, `{"id":"`+id+`","object":"model","max_model_len":7}`)
			}
			fmt.Fprintf(w, `{"object":"list","data":[%s]}`, strings.Join(data, ","))
			return true
		})
	}
	w := newWorld(t, transport.Config{}, lists("m", "n").URL, lists("n", "o").URL, startEngine(t, status(500)).URL)
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "d", Address: "nowhere:1", Models: []string{"p", "m"}, Adapters: []string{"q"}}))
	get := func(authorization string) (*http.Response, []string, error) {
		req := getting("/v1/models")
		req.Header.Set("Authorization", authorization)
		resp, body, err := w.do(t, req)
		if err != nil {
			return nil, nil, err
		}
		var list struct {
			Object  string
			Data    []struct{ ID, Object string }
			HasMore *bool `json:"has_more"`
		}
		require.NoError(t, json.Unmarshal([]byte(body), &list), body)
		assert.Equal(t, "list", list.Object)
		assert.NotNil(t, list.HasMore)
		var ids []string
		for _, m := range list.Data {
			assert.Equal(t, "model", m.Object)
			ids = append(ids, m.ID)
		}
		return resp, ids, nil
	}
	_, ids, err := get("Bearer x")
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"m", "n", "o", "p", "q"}, ids)
	assert.EqualValues(t, 2, asked.Load())
	_, others, _ := get("Bearer bad")
	assert.ElementsMatch(t, []string{"m", "p", "q"}, others, "an answer is for who has asked")
	require.NoError(t, w.router.Remove("d"))
	_, _, err = get("Bearer bad again")
	require.NoError(t, err)
	for _, id := range []string{"a", "b", "c"} {
		require.NoError(t, w.router.Remove(id))
	}
	_, _, err = get("Bearer y")
	assert.Equal(t, 503, transport.StatusOf(err))
	assert.Empty(t, w.records, "no endpoint was chosen")
}

// A model served only by an endpoint that is removed, and merely finishes its requests, is not
// listed.
func TestModelsOfWhoIsGoneAreNotListed(t *testing.T) {
	w := newWorld(t, transport.Config{}, startEngine(t, says("application/json", `{"object":"list","data":[{"id":"m"}]}`)).URL)
	w.add(t, "d", "nowhere:1", "p")
	lease := rig.Must(w.router.Route(endpick.Request{Model: "p", Exclude: []string{"a"}}))
	require.NoError(t, w.router.Remove("d"))
	_, body := w.ok(t, getting("/v1/models"))
	assert.Contains(t, body, `"id":"m"`)
	assert.NotContains(t, body, `"id":"p"`)
	require.NoError(t, w.router.Remove("a"))
	_, _, err := w.do(t, getting("/v1/models"))
	assert.Equal(t, 503, transport.StatusOf(err), "nobody else is there")
	lease.Done(endpick.Outcome{})
}

// The header of an answer is its client's: what is done to it changes no other answer.
func TestAnswersAboutModelsShareNothing(t *testing.T) {
	list, refused := says("application/json", `{"data":[{"id":"m"}]}`), status(401)
	for path, address := range map[string]string{"/v1/models": startEngine(t, list).URL, "/v1/models/m": startEngine(t, list).URL, "/v1/models/n": startEngine(t, refused).URL} {
		w := newWorld(t, transport.Config{}, address)
		w.add(t, "z", "nowhere:1", "p")
		for range 2 {
			resp, _, err := w.do(t, getting(path))
			require.NoError(t, err)
			assert.Empty(t, resp.Header.Get("X-Mine"), path)
			assert.NotEmpty(t, resp.Header.Get("Content-Length"), path)
			resp.Header.Set("X-Mine", "1")
			resp.Header.Del("Content-Length")
		}
	}
}

// At most 64 engines are asked for their models, for at most five seconds.
func TestListsOfModelsDoNotTakeForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		var well atomic.Int64 // how many answer
		w := newWorld(t, transport.Config{Base: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
			asked.Add(1)
			if well.Add(-1) >= 0 {
				return answered(200, "", `{"data":[{"id":"m"}]}`)
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		})})
		for i := range 70 {
			w.add(t, fmt.Sprint("e", i), fmt.Sprint("e", i))
		}
		start := time.Now()
		_, _, err := w.do(t, getting("/v1/models"))
		assert.Equal(t, 504, transport.StatusOf(err))
		assert.Equal(t, 5*time.Second, time.Since(start))
		assert.EqualValues(t, 64, asked.Load())
		for n, takes := range map[int64]time.Duration{1: time.Second, 64: 0} {
			well.Store(n)
			start = time.Now()
			w.ok(t, getting("/v1/models"))
			assert.Equal(t, takes, time.Since(start), "%d answer", n)
		}
		assert.EqualValues(t, 192, asked.Load())
	})
}

// A list that is incomplete because its client has left is shown to nobody else.
func TestAClientThatLeavesSpoilsNoList(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	var asked atomic.Int64
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		if asked.Add(1) == 1 {
			leave()
			<-r.Context().Done()
		}
		fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		return true
	})
	w := newWorld(t, transport.Config{}, e.URL)
	w.add(t, "z", "nowhere:1", "p")
	req := getting("/v1/models?x=1")
	_, _, err := w.do(t, req.WithContext(ctx))
	require.ErrorIs(t, err, context.Canceled)
	_, body := w.ok(t, req)
	assert.Contains(t, body, `"id":"m"`)
	assert.Contains(t, body, `"id":"p"`)
}

// An engine gets the client's key, whichever header carries it, and the prefix of its path,
// which may lead to another pool behind the engine.
func TestAListOfModelsIsForItsPath(t *testing.T) {
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		fmt.Fprintf(w, `{"data":[{"id":%q}]}`, fmt.Sprint(r.URL.String(), " ", r.Header["Authorization"], r.Header["X-Api-Key"], r.Header["X-Goog-Api-Key"]))
		return true
	})
	w := newWorld(t, transport.Config{}, e.URL)
	for path, header := range map[string]http.Header{
		"/v1/models":         {"X-Api-Key": {"a"}},
		"/ann/v1/models":     {"Authorization": {"b", "c"}},
		"/bob/v1/models?x=1": {"X-Goog-Api-Key": {"e"}},
	} {
		req := getting(path)
		req.Header = header
		_, body := w.ok(t, req)
		path, _, _ = strings.Cut(path, "?")
		assert.Contains(t, body, fmt.Sprintf(`"id":%q`, fmt.Sprint(path, " ", header["Authorization"], header["X-Api-Key"], header["X-Goog-Api-Key"])))
	}
}

// Clients with ever other keys, whose lists are asked for anew each time, occupy only so
// many of the engines' connections.
func TestListsOfModelsAreAskedForAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open, most atomic.Int64
		w := newWorld(t, transport.Config{Base: rig.RoundTrip(func(*http.Request) (*http.Response, error) {
			if n := open.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(100 * time.Millisecond)
			open.Add(-1)
			return answered(200, "", `{"data":[{"id":"m"}]}`)
		})}, "a", "b", "c")
		var clients sync.WaitGroup
		for i := range 100 {
			clients.Go(func() {
				req := getting("/v1/models")
				req.Header.Set("Authorization", fmt.Sprint("Bearer ", i))
				resp, err := w.t.RoundTrip(req)
				if assert.NoError(t, err) {
					assert.Equal(t, 200, resp.StatusCode)
				}
			})
		}
		clients.Wait()
		assert.EqualValues(t, 64, most.Load())
	})
}

// A request for one model is answered from the merged list of all engines.
func TestOneModelIsFoundInThePool(t *testing.T) {
	list := func(ids ...string) string {
		for i, id := range ids {
			ids[i] = `{"id":"` + id + `","object":"model","max_model_len":7}`
		}
		return startEngine(t, says("application/json", `{"object":"list","data":[`+strings.Join(ids, ",")+`]}`)).URL
	}
	w := newWorld(t, transport.Config{}, list("m"), list("org/n"))
	w.add(t, "d", "nowhere:1", "p")
	for path, want := range map[string]string{
		"/v1/models/m": `{"id":"m","object":"model","max_model_len":7}`, "/v1/models/org/n": `{"id":"org/n","object":"model","max_model_len":7}`,
		"/v1/models/org%2Fn": `{"id":"org/n","object":"model","max_model_len":7}`,
		"/v1/models/p":       `{"id":"p","object":"model","created":0,"owned_by":"endpick","root":"p","type":"model","display_name":"p","created_at":"1970-01-01T00:00:00Z"}`,
	} {
		_, body := w.ok(t, getting(path))
		assert.JSONEq(t, want, body, path)
	}
	for _, path := range []string{"/v1/models/n", "/v1/models/M"} {
		_, _, err := w.do(t, getting(path))
		require.ErrorAs(t, err, new(*endpick.NoEndpointError), path)
		status, _, body := transport.ErrorResponse(path, err)
		assert.Equal(t, 404, status, path)
		assert.Contains(t, string(body), "model_not_found")
	}
	assert.Empty(t, w.records, "no endpoint was chosen")

	// An engine that can't be asked may have the model.
	w = newWorld(t, transport.Config{}, list("m"), startEngine(t, status(500)).URL)
	w.ok(t, getting("/v1/models/m"))
	w.gets(t, 500, getting("/v1/models/n"))
}

// An event too long to inspect is passed on byte for byte. Its contents are
// unknown, but the server that stores the response is not.
func TestALongLastEventIsPassedOn(t *testing.T) {
	output := `[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"` + strings.Repeat("x", 3<<19) + `"}]}]`
	stream := func(id string) string {
		return "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_" + id + "\"}}\n\n" +
			"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"xxxxxxxx\"}\n\n" +
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_" + id + "\",\"output\":" + output + ",\"usage\":{\"input_tokens\":9,\"output_tokens\":9}}}\n\n"
	}
	a, b := startEngine(t, says("text/event-stream", stream("a"))), startEngine(t, says("text/event-stream", stream("b")))
	w := newWorld(t, transport.Config{}, a.URL)
	turn := func(more string) string { return `{"model":"m","stream":true,"input":"` + long + `"` + more + `}` }
	_, body := w.ok(t, post(t, "/v1/responses", turn("")))
	assert.True(t, stream("a") == body, "byte for byte")
	w.idle(t)
	assert.Equal(t, endpick.Outcome{}, w.outcome(t))
	assert.Equal(t, []any{"completed", 2}, []any{w.records[0].Status, w.records[0].OutputTokens}, "as many as were seen to come")
	assert.Empty(t, w.observer.said[0])

	w.add(t, "B", b.URL) // the first in order, all else being equal
	for _, tc := range []struct{ more, want string }{{`,"previous_response_id":"resp_a"`, "a"}, {"", "B"}} {
		w.ok(t, post(t, "/v1/responses", turn(tc.more)))
		w.idle(t)
		assert.Equal(t, tc.want, w.records[len(w.records)-1].Endpoint)
	}
}

func TestErrorsHaveTheShapeOfTheirAPI(t *testing.T) {
	w := newWorld(t, transport.Config{Pass: []string{"/x"}})
	for _, tc := range []struct {
		path   string
		status int
		body   string
	}{
		{"/v1/messages", 503, `{"type":"error","error":{"type":"overloaded_error","message":"no server is available"}}`},
		{"/v1/responses", 503, `{"error":{"message":"no server is available","type":"api_error","param":null,"code":"503"}}`},
		{"/v1/batches", 404, `{"error":{"message":"there is nothing here, or not for this method","type":"invalid_request_error","param":null,"code":"not_found"}}`},
	} {
		in := post(t, tc.path, `{"model":"m","messages":[{}],"input":"x"}`)
		_, _, err := w.do(t, in)
		require.Error(t, err)
		status, header, body := transport.ErrorResponse(tc.path, err)
		assert.Equal(t, tc.status, status)
		assert.JSONEq(t, tc.body, string(body))
		assert.Equal(t, "application/json", header.Get("Content-Type"))
		rec := httptest.NewRecorder()
		transport.ErrorHandler(rec, in, err)
		assert.Equal(t, tc.status, rec.Code)
		assert.JSONEq(t, tc.body, rec.Body.String())
	}
}

// Ollama's lists are merged over the servers: each model once, as its server describes it; what is
// known only by its name is on disk, and no more, unless another engine has it.
func TestListsOfOllama(t *testing.T) {
	lists := func(tags, ps string) handler {
		return func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			page, ok := map[string]string{"/api/tags": tags, "/api/ps": ps}[r.URL.Path]
			if !ok {
				w.WriteHeader(http.StatusNotFound)
			}
			_, _ = w.Write([]byte(page))
			return true
		}
	}
	a := startEngine(t, lists(`{"models":[{"name":"a:latest","size":7},{"name":"b:7b"}]}`, `{"models":[{"name":"a:latest","size_vram":5}]}`))
	b := startEngine(t, lists(`{"models":[{"name":"b:7b"},{"name":"c"}]}`, `{"models":[]}`))
	w := newWorldOf(t, transport.Config{}, endpick.Config{Endpoints: []endpick.Endpoint{
		{ID: "a", Address: a.URL, Models: []string{"a:latest", "a", "b:7b"}}, {ID: "b", Address: b.URL},
		{ID: "o", Address: startEngine(t, status(404)).URL, Models: []string{"old"}},
		{ID: "v", Address: startEngine(t, status(404)).URL, Models: []string{"new"}, Engine: "vllm"}}})
	for path, want := range map[string]string{
		"/api/tags": `[{"name":"a:latest","size":7} {"name":"b:7b"} {"name":"c"} {"details":{},"digest":"` + strings.Repeat("0", 64) + `","model":"old","modified_at":"1970-01-01T00:00:00Z","name":"old","size":0}]`,
		"/api/ps":   `[{"name":"a:latest","size_vram":5}]`,
	} {
		_, body := w.ok(t, getting(path))
		var list struct{ Models []json.RawMessage }
		require.NoError(t, json.Unmarshal([]byte(body), &list))
		assert.Equal(t, want, fmt.Sprintf("%s", list.Models), path)
	}
}

// namedWorld has an engine for each of these models, under its name.
func namedWorld(t *testing.T, config transport.Config, models ...string) (*world, map[string]*engine) {
	engines := map[string]*engine{}
	w := newWorld(t, config)
	for _, m := range models {
		engines[m] = startEngine(t, nil)
		require.NoError(t, w.router.Add(endpick.Endpoint{ID: "at " + m, Address: engines[m].URL, Models: []string{m}}))
	}
	return w, engines
}

// The request that arrives is the client's, but for the model: in any API, and wherever it stands.
func TestANameStandsForAModel(t *testing.T) {
	w, engines := namedWorld(t, transport.Config{Names: map[string]transport.Name{"fast": {Models: []string{`big "1"`}}}}, `big "1"`)
	e := engines[`big "1"`]
	for _, c := range []struct{ path, body string }{
		{chatPath, `{ "messages":[{"role":"user","content":"the model is fast"}], "model" : MODEL , "n":1}`},
		{chatPath, `{"model":"other","messages":[],"model":MODEL}`},
		{chatPath, `{"model":MODEL,"stream":true,"stream_options":{"include_usage":true},"messages":[]}`},
		{"/v1/completions", `{"model":MODEL,"prompt":"x"}`},
		{"/v1/messages", `{"model":MODEL,"max_tokens":5,"messages":[{"role":"user","content":"x"}]}`},
		{"/v1/responses", `{"input":"x","model":MODEL}`},
		{"/v1/embeddings", `{"input":["x"],"model":MODEL}`},
		{"/api/chat", `{"model":MODEL,"messages":[],"stream":false}`},
	} {
		w.ok(t, post(t, c.path, strings.ReplaceAll(c.body, "MODEL", `"f\u0061st"`)))
		assert.Equal(t, strings.ReplaceAll(c.body, "MODEL", `"big \"1\""`), e.lastBody())
	}
	w.ok(t, post(t, chatPath, strings.Replace(chatStream, `"m"`, `"fast"`, 1)))
	assert.Contains(t, e.lastBody(), `"stream_options":{"include_usage":true},"model":"big \"1\"","stream":true`, "usage is asked for as ever")
	assert.Equal(t, `big "1"`, w.records[0].Model)

	var form bytes.Buffer
	f := multipart.NewWriter(&form)
	require.NoError(t, f.WriteField("model", "fast"))
	rig.Must(rig.Must(f.CreateFormFile("file", "a.wav")).Write([]byte("RIFF")))
	require.NoError(t, f.Close())
	w.ok(t, post(t, "/v1/audio/transcriptions", form.String(), "Content-Type", f.FormDataContentType()))
	assert.Equal(t, strings.Replace(form.String(), "\r\nfast\r\n", "\r\nbig \"1\"\r\n", 1), e.lastBody())

	// A form whose parts not everybody would read in the same way is refused.
	odd := strings.Replace(form.String(), "\r\nfast\r\n", "\r\nfast\r\n\r\n", 1)
	_, _, err := w.do(t, post(t, "/v1/audio/transcriptions", strings.Replace(odd, "fast\r\n\r\n", "fast\r\n", 1)+`name="model"`, "Content-Type", f.FormDataContentType()))
	assert.Equal(t, http.StatusBadRequest, transport.StatusOf(err))

	_, list := w.ok(t, getting("/v1/models"))
	assert.Contains(t, list, `"id":"fast"`)
	_, one := w.ok(t, getting("/v1/models/fast"))
	assert.Contains(t, one, `"id":"fast"`)
}

// A WebSocket names its model in the query: the one that it goes to, after it has waited for room at
// either.
func TestANameInTheQuery(t *testing.T) {
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		fmt.Fprint(w, r.URL.RawQuery)
		return true
	})
	w := newWorld(t, transport.Config{Names: map[string]transport.Name{"fast": {Models: []string{"a", "b"}}}})
	var leases []endpick.Lease
	for _, model := range []string{"a", "b"} {
		require.NoError(t, w.router.Add(endpick.Endpoint{ID: model, Address: e.URL, Models: []string{model}, MaxInFlight: 1}))
		leases = append(leases, rig.Must(w.router.Route(endpick.Request{Model: model})))
	}
	got := make(chan string)
	go func() {
		_, body := w.ok(t, getting("/v1/realtime?intent=x&model=fast"))
		got <- body
	}()
	w.held(t, 1)
	leases[0].Done(endpick.Outcome{})
	assert.Equal(t, "intent=x&model=a", <-got)
}

func TestNamesFallBack(t *testing.T) {
	var passed []error
	w, engines := namedWorld(t, transport.Config{
		MaxAttempts: 3, Names: map[string]transport.Name{"best": {Models: []string{"a", "b", "c"}}}, Observe: func(o *transport.Observation) { passed = o.Passed },
	}, "a", "b", "c")
	ask := func() (model string) {
		w.ok(t, post(t, chatPath, fmt.Sprintf(`{"model":"best","messages":[{"role":"user","content":"%d"}]}`, len(w.records))))
		return w.records[len(w.records)-1].Model
	}
	change := func(e endpick.Endpoint) {
		e.ID, e.Address = "at "+e.Models[0], engines[e.Models[0]].URL
		require.NoError(t, w.router.Update(e))
	}
	assert.Equal(t, "a", ask())
	assert.Empty(t, passed)
	require.NoError(t, w.router.Drain("at a"))
	assert.Equal(t, "b", ask())
	require.NoError(t, w.router.Resume("at a"))
	change(endpick.Endpoint{Models: []string{"a"}, MaxContext: 1})
	change(endpick.Endpoint{Models: []string{"b"}, MaxInFlight: 1})
	lease := rig.Must(w.router.Route(endpick.Request{Model: "b"}))
	assert.Equal(t, "c", ask())
	assert.Len(t, passed, 2)
	assert.ErrorAs(t, passed[0], new(*endpick.ContextError))
	assert.ErrorContains(t, passed[1], `model "b": 1 of 3 serve it, 0 excluded, 0 draining, 1 full`)
	assert.Contains(t, engines["c"].lastBody(), `"model":"c"`)
	lease.Done(endpick.Outcome{})
	assert.Equal(t, "b", ask())
	change(endpick.Endpoint{Models: []string{"a"}})
	engines["a"].Close()
	for range 4 {
		assert.Equal(t, "b", ask(), "the attempt at a has failed, or a is out")
	}
	require.NoError(t, w.router.Remove("at b"))
	require.NoError(t, w.router.Remove("at c"))
	_, _, err := w.do(t, post(t, chatPath, `{"model":"best","messages":[]}`))
	assert.Equal(t, http.StatusServiceUnavailable, transport.StatusOf(err))
	require.NoError(t, w.router.Remove("at a"))
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "at b", Address: engines["b"].URL, Models: []string{"b"}}))
	require.NoError(t, w.router.Drain("at b"))
	_, _, err = w.do(t, post(t, chatPath, `{"model":"best","messages":[]}`))
	assert.Equal(t, http.StatusServiceUnavailable, transport.StatusOf(err), "b will be back, though nobody has a or c")
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "at a", Address: engines["a"].URL, Models: []string{"a"}, MaxContext: 1}))
	_, _, err = w.do(t, post(t, chatPath, `{"model":"best","messages":[{"role":"user","content":"long"}]}`))
	assert.Equal(t, http.StatusServiceUnavailable, transport.StatusOf(err), "and has room for it")
	require.NoError(t, w.router.Remove("at a"))
	require.NoError(t, w.router.Remove("at b"))
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "d", Address: "127.0.0.1:1", Models: []string{"d"}}))
	_, _, err = w.do(t, post(t, chatPath, `{"model":"best","messages":[]}`))
	assert.Equal(t, http.StatusNotFound, transport.StatusOf(err))
	assert.ErrorContains(t, err, `there are ["d"]`)
	_, _, err = w.do(t, post(t, chatPath, `{"model":"a","messages":[]}`))
	assert.ErrorContains(t, err, `there are ["best" "d"]`)
	require.NoError(t, w.router.Drain("d"))
	_, _, err = w.do(t, post(t, chatPath, `{"model":"d","messages":[]}`))
	assert.NotContains(t, err.Error(), "best")
}

// A server that has failed the request isn't asked for the next model either.
func TestWhatHasFailedStaysOutForTheNextModel(t *testing.T) {
	bad, good := startEngine(t, status(500)), startEngine(t, nil)
	w := newWorld(t, transport.Config{Names: map[string]transport.Name{"m": {Models: []string{"a", "b"}}}})
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "both", Address: bad.URL, Models: []string{"a", "b"}}))
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "one", Address: good.URL, Models: []string{"b"}}))
	w.ok(t, post(t, chatPath, chatAtOnce))
	assert.EqualValues(t, 1, bad.requests.Load())
}

// A split gives each model its share; conversations stay, whatever has become of the first choice,
// until their model can't be had.
func TestConversationsStayWithTheirModel(t *testing.T) {
	w, engines := namedWorld(t, transport.Config{
		Names:    map[string]transport.Name{"try": {Models: []string{"new", "old", "spare"}, Weights: []float64{1, 3, 0}}},
		Describe: func(in *http.Request, _ []byte, req *endpick.Request) { req.Tenant = in.Header.Get("X-Team") },
	}, "new", "old", "spare")
	turn := func(conversation, more, team string) string {
		w.ok(t, post(t, chatPath, fmt.Sprintf(`{"model":"try","messages":[{"role":"user","content":%q}%s]}`, conversation, more), "X-Team", team))
		return w.records[len(w.records)-1].Model
	}
	const more = `,{"role":"assistant","content":"x"},{"role":"user","content":"more"}`
	first, count := map[string]string{}, map[string]int{}
	for i := range 80 {
		c := fmt.Sprint("conversation ", i)
		first[c] = turn(c, "", "red")
		count[first[c]]++
	}
	assert.InDelta(t, 20, count["new"], 1)
	assert.InDelta(t, 60, count["old"], 1)
	for c, model := range first {
		assert.Equal(t, model, turn(c, more, "red"))
	}
	other := 0
	for c, model := range first {
		if turn(c, "", "blue") != model {
			other++
		}
	}
	assert.Positive(t, other, "another tenant's conversation is another one")

	require.NoError(t, w.router.Drain("at new"))
	for c, model := range first {
		if model == "new" {
			assert.Equal(t, "old", turn(c, more, "red"))
		}
	}
	require.NoError(t, w.router.Resume("at new"))
	for c := range first {
		assert.Equal(t, "old", turn(c, more, "red"), "it has moved, and stays")
	}

	// Another tenant can't move one, with the name of a session made for that, nor does a refusal count.
	names := map[string]transport.Name{"try": {Models: []string{"new", "old"}}}
	require.NoError(t, w.t.SetNames(names))
	clear(names) // it is the host's
	session := func(name, team string) string {
		_, _, err := w.do(t, post(t, chatPath, `{"model":"try","messages":[{"role":"user","content":"x"}]}`, "X-Team", team, "Session-Id", name))
		require.NoError(t, err)
		return w.records[len(w.records)-1].Model
	}
	assert.Equal(t, "new", session("order-17", "red"))
	require.NoError(t, w.router.Drain("at new"))
	assert.Equal(t, "old", session("0004194668UuzD-(", "bad"), "it has the hash of the other, but for a secret")
	assert.Equal(t, "old", session("order-17", "bad"))
	engines["old"].handle = status(400)
	assert.Equal(t, "old", session("refused", "bad"))
	require.NoError(t, w.router.Resume("at new"))
	engines["old"].handle = nil
	assert.Equal(t, "new", session("order-17", "red"))
	assert.Equal(t, "new", session("refused", "bad"))
	require.NoError(t, w.t.SetNames(map[string]transport.Name{"try": {Models: []string{"spare"}}}))
	assert.Equal(t, "spare", turn("conversation 0", more, "red"))
	require.NoError(t, w.t.SetNames(nil))
	_, _, err := w.do(t, post(t, chatPath, `{"model":"try","messages":[]}`))
	assert.Equal(t, http.StatusNotFound, transport.StatusOf(err))
	assert.NotEmpty(t, engines["spare"].lastBody())
}

// The prompts of two models behind one name are different prompts: what one engine has cached, the
// other has not, though one server may have both.
func TestNamesDoNotMixCaches(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{Names: map[string]transport.Name{"x": {Models: []string{"a", "b"}, Weights: []float64{1, 1}}}}, e.URL)
	for i := range 8 {
		w.ok(t, post(t, chatPath, fmt.Sprintf(`{"model":"x","user":"%d","messages":[{"role":"user","content":%q}]}`, i, strings.Repeat("y", 1000))))
	}
	blocks := map[string]string{}
	for _, r := range w.records {
		if first, ok := blocks[r.Model]; ok {
			assert.Equal(t, first, fmt.Sprint(r.Blocks))
		}
		blocks[r.Model] = fmt.Sprint(r.Blocks)
	}
	require.Len(t, blocks, 2)
	assert.NotEqual(t, blocks["a"], blocks["b"])
}

// A program that sends itself gets the body for the model, too.
func TestADispatcherKnowsNames(t *testing.T) {
	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "e", Models: []string{"b"}}}}))
	d := rig.Must(transport.NewDispatcher(transport.Config{Router: router, Fallbacks: 2, Names: map[string]transport.Name{"x": {Models: []string{"a", "b"}}}}))
	call := rig.Must(d.Read(transport.Incoming{Method: "POST", Path: chatPath, Header: http.Header{}, Body: []byte(`{"model":"x","messages":[]}`)}))
	defer call.Close()
	assert.Equal(t, "e", rig.Must(call.Route(t.Context())).Endpoint().ID)
	assert.Equal(t, `{"model":"b","messages":[]}`, string(bytes.Join(call.Body(), nil)))
	assert.Contains(t, call.Request.Receipt.String(), `model "b", `)
	assert.Contains(t, call.Request.Receipt.String(), `, asked for as "x"`)

	inQuery := rig.Must(d.Read(transport.Incoming{Method: "GET", Path: "/v1/realtime", Query: "model=x", Header: http.Header{}}))
	defer inQuery.Close()
	assert.ErrorContains(t, rig.Err(inQuery.Route(t.Context())), `model "x"`, "it would be sent as it is")
}

func TestBadNames(t *testing.T) {
	for text, names := range map[string]map[string]transport.Name{
		`Names[""] is empty, longer than 256 bytes, or not UTF-8`:                          {"": {Models: []string{"m"}}},
		`Names["\xff"] is empty, longer than 256 bytes, or not UTF-8`:                      {"\xff": {Models: []string{"m"}}},
		`Names["a"] has 0 models, not 1 to 16`:                                             {"a": {}},
		`Names["a"] has 17 models, not 1 to 16`:                                            {"a": {Models: make([]string, 17)}},
		`Names["a"] has the model "", which is empty, longer than 256 bytes, or not UTF-8`: {"a": {Models: []string{""}}},
		`Names["a"] has the model "m" twice`:                                               {"a": {Models: []string{"m", "m"}}},
		`Names["a"] has "b", which is such a name itself`:                                  {"a": {Models: []string{"b"}}, "b": {Models: []string{"a"}}},
		`Names["a"] has 2 weights for 1 models`:                                            {"a": {Models: []string{"m"}, Weights: []float64{1, 2}}},
		`Names["a"] has weights that sum to 0`:                                             {"a": {Models: []string{"m", "n"}, Weights: []float64{0, 0}}},
		`Names["a"] has a weight of -1`:                                                    {"a": {Models: []string{"m", "n"}, Weights: []float64{2, -1}}},
		`Names["a"] has a weight of NaN`:                                                   {"a": {Models: []string{"m"}, Weights: []float64{math.NaN()}}},
	} {
		w := newWorld(t, transport.Config{})
		assert.EqualError(t, w.t.SetNames(names), "endpick: config: transport.Config."+text)
		assert.EqualError(t, rig.Err(transport.New(transport.Config{Router: w.router, Names: names})), "endpick: config: transport.Config."+text)
	}
	w := newWorld(t, transport.Config{})
	assert.NoError(t, w.t.SetNames(map[string]transport.Name{"a": {Models: []string{"a", "b"}}}), "a model with a fallback")
}
