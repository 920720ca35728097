package extproc_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// The requirements of proposal 004, v1.0.0, and of Envoy's external_processor.proto
// and processing_mode.proto on which it builds, each on a real connection and in both
// body modes. docs/extproc.md lists them.
func TestProtocol(t *testing.T) {
	two := extproc.Config{Dispatcher: transport.Config{Fallbacks: 1}}
	all := extproc.Config{Dispatcher: transport.Config{Fallbacks: 5}}
	asIs := extproc.Config{Dispatcher: transport.Config{DisableUsage: true}}
	named := func(want, body string, pairs ...string) func(*testing.T, *world, *talk) {
		return func(t *testing.T, w *world, c *talk) { names(t, want, first(c.request(body, pairs...))) }
	}
	denied := func(status int, reason, body string, pairs ...string) func(*testing.T, *world, *talk) {
		return func(t *testing.T, w *world, c *talk) { refused(t, first(c.request(body, pairs...)), status, reason) }
	}
	allowed := func(servers any, want string) func(*testing.T, *world, *talk) {
		return func(t *testing.T, w *world, c *talk) {
			c.send(subset(requestHeaders(true), servers))
			if want == "" {
				refused(t, c.recv(), 503, "no server is available")
				return
			}
			names(t, want, c.recv())
		}
	}
	for _, line := range []struct {
		name   string
		config extproc.Config
		do     func(t *testing.T, w *world, c *talk)
	}{
		{"the chosen server is named in header and metadata alike", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			names(t, "10.0.0.1:8000", first(c.request(chatBody)))
			c.send(responseHeaders("200", false))
			assert.Nil(t, c.recv().GetDynamicMetadata(), "and once")
		}},
		{"fallbacks follow in order", all, named("10.0.0.1:8000,10.0.0.2:8000,[fd00::3]:8000", chatBody)},
		{"as many fallbacks as asked for", two, named("10.0.0.1:8000,10.0.0.2:8000", chatBody)},
		{"no fallbacks for what must not be sent twice", all,
			named("10.0.0.1:8000", `{"model":"m","input":"hi","tools":[{"type":"mcp"}]}`, ":path", "/v1/responses")},
		{"no fallbacks for an unknown API", all, named("10.0.0.1:8000", `{"model":"m"}`, ":path", "/v1/fine_tuning/jobs")},
		{"who is full says when to try again", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			for _, full := range [][]string{{"429"}, {"503", "x-envoy-overloaded", "true"}} { // the proxy, too
				c = w.talk(t, c.mode)
				c.request(chatBody)
				set := c.respond(full[0], full[1:]...).GetHeaderMutation().GetSetHeaders()
				require.Len(t, set, 1)
				assert.Equal(t, "retry-after 1", set[0].GetHeader().GetKey()+" "+string(set[0].GetHeader().GetRawValue()))
			}
		}},
		{"or has said it", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			assert.Empty(t, c.respond("429", "retry-after", "5").GetHeaderMutation().GetSetHeaders())
		}},
		{"what a client says of the destination is overwritten", extproc.Config{},
			named("10.0.0.1:8000", chatBody, extproc.DestinationHeader, "10.6.6.6:1")},
		{"only servers of the subset, as a list", two,
			allowed([]any{"[fd00:0::3]:8000", "10.0.0.2:8000", "10.9.9.9:1"}, "10.0.0.2:8000,[fd00::3]:8000")},
		{"only servers of the subset, as a string", two, allowed("[fd00::3]:8000, 10.0.0.2:8000", "10.0.0.2:8000,[fd00::3]:8000")},
		{"one that is removed is not in its successor's way", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			require.NoError(t, w.router.Remove("a"))
			require.NoError(t, w.router.Add(endpick.Endpoint{ID: "a", Address: "10.0.0.5:8000"}))
			other := w.talk(t, c.mode)
			defer other.cancel()
			allowed("10.0.0.5:8000", "10.0.0.5:8000")(t, w, other)
		}},
		{"a subset without a server: 503", extproc.Config{}, allowed([]any{"10.9.9.9:1"}, "")},
		{"an empty subset: 503", extproc.Config{}, allowed([]any{}, "")},
		{"a subset whose servers serve another model: 503", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			require.NoError(t, w.router.Add(endpick.Endpoint{ID: "d", Address: "10.0.0.4:1", Models: []string{"other"}}))
			for _, body := range []string{chatBody, `{"model":"unheard-of","messages":[]}`} {
				c = w.talk(t, c.mode)
				c.head(subset(requestHeaders(false), "10.0.0.4:1"))
				c.send(requestBody(body, true))
				refused(t, c.recv(), 503, "no server is available")
			}
		}},
		{"no server is ready: 503", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			require.NoError(t, w.router.SetEndpoints(nil))
			refused(t, first(c.request(chatBody)), 503, "no server is available")
		}},
		{"shed: 429 with a reason", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			w.heard.Refuse = errors.New("too much at once")
			refused(t, first(c.request(chatBody)), 429, "too much at once")
		}},
		{"an unknown model: 404", extproc.Config{},
			denied(404, "model_not_found", `{"model":"gpt","messages":[{"role":"user","content":"Hi!"}]}`)},
		{"a request that can't be: 400", extproc.Config{}, denied(400, "invalid_request_error", `{"model":7}`)},
		{"no model is asked for: 400 for who wants that", extproc.Config{RequireModel: true}, func(t *testing.T, w *world, c *talk) {
			refused(t, first(c.request(`{"messages":[]}`)), 400, "model is missing")
			for taken, pairs := range map[string][]string{`{"model":"m"}`: nil, "": nil, "form": nil, "{}": {":method", "GET"}} {
				c = w.talk(t, c.mode)
				m := requestHeaders(false, append(pairs, ":path", "/v1/files")...)
				if taken == "form" {
					m.GetRequestHeaders().GetHeaders().Headers[2].RawValue = []byte("Multipart/form-data; boundary=x")
				}
				c.head(m)
				c.send(requestBody(taken, true))
				header, _ := destination(c.recv())
				assert.NotEmpty(t, header, taken)
				c.cancel()
			}
		}},
		{"objective and fairness, if wanted", extproc.Config{Objectives: map[string]int{"batch": -1}}, func(t *testing.T, w *world, c *talk) {
			for name, want := range map[string]int{"batch": -1, "unheard-of": 0, "": 7} {
				c = w.talk(t, c.mode)
				c.request(chatBody, "x-endpick-priority", "7", "x-gateway-inference-objective", name, "x-gateway-inference-fairness-id", "blue")
				c.ends()
				assert.Equal(t, want, w.heard.Last().Request.Priority, name)
				assert.Equal(t, "blue", w.heard.Last().Request.Tenant)
			}
		}},
		{"but not otherwise", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody, "x-gateway-inference-objective", "batch", "x-gateway-inference-fairness-id", "blue")
			c.ends()
			assert.Zero(t, w.heard.Last().Request.Priority)
			assert.Empty(t, w.heard.Last().Request.Tenant)
		}},
		{"errors have the shape of the API", extproc.Config{},
			denied(400, `{"type":"error","error":{"type":"invalid_request_error"`, `{"model":7}`, ":path", "/v1/messages?beta=true")},
		{"an upgrade for a model: a server that has it", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			require.NoError(t, w.router.Add(endpick.Endpoint{ID: "d", Address: "10.0.0.4:1", Models: []string{"other"}}))
			c.send(requestHeaders(false, ":method", "GET", ":path", "/v1/realtime?intent=x&model=oth%65r", "connection", "upgrade", "upgrade", "websocket"))
			names(t, "10.0.0.4:1", c.recv())
		}},
		{"a CONNECT request, whose body has no end", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestHeaders(false, ":method", "CONNECT", ":protocol", "websocket", ":path", "/v1/realtime?model=m"))
			names(t, "10.0.0.1:8000", c.recv())
		}},
		{"a path of no API: 404", extproc.Config{Dispatcher: transport.Config{Pass: []string{"/x"}}},
			denied(404, "nothing here", `{}`, ":path", "/%73leep?level=1")},
		{"nor one whose slash is part of a name", extproc.Config{Dispatcher: transport.Config{Pass: []string{"/x"}}},
			denied(404, "nothing here", chatBody, ":path", "/v1/chat%2Fcompletions")},
		{"the end of the request in its headers", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestHeaders(true, ":method", "GET", ":path", "/v1/models"))
			m := c.recv()
			require.NotNil(t, m.GetRequestHeaders())
			names(t, "10.0.0.1:8000", m)
		}},
		{"an upgrade: the server before any body, then what both sides say as it is", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestHeaders(false, ":method", "GET", ":path", "/v1/realtime?model=m", "connection", "upgrade", "upgrade", "websocket"))
			m := c.recv()
			require.NotNil(t, m.GetRequestHeaders(), "nobody can wait for its end")
			names(t, "10.0.0.1:8000", m)
			if c.mode == inPieces {
				c.send(requestBody("at once", false))
				c.isPiece(c.recv().GetRequestBody(), "at once", false)
				c.respond("101", "upgrade", "websocket")
				for _, said := range []string{"hello", "data: no event"} {
					c.send(requestBody(said, false))
					c.isPiece(c.recv().GetRequestBody(), said, false)
					c.send(responseBody(said, false))
					c.isPiece(c.recv().GetResponseBody(), said, false)
				}
				c.ends()
				assert.Equal(t, "a completed", w.heard.Said())
				return
			}
			c.send(responseHeaders("426", true))
			require.NotNil(t, c.recv().GetResponseHeaders())
			c.ends()
			assert.Equal(t, "a refused", w.heard.Said())
		}},
		{"a body is waited for, whatever its header would upgrade", extproc.Config{},
			denied(404, "model_not_found", `{"model":"gpt","messages":[]}`, "connection", "upgrade", "upgrade", "websocket")},
		{"a body in many messages", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			if c.mode == atOnce {
				t.Skip("BUFFERED has one")
			}
			c.send(requestHeaders(false))
			for _, b := range []byte(chatBody) {
				c.send(requestBody(string(b), false))
			}
			c.send(requestBody("", true))
			require.NotNil(t, c.recv().GetRequestHeaders(), "headers come before the body")
			c.isPiece(c.recv().GetRequestBody(), asked, true)
			c.send(requestBody("}", true)) // as Envoy repeats it
			c.respond("200")
		}},
		{"usage is asked for, and its length told", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			m, body := c.request(chatBody)
			assert.Equal(t, asked, body)
			assert.Equal(t, strconv.Itoa(len(body)), mutation(m, "content-length"))
			assert.Equal(t, "identity", mutation(m, "accept-encoding"))
		}},
		{"a body that needs no change goes as it came, or is in an unknown coding", asIs, func(t *testing.T, w *world, c *talk) {
			for _, pairs := range [][]string{nil, {"content-encoding", "x-own"}} {
				c = w.talk(t, c.mode)
				m, body := c.request(chatBody, pairs...)
				assert.Equal(t, chatBody, body)
				assert.Empty(t, mutation(m, "content-length"))
				assert.Empty(t, common(m).GetHeaderMutation().GetRemoveHeaders())
				if c.mode == atOnce {
					assert.Nil(t, common(m).GetBodyMutation())
				}
				c.cancel()
			}
		}},
		{"a name of the same length is changed to the model", asIs, func(t *testing.T, w *world, c *talk) {
			require.NoError(t, w.server.Dispatcher().SetNames(map[string]transport.Name{"n": {Models: []string{"m"}}}))
			_, body := c.request(strings.Replace(chatBody, `"m"`, `"n"`, 1))
			assert.Equal(t, chatBody, body)
		}},
		{"a packed body is unpacked", asIs, func(t *testing.T, w *world, c *talk) {
			var packed bytes.Buffer
			z := gzip.NewWriter(&packed)
			z.Write([]byte(chatBody))
			z.Close()
			m, body := c.request(packed.String(), "content-encoding", "gzip", "x-data-parallel-rank", "7")
			assert.Equal(t, chatBody, body)
			assert.Equal(t, []string{"content-encoding", "x-data-parallel-rank"}, common(m).GetHeaderMutation().GetRemoveHeaders())
			assert.Equal(t, strconv.Itoa(len(body)), mutation(m, "content-length"))
		}},
		{"an empty body", extproc.Config{}, named("10.0.0.1:8000", "")},
		{"trailers of a request end its body", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.head(requestHeaders(false))
			c.send(requestBody(chatBody, false))
			if c.mode == atOnce {
				require.NotNil(t, c.recv().GetRequestBody(), "one answer for each message")
			}
			c.send(requestTrailers())
			if c.mode == inPieces {
				require.NotNil(t, c.recv().GetRequestHeaders())
				c.isPiece(c.recv().GetRequestBody(), asked, false) // the trailers end it
			}
			require.NotNil(t, c.recv().GetRequestTrailers())
		}},
		{"trailers without a body", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.head(requestHeaders(false))
			c.send(requestTrailers())
			if c.mode == inPieces {
				names(t, "10.0.0.1:8000", c.recv())
			}
			m := c.recv()
			require.NotNil(t, m.GetRequestTrailers(), "one answer for each message")
			if c.mode == atOnce {
				_, metadata := destination(m)
				assert.Equal(t, "10.0.0.1:8000", metadata, "the header has been answered")
			}
			c.ends()
			assert.Equal(t, "a canceled", w.heard.Said())
		}},
		{"trailers and nothing before them", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestTrailers())
			refused(t, c.recv(), 404, "nothing here")
		}},
		{"a body and nothing before it", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestBody(chatBody, true))
			refused(t, c.recv(), 404, "nothing here")
		}},
		{"the response is metered as it passes", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			head := c.respond("200", "content-length", "1000")
			assert.Equal(t, []string{"content-length"}, head.GetHeaderMutation().GetRemoveHeaders())
			assert.Equal(t, events+done, c.response(events+usage+done))
			c.ends()
			assert.Equal(t, "a completed", w.heard.Said())
			assert.Equal(t, endpick.Outcome{InputTokens: 9, OutputTokens: 2, CachedTokens: 4, HasCachedTokens: true}, w.heard.Last().Outcome)
			assert.True(t, w.heard.Last().Token)
		}},
		{"events are passed on whole, whatever the pieces", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			if c.mode == atOnce {
				t.Skip("BUFFERED has one")
			}
			c.request(chatBody)
			c.respond("200")
			all := events + usage + done
			for _, b := range []byte(all) {
				c.send(responseBody(string(b), false))
			}
			c.send(responseBody("", true))
			got := ""
			for end := false; !end; {
				var piece string
				piece, end = c.piece(c.recv().GetResponseBody())
				assert.True(t, end || strings.HasSuffix(piece, "\n\n"), "%q", piece)
				got += piece
			}
			assert.Equal(t, events+done, got)
		}},
		{"the first token is passed on before the rest comes", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			if c.mode == atOnce {
				t.Skip("BUFFERED waits")
			}
			c.request(chatBody)
			c.respond("200")
			c.send(responseBody(events[:60], false))
			piece, _ := c.piece(c.recv().GetResponseBody())
			assert.Contains(t, piece, "Hello!")
		}},
		{"what fails and can't be asked elsewhere counts against its server", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			for range 10 {
				c = w.talk(t, c.mode)
				c.send(requestHeaders(true, ":path", "/own"))
				c.recv()
				c.respond("500")
				c.ends()
			}
			assert.Less(t, w.health.Endpoints()[0].Share, 1.0)
		}},
		{"a response at once", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(strings.Replace(chatBody, `"stream":true,`, "", 1))
			c.respond("200", "content-type", "application/json")
			text := strings.Repeat("Hello! ", 20_000) // in several pieces
			whole := `{"choices":[{"message":{"role":"assistant","content":"` + text + `"}}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`
			assert.Equal(t, whole, c.response(whole))
			c.ends()
			assert.Equal(t, 9, w.heard.Last().Outcome.InputTokens)
		}},
		{"the end of the response in its headers", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.send(responseHeaders("204", true))
			require.NotNil(t, c.recv().GetResponseHeaders())
			c.ends()
			assert.Equal(t, "a completed", w.heard.Said())
		}},
		{"trailers of a response end its body", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.respond("200")
			c.send(responseBody(events+usage+done, false))
			m := c.recv()
			if c.mode == inPieces {
				c.isPiece(m.GetResponseBody(), events+done, false)
			}
			c.send(responseTrailers())
			require.NotNil(t, c.recv().GetResponseTrailers())
			c.ends()
			assert.Equal(t, "a completed", w.heard.Said())
		}},
		{"what is held back goes before the trailers", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			if c.mode == atOnce {
				t.Skip("BUFFERED holds nothing back")
			}
			c.request(chatBody)
			c.respond("200")
			c.send(responseBody(events+"data: [DONE]", false)) // without the final empty line
			c.send(responseTrailers())
			got := ""
			for {
				m := c.recv()
				if m.GetResponseTrailers() != nil {
					break
				}
				piece, end := c.piece(m.GetResponseBody())
				assert.False(t, end)
				got += piece
			}
			assert.Equal(t, events+"data: [DONE]", got)
		}},
		{"the server that served is learned of", two, func(t *testing.T, w *world, c *talk) {
			c.exchange(served(responseHeaders("200", false), "10.0.0.2:8000"), events+usage+done)
			assert.Equal(t, "a failed, b completed", w.heard.Said())
			assert.Empty(t, w.warned.Take())
		}},
		{"a server that was full before has not failed", extproc.Config{Dispatcher: transport.Config{Fallbacks: 2}}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			m := served(responseHeaders("200", false), "[fd00::3]:8000")
			m.GetMetadataContext().GetFilterMetadata()["envoy.lb"].Fields["endpick-answers"] = structpb.NewStringValue("[::ffff:10.0.0.1]:8000 429 9,10.0.0.9:80 429 ,nobody,10.0.0.2:8000 500 ,[fd00::3]:8000 200 ,")
			c.send(m)
			c.recv()
			c.response(events + usage + done)
			c.ends()
			assert.Equal(t, "a refused, b failed, c completed", w.heard.Said())
			next := w.talk(t, c.mode)
			time.Sleep(300 * time.Millisecond)                                                    // longer than where the server does not say for how long
			names(t, "10.0.0.2:8000,[fd00::3]:8000,10.0.0.1:8000", first(next.request(chatBody))) // a comes last for a while
			next.cancel()
		}},
		{"an error of the server is passed on", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			assert.Equal(t, `{"error":"no"}`, c.exchange(responseHeaders("500", false, "content-type", "application/json"), `{"error":"no"}`))
			assert.Equal(t, "a failed", w.heard.Said())
		}},
		{"an error in the stream is no success", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.exchange(responseHeaders("200", false), `data: {"error":{"message":"no"}}`+"\n\n")
			assert.Equal(t, "a failed", w.heard.Said())
		}},
		{"a stream that was never finished is no success", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.respond("200")
			const broken = `data: {"error":{"message":"the model server failed before the end of its answer","type":"api_error","param":null,"code":"502"}}`
			assert.Equal(t, events[:52]+broken+"\n\n", c.response(events[:60]))
			c.ends()
			assert.Equal(t, "a failed", w.heard.Said())
		}},
		{"a response without a request that was picked", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.head(requestHeaders(false))
			c.respond("408")
			assert.Equal(t, "timeout", c.response("timeout"))
			c.ends()
			assert.Empty(t, w.heard.Said())
		}},
		{"a stream that is closed early is closed in the accounts", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.ends()
			assert.Equal(t, "a canceled", w.heard.Said())
		}},
		{"observability mode asks for no answer", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			m := requestHeaders(true)
			m.ObservabilityMode = true
			c.send(m)
			require.EqualError(t, rig.Err(c.stream.Recv()), "EOF")
		}},
		{"two requests or responses on one stream are refused", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.send(requestHeaders(true))
			c.fails()
			c = w.talk(t, c.mode)
			c.head(requestHeaders(false))
			c.send(requestHeaders(false)) // while the first one waits for its body
			c.fails()
			c = w.talk(t, c.mode)
			c.request(chatBody)
			c.respond("200")
			c.send(responseHeaders("200", true))
			c.fails()
		}},
		{"a message of no kind is refused", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(&extprocv3.ProcessingRequest{})
			c.fails()
		}},
	} {
		for name, mode := range map[string]filterv3.ProcessingMode_BodySendMode{"full duplex": inPieces, "buffered": atOnce} {
			t.Run(line.name+"/"+name, func(t *testing.T) {
				w := newWorld(t, line.config)
				c := w.talk(t, mode)
				line.do(t, w, c)
				c.cancel()
				w.idle(t)
			})
		}
	}
}

