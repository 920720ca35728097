package transport_test

import (
	"bytes"
	"fmt"
	"math"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
)

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

	_, list := w.ok(t, getting(t, "/v1/models"))
	assert.Contains(t, list, `"id":"fast"`)
	_, one := w.ok(t, getting(t, "/v1/models/fast"))
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
		_, body := w.ok(t, getting(t, "/v1/realtime?intent=x&model=fast"))
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
	a := rig.Must(call.Route(t.Context()))
	assert.Equal(t, "e", a.Endpoint().ID)
	assert.Equal(t, `{"model":"b","messages":[]}`, string(bytes.Join(call.Body(), nil)))
	assert.Contains(t, call.Request.Receipt.String(), `model "b", `)
	assert.Contains(t, call.Request.Receipt.String(), `, asked for as "x"`)

	inQuery := rig.Must(d.Read(transport.Incoming{Method: "GET", Path: "/v1/realtime", Query: "model=x", Header: http.Header{}}))
	defer inQuery.Close()
	_, err := inQuery.Route(t.Context())
	assert.ErrorContains(t, err, `model "x"`, "it would be sent as it is")
}

func TestBadNames(t *testing.T) {
	for _, c := range []struct {
		names map[string]transport.Name
		text  string
	}{
		{map[string]transport.Name{"": {Models: []string{"m"}}}, `Names[""] is empty, longer than 256 bytes, or not UTF-8`},
		{map[string]transport.Name{"\xff": {Models: []string{"m"}}}, `Names["\xff"] is empty, longer than 256 bytes, or not UTF-8`},
		{map[string]transport.Name{"a": {}}, `Names["a"] has 0 models, not 1 to 16`},
		{map[string]transport.Name{"a": {Models: make([]string, 17)}}, `Names["a"] has 17 models, not 1 to 16`},
		{map[string]transport.Name{"a": {Models: []string{""}}}, `Names["a"] has the model "", which is empty, longer than 256 bytes, or not UTF-8`},
		{map[string]transport.Name{"a": {Models: []string{"m", "m"}}}, `Names["a"] has the model "m" twice`},
		{map[string]transport.Name{"a": {Models: []string{"b"}}, "b": {Models: []string{"a"}}}, `Names["a"] has "b", which is such a name itself`},
		{map[string]transport.Name{"a": {Models: []string{"m"}, Weights: []float64{1, 2}}}, `Names["a"] has 2 weights for 1 models`},
		{map[string]transport.Name{"a": {Models: []string{"m", "n"}, Weights: []float64{0, 0}}}, `Names["a"] has weights that sum to 0`},
		{map[string]transport.Name{"a": {Models: []string{"m", "n"}, Weights: []float64{2, -1}}}, `Names["a"] has a weight of -1`},
		{map[string]transport.Name{"a": {Models: []string{"m"}, Weights: []float64{math.NaN()}}}, `Names["a"] has a weight of NaN`},
	} {
		w := newWorld(t, transport.Config{})
		assert.EqualError(t, w.t.SetNames(c.names), "endpick: config: transport.Config."+c.text)
		_, err := transport.New(transport.Config{Router: w.router, Names: c.names})
		assert.EqualError(t, err, "endpick: config: transport.Config."+c.text)
	}
	w := newWorld(t, transport.Config{})
	assert.NoError(t, w.t.SetNames(map[string]transport.Name{"a": {Models: []string{"a", "b"}}}), "a model with a fallback")
}
