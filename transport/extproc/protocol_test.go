package extproc_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strconv"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
)

// The requirements of proposal 004, v1.0.0, and of Envoy's external_processor.proto
// and processing_mode.proto on which it builds, each on a real connection and in both
// body modes. docs/extproc.md lists them.
func TestProtocol(t *testing.T) {
	two := extproc.Config{Dispatcher: transport.Config{Fallbacks: 1}}
	for _, line := range []struct {
		name   string
		config extproc.Config
		do     func(t *testing.T, w *world, c *talk)
	}{
		{"the chosen server is named in header and metadata alike", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			m, _ := c.request(chatBody)
			header, metadata := destination(m)
			assert.Equal(t, "10.0.0.1:8000", header)
			assert.Equal(t, header, metadata)
			assert.True(t, common(m).GetClearRouteCache())
			c.send(responseHeaders("200", false))
			assert.Nil(t, c.recv().GetDynamicMetadata(), "and once")
		}},
		{"fallbacks follow in order", extproc.Config{Dispatcher: transport.Config{Fallbacks: 5}}, func(t *testing.T, w *world, c *talk) {
			header, metadata := destination(first(c.request(chatBody)))
			assert.Equal(t, "10.0.0.1:8000,10.0.0.2:8000,[fd00::3]:8000", header)
			assert.Equal(t, header, metadata)
		}},
		{"as many fallbacks as asked for", two, func(t *testing.T, w *world, c *talk) {
			header, _ := destination(first(c.request(chatBody)))
			assert.Equal(t, "10.0.0.1:8000,10.0.0.2:8000", header)
		}},
		{"no fallbacks for what must not be sent twice", extproc.Config{Dispatcher: transport.Config{Fallbacks: 5}}, func(t *testing.T, w *world, c *talk) {
			header, _ := destination(first(c.request(`{"model":"m","input":"hi","tools":[{"type":"mcp"}]}`, ":path", "/v1/responses")))
			assert.Equal(t, "10.0.0.1:8000", header)
		}},
		{"no fallbacks for an unknown API", extproc.Config{Dispatcher: transport.Config{Fallbacks: 5}}, func(t *testing.T, w *world, c *talk) {
			header, _ := destination(first(c.request(`{"model":"m"}`, ":path", "/v1/fine_tuning/jobs")))
			assert.Equal(t, "10.0.0.1:8000", header)
		}},
		{"who is full says when to try again", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.send(responseHeaders("429", false))
			set := c.recv().GetResponseHeaders().GetResponse().GetHeaderMutation().GetSetHeaders()
			require.Len(t, set, 1)
			assert.Equal(t, "retry-after 1", set[0].GetHeader().GetKey()+" "+string(set[0].GetHeader().GetRawValue()))
		}},
		{"or has said it", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.send(responseHeaders("429", false, "retry-after", "5"))
			assert.Empty(t, c.recv().GetResponseHeaders().GetResponse().GetHeaderMutation().GetSetHeaders())
		}},
		{"what a client says of the destination is overwritten", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			header, _ := destination(first(c.request(chatBody, extproc.DestinationHeader, "10.6.6.6:1")))
			assert.Equal(t, "10.0.0.1:8000", header)
		}},
		{"only servers of the subset, as a list", two, func(t *testing.T, w *world, c *talk) {
			c.send(subset(requestHeaders(true), []any{"[fd00:0::3]:8000", "10.0.0.2:8000", "10.9.9.9:1"}))
			header, metadata := destination(c.recv())
			assert.Equal(t, "10.0.0.2:8000,[fd00::3]:8000", header)
			assert.Equal(t, header, metadata)
		}},
		{"only servers of the subset, as a string", two, func(t *testing.T, w *world, c *talk) {
			c.send(subset(requestHeaders(true), "[fd00::3]:8000, 10.0.0.2:8000"))
			header, _ := destination(c.recv())
			assert.Equal(t, "10.0.0.2:8000,[fd00::3]:8000", header)
		}},
		{"a subset without a server: 503", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(subset(requestHeaders(true), []any{"10.9.9.9:1"}))
			assert.EqualValues(t, 503, c.recv().GetImmediateResponse().GetStatus().GetCode())
		}},
		{"an empty subset: 503", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(subset(requestHeaders(true), []any{}))
			assert.EqualValues(t, 503, c.recv().GetImmediateResponse().GetStatus().GetCode())
		}},
		{"a subset whose servers serve another model: 503", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			require.NoError(t, w.router.Add(endpick.Endpoint{ID: "d", Address: "10.0.0.4:1", Models: []string{"other"}}))
			c.send(subset(requestHeaders(false), "10.0.0.4:1"))
			if c.mode == atOnce {
				c.recv()
			}
			c.send(requestBody(chatBody, true))
			assert.EqualValues(t, 503, c.recv().GetImmediateResponse().GetStatus().GetCode())
		}},
		{"no server is ready: 503", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			require.NoError(t, w.router.SetEndpoints(nil))
			refused(t, first(c.request(chatBody)), 503, "no server is available")
		}},
		{"shed: 429 with a reason", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			w.heard.refuse = errors.New("too much at once")
			refused(t, first(c.request(chatBody)), 429, "too much at once")
		}},
		{"an unknown model: 404", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			refused(t, first(c.request(`{"model":"gpt","messages":[{"role":"user","content":"Hi!"}]}`)), 404, "model_not_found")
		}},
		{"a request that can't be: 400", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			refused(t, first(c.request(`{"model":7}`)), 400, "invalid_request_error")
		}},
		{"no model is asked for: 400 for who wants that", extproc.Config{RequireModel: true}, func(t *testing.T, w *world, c *talk) {
			refused(t, first(c.request(`{"messages":[]}`)), 400, "model is missing")
			for taken, pairs := range map[string][]string{`{"model":"m"}`: nil, "": nil, "form": nil, "{}": {":method", "GET"}} {
				c = w.talk(t, c.mode)
				m := requestHeaders(false, append(pairs, ":path", "/v1/files")...)
				if taken == "form" {
					m.GetRequestHeaders().GetHeaders().Headers[2].RawValue = []byte("multipart/form-data; boundary=x")
				}
				c.send(m)
				if c.mode == atOnce {
					c.recv()
				}
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
				assert.Equal(t, want, w.heard.request.Priority, name)
				assert.Equal(t, "blue", w.heard.request.Tenant)
			}
		}},
		{"but not otherwise", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody, "x-gateway-inference-objective", "batch", "x-gateway-inference-fairness-id", "blue")
			c.ends()
			assert.Zero(t, w.heard.request.Priority)
			assert.Empty(t, w.heard.request.Tenant)
		}},
		{"errors have the shape of the API", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			refused(t, first(c.request(`{"model":7}`, ":path", "/v1/messages?beta=true")), 400, `{"type":"error","error":{"type":"invalid_request_error"`)
		}},
		{"an upgrade for a model: a server that has it", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			require.NoError(t, w.router.Add(endpick.Endpoint{ID: "d", Address: "10.0.0.4:1", Models: []string{"other"}}))
			c.send(requestHeaders(false, ":method", "GET", ":path", "/v1/realtime?intent=x&model=oth%65r", "connection", "upgrade", "upgrade", "websocket"))
			header, _ := destination(c.recv())
			assert.Equal(t, "10.0.0.4:1", header)
		}},
		{"a path of no API: 404", extproc.Config{Dispatcher: transport.Config{Pass: []string{"/x"}}}, func(t *testing.T, w *world, c *talk) {
			refused(t, first(c.request(`{}`, ":path", "/%73leep?level=1")), 404, "nothing here")
		}},
		{"the end of the request in its headers", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestHeaders(true, ":method", "GET", ":path", "/v1/models"))
			m := c.recv()
			require.NotNil(t, m.GetRequestHeaders())
			header, metadata := destination(m)
			assert.Equal(t, "10.0.0.1:8000", header)
			assert.Equal(t, header, metadata)
		}},
		{"an upgrade: the server before any body, then what both sides say as it is", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestHeaders(false, ":method", "GET", ":path", "/v1/realtime?model=m", "connection", "upgrade", "upgrade", "websocket"))
			m := c.recv()
			require.NotNil(t, m.GetRequestHeaders(), "nobody can wait for its end")
			header, metadata := destination(m)
			assert.Equal(t, "10.0.0.1:8000", header)
			assert.Equal(t, header, metadata)
			if c.mode == inPieces {
				c.send(responseHeaders("101", false, "upgrade", "websocket"))
				require.NotNil(t, c.recv().GetResponseHeaders())
				for _, said := range []string{"hello", "data: no event"} {
					c.send(requestBody(said, false))
					piece := c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
					assert.Equal(t, said, string(piece.GetBody()))
					assert.False(t, piece.GetEndOfStream())
					c.send(responseBody(said, false))
					piece = c.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
					assert.Equal(t, said, string(piece.GetBody()))
					assert.False(t, piece.GetEndOfStream())
				}
				c.ends()
				assert.Equal(t, "a completed", w.heard.said())
				return
			}
			c.send(responseHeaders("426", true))
			require.NotNil(t, c.recv().GetResponseHeaders())
			c.ends()
			assert.Equal(t, "a refused", w.heard.said())
		}},
		{"a body is waited for, whatever its header would upgrade", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			m, _ := c.request(`{"model":"gpt","messages":[]}`, "connection", "upgrade", "upgrade", "websocket")
			refused(t, m, 404, "model_not_found")
		}},
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
			piece := c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
			assert.Equal(t, asked, string(piece.GetBody()))
			assert.True(t, piece.GetEndOfStream())
		}},
		{"usage is asked for, and its length told", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			m, body := c.request(chatBody)
			assert.Equal(t, asked, body)
			assert.Equal(t, strconv.Itoa(len(body)), mutation(m, "content-length"))
			assert.Equal(t, "identity", mutation(m, "accept-encoding"))
		}},
		{"a body that needs no change goes as it came", extproc.Config{Dispatcher: transport.Config{DisableUsage: true}}, func(t *testing.T, w *world, c *talk) {
			m, body := c.request(chatBody)
			assert.Equal(t, chatBody, body)
			assert.Empty(t, mutation(m, "content-length"))
			if c.mode == atOnce {
				assert.Nil(t, common(m).GetBodyMutation())
			}
		}},
		{"a packed body is unpacked", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			var packed bytes.Buffer
			z := gzip.NewWriter(&packed)
			z.Write([]byte(chatBody))
			z.Close()
			m, body := c.request(packed.String(), "content-encoding", "gzip")
			assert.Equal(t, asked, body)
			assert.Equal(t, []string{"content-encoding"}, common(m).GetHeaderMutation().GetRemoveHeaders())
		}},
		{"an empty body", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			header, _ := destination(first(c.request("")))
			assert.Equal(t, "10.0.0.1:8000", header)
		}},
		{"trailers of a request end its body", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestHeaders(false))
			if c.mode == atOnce {
				require.NotNil(t, c.recv().GetRequestHeaders())
			}
			c.send(requestBody(chatBody, false))
			if c.mode == atOnce {
				require.NotNil(t, c.recv().GetRequestBody(), "one answer for each message")
				c.send(requestTrailers())
			} else {
				c.send(requestTrailers())
				require.NotNil(t, c.recv().GetRequestHeaders())
				piece := c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
				assert.Equal(t, asked, string(piece.GetBody()))
				assert.False(t, piece.GetEndOfStream(), "the trailers do that")
			}
			require.NotNil(t, c.recv().GetRequestTrailers())
		}},
		{"trailers without a body", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestHeaders(false))
			if c.mode == atOnce {
				require.NotNil(t, c.recv().GetRequestHeaders())
				c.send(requestTrailers())
			} else {
				c.send(requestTrailers())
				header, metadata := destination(c.recv())
				assert.Equal(t, "10.0.0.1:8000", header)
				assert.Equal(t, header, metadata)
			}
			m := c.recv()
			require.NotNil(t, m.GetRequestTrailers(), "one answer for each message")
			if c.mode == atOnce {
				_, metadata := destination(m)
				assert.Equal(t, "10.0.0.1:8000", metadata, "the header has been answered")
			}
			c.ends()
			assert.Equal(t, "a canceled", w.heard.said())
		}},
		{"trailers and nothing before them", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestTrailers())
			refused(t, c.recv(), 404, "nothing here")
		}},
		{"a body and nothing before it", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestBody(chatBody, true))
			refused(t, c.recv(), 404, "nothing here")
		}},
		{"a data-parallel rank is told", extproc.Config{Dispatcher: transport.Config{Fallbacks: 3}}, func(t *testing.T, w *world, c *talk) {
			require.NoError(t, w.router.SetEndpoints([]endpick.Endpoint{
				{ID: "a", Address: "10.0.0.1:8000", Ranked: true, Rank: 3}, {ID: "b", Address: "10.0.0.4:8000", Ranked: true, Rank: 2},
				{ID: "c", Address: "10.0.0.2:8000", Ranked: true, Rank: 3}, {ID: "d", Address: "10.0.0.3:8000"},
			}))
			m, _ := c.request(chatBody)
			header, _ := destination(m)
			assert.Equal(t, "10.0.0.1:8000,10.0.0.2:8000", header, "who falls back gets the same rank")
			assert.Equal(t, "3", mutation(m, "x-data-parallel-rank"))
		}},
		{"the response is metered as it passes", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.send(responseHeaders("200", false, "content-length", "1000"))
			head := c.recv().GetResponseHeaders()
			require.NotNil(t, head)
			assert.Equal(t, []string{"content-length"}, head.GetResponse().GetHeaderMutation().GetRemoveHeaders())
			assert.Equal(t, events+done, c.response(events+usage+done))
			c.ends()
			assert.Equal(t, "a completed", w.heard.said())
			assert.Equal(t, endpick.Outcome{InputTokens: 9, OutputTokens: 2, CachedTokens: 4, HasCachedTokens: true}, w.heard.outcome)
			assert.Equal(t, 1, w.heard.ttfts)
		}},
		{"events are passed on whole, whatever the pieces", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			if c.mode == atOnce {
				t.Skip("BUFFERED has one")
			}
			c.request(chatBody)
			c.send(responseHeaders("200", false))
			c.recv()
			all := events + usage + done
			for _, b := range []byte(all) {
				c.send(responseBody(string(b), false))
			}
			c.send(responseBody("", true))
			got := ""
			for end := false; !end; {
				piece := c.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
				require.NotNil(t, piece)
				assert.True(t, piece.GetEndOfStream() || strings.HasSuffix(string(piece.GetBody()), "\n\n"), "%q", piece.GetBody())
				got, end = got+string(piece.GetBody()), piece.GetEndOfStream()
			}
			assert.Equal(t, events+done, got)
		}},
		{"the first token is passed on before the rest comes", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			if c.mode == atOnce {
				t.Skip("BUFFERED waits")
			}
			c.request(chatBody)
			c.send(responseHeaders("200", false))
			c.recv()
			c.send(responseBody(events[:60], false))
			piece := c.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
			assert.Contains(t, string(piece.GetBody()), "Hello!")
		}},
		{"a response at once", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(strings.Replace(chatBody, `"stream":true,`, "", 1))
			c.send(responseHeaders("200", false, "content-type", "application/json"))
			c.recv()
			whole := `{"choices":[{"message":{"role":"assistant","content":"Hello!"}}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`
			assert.Equal(t, whole, c.response(whole))
			c.ends()
			assert.Equal(t, 9, w.heard.outcome.InputTokens)
		}},
		{"the end of the response in its headers", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.send(responseHeaders("204", true))
			require.NotNil(t, c.recv().GetResponseHeaders())
			c.ends()
			assert.Equal(t, "a completed", w.heard.said())
		}},
		{"trailers of a response end its body", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.send(responseHeaders("200", false))
			c.recv()
			c.send(responseBody(events+usage+done, false))
			m := c.recv()
			if c.mode == inPieces {
				piece := m.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
				assert.Equal(t, events+done, string(piece.GetBody()))
				assert.False(t, piece.GetEndOfStream())
			}
			c.send(responseTrailers())
			require.NotNil(t, c.recv().GetResponseTrailers())
			c.ends()
			assert.Equal(t, "a completed", w.heard.said())
		}},
		{"what is held back goes before the trailers", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			if c.mode == atOnce {
				t.Skip("BUFFERED holds nothing back")
			}
			c.request(chatBody)
			c.send(responseHeaders("200", false))
			c.recv()
			c.send(responseBody(events+"data: [DONE]", false)) // without the final empty line
			c.send(responseTrailers())
			got := ""
			for {
				m := c.recv()
				if m.GetResponseTrailers() != nil {
					break
				}
				piece := m.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
				assert.False(t, piece.GetEndOfStream())
				got += string(piece.GetBody())
			}
			assert.Equal(t, events+"data: [DONE]", got)
		}},
		{"the server that served is learned of", two, func(t *testing.T, w *world, c *talk) {
			c.exchange(served(responseHeaders("200", false), "10.0.0.2:8000"), events+usage+done)
			assert.Equal(t, "a failed, b completed", w.heard.said())
			assert.Empty(t, w.warnings())
		}},
		{"a server that was full before has not failed", extproc.Config{Dispatcher: transport.Config{Fallbacks: 2}}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			m := served(responseHeaders("200", false), "[fd00::3]:8000")
			m.GetMetadataContext().GetFilterMetadata()["envoy.lb"].Fields["endpick-answers"] = structpb.NewStringValue("10.0.0.1:8000 429 9,10.0.0.9:80 429 ,nobody,10.0.0.2:8000 500 ,[fd00::3]:8000 200 ,")
			c.send(m)
			c.recv()
			c.response(events + usage + done)
			c.ends()
			assert.Equal(t, "a refused, b failed, c completed", w.heard.said())
			next := w.talk(t, c.mode)
			header, _ := destination(first(next.request(chatBody)))
			assert.Equal(t, "10.0.0.2:8000,[fd00::3]:8000", header, "it is avoided for a while")
			next.cancel()
		}},
		{"an error of the server is passed on", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			assert.Equal(t, `{"error":"no"}`, c.exchange(responseHeaders("500", false, "content-type", "application/json"), `{"error":"no"}`))
			assert.Equal(t, "a failed", w.heard.said())
		}},
		{"an error in the stream is no success", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.exchange(responseHeaders("200", false), `data: {"error":{"message":"no"}}`+"\n\n")
			assert.Equal(t, "a failed", w.heard.said())
		}},
		{"a stream that was never finished is no success", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.send(responseHeaders("200", false))
			c.recv()
			const broken = `data: {"error":{"message":"the model server failed before the end of its answer","type":"api_error","param":null,"code":"502"}}`
			assert.Equal(t, events[:52]+broken+"\n\n", c.response(events[:60]))
			c.ends()
			assert.Equal(t, "a failed", w.heard.said())
		}},
		{"a response without a request that was picked", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(requestHeaders(false))
			if c.mode == atOnce {
				c.recv()
			}
			c.send(responseHeaders("408", false))
			require.NotNil(t, c.recv().GetResponseHeaders())
			assert.Equal(t, "timeout", c.response("timeout"))
			c.ends()
			assert.Empty(t, w.heard.said())
		}},
		{"a stream that is closed early is closed in the accounts", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.ends()
			assert.Equal(t, "a canceled", w.heard.said())
		}},
		{"observability mode asks for no answer", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			m := requestHeaders(true)
			m.ObservabilityMode = true
			c.send(m)
			_, err := c.stream.Recv()
			require.EqualError(t, err, "EOF")
		}},
		{"two requests on one stream are refused", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.request(chatBody)
			c.send(requestHeaders(true))
			_, err := c.stream.Recv()
			assert.Equal(t, codes.InvalidArgument, status.Code(err))
			w.idle(t)
		}},
		{"a message of no kind is refused", extproc.Config{}, func(t *testing.T, w *world, c *talk) {
			c.send(&extprocv3.ProcessingRequest{})
			_, err := c.stream.Recv()
			assert.Equal(t, codes.InvalidArgument, status.Code(err))
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
	want := map[string]string{"Content-Type": "application/json"}
	if status == 503 {
		want["Retry-After"] = "2"
	}
	assert.Equal(t, want, header)
}

// exchange is a chat with this response, to its end; it returns what the client gets.
func (c *talk) exchange(head *extprocv3.ProcessingRequest, body string) (got string) {
	c.t.Helper()
	c.request(chatBody)
	c.send(head)
	c.recv()
	got = c.response(body)
	c.ends()
	return got
}

// response sends the body of a response and returns what the client gets.
func (c *talk) response(body string) (got string) {
	c.t.Helper()
	c.send(responseBody(body, true))
	for {
		common := c.recv().GetResponseBody().GetResponse()
		require.NotNil(c.t, common)
		if c.mode == atOnce {
			switch b := common.GetBodyMutation().GetMutation().(type) {
			case *extprocv3.BodyMutation_Body:
				return string(b.Body)
			case *extprocv3.BodyMutation_ClearBody:
				return ""
			}
			return body
		}
		piece := common.GetBodyMutation().GetStreamedResponse()
		require.NotNil(c.t, piece)
		got += string(piece.GetBody())
		if piece.GetEndOfStream() {
			return got
		}
	}
}