func first(m *extprocv3.ProcessingResponse, _ string) *extprocv3.ProcessingResponse { return m }

func refused(t *testing.T, m *extprocv3.ProcessingResponse, status int, reason string) {
	t.Helper()
	i := m.GetImmediateResponse()
	require.NotNil(t, i, "%v", m)
	assert.EqualValues(t, status, i.GetStatus().GetCode())
	assert.Contains(t, string(i.GetBody()), reason)
	assert.NotEmpty(t, i.GetDetails())
	assert.Nil(t, m.GetDynamicMetadata())
	header := map[string]string{}
	for _, h := range i.GetHeaders().GetSetHeaders() {
		header[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	want := map[string]string{"content-type": "application/json"}
	if status == 503 {
		want["retry-after"] = "2"
	}
	assert.Equal(t, want, header)
}

// exchange is a chat with this response, to its end; it returns what the client gets.
func (c *talk) exchange(head *extprocv3.ProcessingRequest, body string) (got string) {
	c.t.Helper()
	c.request(chatBody)
	c.send(head)
	require.NotNil(c.t, c.recv().GetResponseHeaders())
	got = c.response(body)
	c.ends()
	return got
}

// response sends the body of a response and returns what the client gets.
func (c *talk) response(body string) (got string) {
	c.t.Helper()
	c.send(responseBody(body, true))
	for {
		m := c.recv().GetResponseBody()
		require.NotNil(c.t, m.GetResponse())
		if c.mode == atOnce {
			switch b := m.GetResponse().GetBodyMutation().GetMutation().(type) {
			case *extprocv3.BodyMutation_Body:
				return string(b.Body)
			case *extprocv3.BodyMutation_ClearBody:
				return ""
			}
			return body
		}
		piece, last := c.piece(m)
		if got += piece; last {
			return got
		}
	}
}

// played is a stream with prepared messages.
type played struct {
	grpc.ServerStream
	in  []*extprocv3.ProcessingRequest
	out []*extprocv3.ProcessingResponse
	end chan struct{} // nil: it ends at once
}

func (p *played) Context() context.Context { return context.Background() }

func (p *played) Recv() (*extprocv3.ProcessingRequest, error) {
	if len(p.in) == 0 {
		if p.end != nil {
			<-p.end
		}
		return nil, io.EOF
	}
	m := p.in[0]
	p.in = p.in[1:]
	return m, nil
}

func (p *played) Send(m *extprocv3.ProcessingResponse) error {
	p.out = append(p.out, m)
	return nil
}

// script turns bytes into messages: the low bits of each choose the kind, the others its
// contents.
func script(steps []byte, request, response, header, value string) (all []*extprocv3.ProcessingRequest) {
	modes := []filterv3.ProcessingMode_BodySendMode{inPieces, atOnce, filterv3.ProcessingMode_NONE, filterv3.ProcessingMode_STREAMED, filterv3.ProcessingMode_BUFFERED_PARTIAL}
	take := func(from *string, some bool) string {
		n := len(*from)
		if some {
			n /= 2
		}
		piece := (*from)[:n]
		*from = (*from)[n:]
		return piece
	}
	for i, s := range steps {
		kind, how := s&7, s>>3
		end := how&1 != 0
		var m *extprocv3.ProcessingRequest
		switch kind {
		case 0:
			m = requestHeaders(end, header, value)
			if how&2 != 0 {
				m.GetRequestHeaders().Headers = headers(header, value)
			}
		case 1:
			m = requestBody(take(&request, how&2 != 0), end)
		case 2:
			m = requestTrailers()
		case 3:
			m = responseHeaders([]string{"200", "503", "", "9e9", value}[int(how>>1)%5], end, header, value)
		case 4:
			m = responseBody(take(&response, how&2 != 0), end)
		case 5:
			m = responseTrailers()
		case 6:
			m = subset(requestHeaders(end), strings.ToValidUTF8(value, "?"))
			if how&2 != 0 {
				m = served(responseHeaders("200", end), strings.ToValidUTF8(value, "?"))
			}
		default:
			m = &extprocv3.ProcessingRequest{}
		}
		if i == 0 {
			m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: modes[len(value)%5], ResponseBodyMode: modes[len(header)%5]}
		}
		all = append(all, m)
	}
	return all
}

// Whatever a proxy sends, in whatever order, nothing panics, each message gets at
// most one answer (but for pieces of bodies) or a status, and no lease stays open.
func FuzzProcess(f *testing.F) {
	usual := []byte{0, 1 | 1<<3, 3, 4 | 2<<3, 4 | 1<<3}
	for _, value := range []string{"", "a", "ab", "abc", "abcd"} { // all modes
		f.Add(usual, chatBody, events+usage+done, "x-mode", value)
		f.Add(usual, chatBody, events+usage+done, "x", value)
	}
	f.Add([]byte{0 | 1<<3, 3 | 1<<3}, "", "", "content-length", "-1")
	f.Add([]byte{0, 1, 1, 2, 3, 4, 5}, chatBody, events, "content-encoding", "gzip")
	f.Add([]byte{3, 0, 0, 4, 1, 7}, "{}", "", "x-slo-ttft-ms", "1e300")
	f.Add([]byte{6, 1 | 1<<3, 6 | 2<<3, 4 | 1<<3}, chatBody, events, "host", "10.0.0.2:8000")
	f.Add([]byte{0 | 2<<3, 1 | 1<<3}, chatBody, events, ":path", "/v1/messages")
	router := rig.Must(endpick.New(endpick.Config{
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: &rig.Heard{Order: "ab"}, Weight: 1}}},
		Endpoints: []endpick.Endpoint{{ID: "a", Address: "10.0.0.1:8000", Models: []string{"m"}}, {ID: "b", Address: "10.0.0.2:8000"}},
	}))
	var panicked rig.List[error]
	server := rig.Must(extproc.New(extproc.Config{
		Dispatcher: transport.Config{Router: router, MaxBodyBytes: 1 << 16, Fallbacks: 1},
		Warn: func(err error) {
			if p := (*endpick.PanicError)(nil); errors.As(err, &p) {
				panicked.Add(err)
			}
		},
	}))
	f.Fuzz(func(t *testing.T, steps []byte, request, response, header, value string) {
		if len(steps) > 64 || len(request)+len(response) > 1<<17 {
			return
		}
		stream := &played{in: script(steps, request, response, header, value)}
		err := server.Process(stream)
		require.Empty(t, panicked.Take())
		if err != nil {
			_, ok := status.FromError(err)
			require.True(t, ok, "%v", err)
		}
		others := 0
		for _, m := range stream.out {
			if m.GetRequestBody() == nil && m.GetResponseBody() == nil {
				others++
			}
		}
		require.LessOrEqual(t, others, len(steps))
		rig.Idle(t, router)
	})
}
