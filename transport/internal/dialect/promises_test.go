package dialect

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tester is what *testing.T and *rapid.T have.
type tester interface {
	require.TestingT
	Context() context.Context
}

// talk is a reader with one endpoint, whose requests run from Read to Outcome.
type talk struct {
	t      tester
	reader *Reader
	router *endpick.Router
}

func newTalk(t tester) *talk { return newTalkWith(t, Config{}) }

func newTalkWith(t tester, config Config) *talk {
	return &talk{t, rig.Must(NewReader(config)), rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a"}}}))}
}

// read reads a request, which the host may change (if not nil) before its prompt is read.
func (w *talk) read(in Incoming, host func(*endpick.Request)) *Call {
	c := rig.Must(w.reader.Read(in))
	if host != nil {
		host(&c.Request)
	}
	require.NoError(w.t, c.Prompt(w.t.Context()))
	return c
}

// ask reads a request of an API, and asks for usage.
func (w *talk) ask(path, body string, host func(*endpick.Request)) *Call {
	c := w.read(Incoming{Method: http.MethodPost, Path: path, Body: []byte(body)}, host)
	c.Body(true)
	return c
}

// meter is the meter of a response of this type.
func (w *talk) meter(c *Call, kind string) *Meter {
	m := c.Meter(rig.Must(w.router.Route(c.Request)), time.Now)
	m.Header(http.StatusOK, http.Header{"Content-Type": {kind}})
	return m
}

// streaming is the meter of a stream of events, in answer to this request.
func (w *talk) streaming(path, body string) *Meter {
	return w.meter(w.ask(path, body, nil), EventStream)
}

// answer answers a call.
func (w *talk) answer(c *Call, kind, response string, status endpick.Status) endpick.Outcome {
	m := w.meter(c, kind)
	m.Feed(nil, []byte(response))
	if status == endpick.Completed {
		_, err := m.End(nil)
		require.NoError(w.t, err)
	}
	o := m.Outcome(status)
	m.lease.Done(o)
	return o
}

// holder is the endpoint to which a request for a stored response of this tenant has to go.
func (w *talk) holder(method, path, tenant string) string {
	return w.read(Incoming{Method: method, Path: path}, of(tenant)).Endpoint()
}

func of(tenant string) func(*endpick.Request) { return func(r *endpick.Request) { r.Tenant = tenant } }

// A request that continues a stored response is sent where it is and belongs to its
// session, unless its tenant is another or it names a session of its own.
func TestAStoredResponseIsItsTenants(t *testing.T) {
	w := newTalk(t)
	first := w.ask("/v1/responses", `{"model":"m","input":"hi","user":"u"}`, of("red"))
	w.answer(first, "application/json", `{"id":"resp_1","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hello"}]}]}`, endpick.Completed)
	next := `{"model":"m","input":"more","previous_response_id":"resp_1"`
	all := w.ask("/v1/responses", `{"model":"m","input":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"text":"hello"}]},{"role":"user","content":"more"}]}`, of("red")).Request
	assert.Equal(t, all.InputTokens, w.ask("/v1/responses", next+"}", of("red")).Request.InputTokens, "as long as all that was said")
	for _, x := range []struct{ tenant, more, endpoint, session string }{
		{"red", "}", "a", "u"},
		{"red", `,"user":"v"}`, "a", "v"},
		{"blue", "}", "", ""},
		{"", "}", "", ""},
	} {
		c := w.ask("/v1/responses", next+x.more, of(x.tenant))
		assert.Equal(t, x.endpoint, c.Endpoint(), x)
		if x.session != "" {
			assert.Equal(t, x.session, c.Request.Session, x)
		} else {
			assert.NotEqual(t, "u", c.Request.Session, x)
		}
	}
	// Nor does its path lead another tenant there.
	assert.Equal(t, "a", w.holder(http.MethodGet, "/v1/responses/resp_1", "red"))
	assert.Empty(t, w.holder(http.MethodGet, "/v1/responses/resp_1", "blue"))
}

// A running response is found where it is computed: its client may cancel it, or
// reconnect to its stream.
func TestAResponseIsFoundBeforeItHasEnded(t *testing.T) {
	begun := events(`{"type":"response.created","response":{"id":"resp_1","status":"queued","output":[]}}`)
	delta := events(`{"type":"response.output_text.delta","delta":"hello"}`)
	for _, x := range []struct {
		name, more, want string
		end              func(m *Meter) // ends the response
	}{
		{"it goes on", "", "a", func(*Meter) {}},
		{"its client has left", "", "a", func(m *Meter) { m.Outcome(endpick.Canceled) }},
		{"its server has broken off", "", "a", func(m *Meter) { m.Outcome(endpick.Failed) }},
		{"it has ended", `,"store":true`, "a", func(m *Meter) {
			m.Feed(nil, []byte(events(`{"type":"response.completed","response":{"id":"resp_1","output":[]}}`)))
			m.Outcome(endpick.Completed)
		}},
		{"it is not stored", `,"store":false`, "", func(*Meter) {}},
	} {
		w := newTalk(t)
		c := w.ask("/v1/responses", `{"model":"m","input":"hi","stream":true,"background":true`+x.more+`}`, of("red"))
		m := w.meter(c, EventStream)
		m.Feed(nil, []byte(begun+delta))
		x.end(m)
		for tenant, want := range map[string]string{"red": x.want, "blue": ""} {
			assert.Equal(t, want, w.holder(http.MethodPost, "/v1/responses/resp_1/cancel", tenant), "%s, asked by %s", x.name, tenant)
		}
		if x.want != "" {
			assert.Len(t, w.reader.stored.byKey, 1, x.name)
		}
	}
}

// If a stored response can't be continued block by block, its length still counts: that
// of its prompt, and of what was seen of it.
func TestTheLengthOfAStoredResponse(t *testing.T) {
	w := newTalk(t)
	said, prompt := strings.Repeat("x", 4000), strings.Repeat("y", 8000)
	w.answer(w.ask("/v1/responses", `{"model":"m","input":"`+prompt+`","stream":true}`, nil), EventStream, events(
		`{"type":"response.created","response":{"id":"resp_1","output":[]}}`,
		`{"type":"response.reasoning_text.delta","delta":"`+said+`"}`,
		`{"type":"response.completed","response":{"id":"resp_1","output":[{"type":"reasoning"}]}}`,
	), endpick.Completed)
	alone := w.ask("/v1/responses", `{"model":"m","input":"more"}`, nil).Request.InputTokens
	c := w.ask("/v1/responses", `{"model":"m","input":"more","previous_response_id":"resp_1"}`, nil)
	assert.InDelta(t, alone+(8000+4000)/4, c.Request.InputTokens, 30)
	assert.Empty(t, c.Request.Blocks, "what stands between is not known")
}

// Blocks and learned lengths belong to the model in the body, whatever model the host
// routes by.
func TestTheModelOfTheBodyDecides(t *testing.T) {
	const path = "/v1/chat/completions"
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("why ", 200) + `"}]}`
	alias := func(r *endpick.Request) { r.Model = "pool" }
	w := newTalk(t)
	plain, routed := w.ask(path, body, nil), w.ask(path, body, alias)
	assert.NotEmpty(t, plain.Request.Blocks)
	assert.Equal(t, plain.Request.Blocks, routed.Request.Blocks)
	assert.Equal(t, "pool", routed.Request.Model)
	assert.NotEqual(t, plain.Request.Blocks[0], w.ask(path, strings.Replace(body, `"m"`, `"other"`, 1), alias).Request.Blocks[0])

	before := plain.Request.InputTokens
	for range 50 {
		o := w.answer(w.ask(path, body, alias), "application/json", `{"choices":[{"message":{"role":"assistant","content":"x"}}],"usage":{"prompt_tokens":800,"completion_tokens":70}}`, endpick.Completed)
		require.Equal(t, 800, o.InputTokens)
	}
	after := w.ask(path, body, alias).Request
	assert.Greater(t, after.InputTokens, 3*before)
	assert.Equal(t, 70, after.ExpectedOutputTokens)
	assert.Equal(t, before, w.ask(path, strings.Replace(body, `"m"`, `"pool"`, 1), nil).Request.InputTokens, "nothing is known of that")
}

func TestWhatFailsTeachesNothing(t *testing.T) {
	const path = "/v1/chat/completions"
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("why ", 200) + `"}]}`
	for _, status := range []endpick.Status{endpick.Failed, endpick.Canceled, endpick.Lost} {
		w := newTalk(t)
		before := w.ask(path, body, nil).Request
		w.answer(w.ask(path, strings.Replace(body, "{", `{"stream":true,`, 1), nil), EventStream,
			`data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":800,"completion_tokens":70}}`+"\n\n", status)
		assert.Equal(t, before, w.ask(path, body, nil).Request, status)
	}
}

// Of repeated members the last one counts, even if it is not a number.
func TestTheLastNumberCounts(t *testing.T) {
	for body, want := range map[string][2]int{ // responses, and their limit
		`{"n":3}`: {3, 0}, `{"n":3,"n":2}`: {2, 0}, `{"n":3,"n":null}`: {1, 0}, `{"n":3,"n":"4"}`: {1, 0}, `{"n":0}`: {1, 0}, `{"n":2,"n_cmpl":4}`: {4, 0},
		`{"max_tokens":5,"max_tokens":6}`: {1, 6}, `{"max_tokens":5,"max_completion_tokens":null}`: {1, 5}, `{"max_output_tokens":7,"n_predict":-1}`: {1, 7},
	} {
		c := rig.Must(parse(completion, nil, []byte(body), manyItems))
		assert.Equal(t, want, [2]int{c.responses(), c.maxTokens}, body)
	}
}
