package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport"
)

// answers are servers' responses in order: a status, a content type and a body.
// "dial" and "reset" send nothing.
type answers struct {
	mu   sync.Mutex
	left []string
	sent []string // bodies received
}

func (a *answers) RoundTrip(in *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(in.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = append(a.sent, in.Header.Get("Accept-Encoding")+" "+string(body))
	next := a.left[0]
	if len(a.left) > 1 {
		a.left = a.left[1:]
	}
	switch next {
	case "dial":
		return nil, noDial
	case "reset":
		return nil, errBroken
	}
	head, text, _ := strings.Cut(next, "\n")
	status, kind := 0, ""
	if _, err := fmt.Sscan(head, &status, &kind); err != nil {
		panic(err)
	}
	var out io.Reader = strings.NewReader(text)
	if cut, ok := strings.CutSuffix(text, "BROKEN"); ok {
		out = io.MultiReader(strings.NewReader(cut), iotest.ErrReader(errors.New("connection reset")))
	}
	return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(iotest.HalfReader(out)), ContentLength: -1}, nil
}

// whole is an observer that keeps complete outcomes.
type whole struct {
	heard
	outcomes []string
}

func (o *whole) Done(e *endpick.Event, outcome *endpick.Outcome) {
	_, first := e.TTFT()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.outcomes = append(o.outcomes, fmt.Sprintf("%s: %+v, %d tokens, first %v, request of %d tokens for %q of %q",
		e.Candidate.Endpoint.ID, *outcome, e.OutputTokens, first, e.Request.InputTokens, e.Request.Model, e.Request.Session))
}

// A program that sends requests itself has the same outcomes, learning and responses as one
// with a Transport.
func TestDispatcherIsLikeTransport(t *testing.T) {
	const json, stream = "application/json", "text/event-stream"
	key := prefix.NewKey()
	chat := `{"model":"m","stream":true,"user":"ann","messages":[{"role":"user","content":"` + strings.Repeat("tell me more about it, ", 20) + `"}]}`
	once := strings.Replace(chat, `"stream":true,`, "", 1)
	for _, tc := range []struct{ name, path, body, answers string }{
		{"stream", chatPath, chat, "200 " + stream + "\n" + events},
		{"stream that asks for usage", chatPath, `{"stream_options":{"include_usage":true},` + chat[1:], "200 " + stream + "\n" + events},
		{"at once", chatPath, once, "200 " + json + "\n" + `{"choices":[{"message":{"role":"assistant","content":"` + strings.Repeat("word ", 40) + `"}}],"usage":{"prompt_tokens":100,"completion_tokens":40,"prompt_tokens_details":{"cached_tokens":64}}}`},
		{"messages", "/v1/messages", chat, "200 " + stream + "\n" + "event: message_start\ndata: " + `{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}` + "\n\n" +
			`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}` + "\n\n" + `data: {"type":"message_stop"}` + "\n\n"},
		{"embeddings", "/v1/embeddings", `{"model":"m","input":["one","two"]}`, "200 " + json + "\n" + `{"data":[],"usage":{"prompt_tokens":5}}`},
		{"what is not read", "/v1/other", `{"model":"m"}`, "200 text/plain\nhello"},
		{"refused", chatPath, chat, "400 " + json + "\n" + `{"error":"no"}`},
		{"unreachable, then served", chatPath, chat, "dial|200 " + stream + "\n" + events},
		{"reset, then served", chatPath, chat, "reset|200 " + stream + "\n" + events},
		{"503, then served", chatPath, chat, "503 " + json + "\nbusy|200 " + stream + "\n" + events},
		{"429, then served", chatPath, chat, "429 " + json + "\nbusy|200 " + stream + "\n" + events},
		{"an error event, then served", chatPath, chat, "200 " + stream + "\n" + `data: {"error":{"message":"no"}}` + "\n\n|200 " + stream + "\n" + events},
		{"500 from all", chatPath, chat, "500 " + json + "\n1|500 " + json + "\n2|500 " + json + "\n3"},
		{"nobody to be reached", chatPath, chat, "dial"},
		{"cut", chatPath, chat, "200 " + stream + "\n" + events[:70]},
		{"broken off", chatPath, chat, "200 " + stream + "\n" + events[:70] + "BROKEN"},
		{"not to be read", chatPath, `{"model":7}`, "200 " + json + "\n{}"},
		{"nobody's model", chatPath, `{"model":"x","messages":[{"role":"user","content":"a"}]}`, "200 " + json + "\n{}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got [2]string
			for i := range got {
				base := &answers{left: strings.Split(tc.answers, "|")}
				o := &whole{heard: heard{order: "abc"}}
				config := endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: o, Weight: 1}}}}
				for _, id := range []string{"a", "b", "c"} {
					config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id, Address: id + ":80", Models: []string{"m"}})
				}
				router, err := endpick.New(config)
				require.NoError(t, err)

				var front http.Handler
				if i == 0 {
					rt, err := transport.New(transport.Config{Router: router, Base: base, HashKey: key})
					require.NoError(t, err)
					front = http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
						response, err := rt.RoundTrip(in)
						if err != nil {
							transport.ErrorHandler(w, in, err)
							return
						}
						defer response.Body.Close()
						w.WriteHeader(response.StatusCode)
						if _, err := io.Copy(w, response.Body); err != nil {
							panic(http.ErrAbortHandler)
						}
					})
				} else {
					s, err := transport.NewDispatcher(transport.Config{Router: router, HashKey: key})
					require.NoError(t, err)
					front = &gateway{dispatcher: s, client: &http.Client{Transport: base}}
				}
				w := httptest.NewRecorder()
				in := httptest.NewRequest("POST", tc.path, bytes.NewReader([]byte(tc.body)))
				cut := false
				func() {
					defer func() { cut = recover() != nil }()
					front.ServeHTTP(w, in)
				}()
				assert.Zero(t, router.Stats().OpenLeases)
				got[i] = fmt.Sprintf("%d cut %v %s\nheard %s\nsent %s", w.Code, cut, w.Body, strings.Join(o.outcomes, "\n"), strings.Join(base.sent, "\n"))
			}
			assert.Equal(t, got[0], got[1])
			t.Log(got[0])
		})
	}
}
