package traffic

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fleet returns servers that take no time.
func fleet(t *testing.T, n int) *Fleet {
	config := rig.Must(ServerConfig(1 << 16))
	config.Speed = 1000
	f := rig.Must(StartFleet(n, config))
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	return f
}

// A conversation in each API, as a stream and whole: the next turn goes to the same
// server and finds the answer in its cache.
func TestConverse(t *testing.T) {
	f := fleet(t, 1)
	w := Workload{Duration: time.Second, Rate: 30, Groups: 1, SystemTokens: 200, QuestionTokens: 30, OutputTokens: 40, Turns: 3, Seed: 1}
	conversations := w.Conversations()
	for i := range conversations[0].Turns {
		conversations[0].Turns[i].output = 60 // the most that Longest allows for
	}
	for name, api := range APIs {
		for _, once := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				c := NewClient("http://" + f.Members[0].Address + "/")
				defer c.Close()
				c.API, c.AtOnce = api, once
				var samples []Sample
				c.Converse(t.Context(), time.Now().Add(-time.Hour), &Cold(conversations)[0], func(s Sample) { samples = append(samples, s) })
				require.Len(t, samples, 3)
				for i, s := range samples {
					require.NoError(t, s.Err)
					assert.True(t, s.GotByte)
					assert.Equal(t, i, s.Turn)
					assert.Equal(t, conversations[0].Turns[i].output, s.OutputTokens)
					assert.Len(t, s.Text, 4*s.OutputTokens, "four bytes a token")
					assert.GreaterOrEqual(t, s.E2E, s.TTFT)
					assert.Positive(t, s.TTFT)
					if i == 0 {
						assert.Zero(t, s.CachedTokens)
						assert.Greater(t, s.PromptTokens, 230)
						continue
					}
					before := samples[i-1]
					assert.Greater(t, s.PromptTokens, before.PromptTokens+before.OutputTokens)
					if name != "completions" { // its prompt is one text, tokenized anew
						cached := (before.PromptTokens + before.OutputTokens - 1) / 16 * 16
						assert.GreaterOrEqual(t, s.CachedTokens, cached, "all of the turn before, in blocks")
					}
					assert.LessOrEqual(t, s.PromptTokens+s.OutputTokens, w.Longest())
				}
			})
		}
	}
	assert.Equal(t, "chat, completions, messages, responses", APINames())
}

// A failure ends a conversation and is reported.
func TestAnswersThatAreNone(t *testing.T) {
	const word, usage = `data: {"choices":[{"delta":{"content":"word"}}]}` + "\n\n", `data: {"choices":[],"usage":{"completion_tokens":4}}` + "\n\n"
	for name, tc := range map[string]struct {
		status  int
		body    string
		once    bool
		want    string
		gotByte bool
	}{
		"refused":        {status: 503, body: "busy \n", want: "503 Service Unavailable: busy"},
		"broken off":     {body: word, want: "the stream broke off", gotByte: true},
		"nothing":        {body: "", want: "the stream broke off"},
		"no text":        {body: usage + "data: [DONE]\n\n", want: "no text came", gotByte: true},
		"too short":      {body: word + usage + "data: [DONE]\n\n", want: "4 tokens instead of 5", gotByte: true},
		"no JSON":        {body: "data: {\n\n", want: "an event is not JSON", gotByte: true},
		"no JSON, whole": {body: "<html>", once: true, want: "an event is not JSON", gotByte: true},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked++
				if tc.status != 0 {
					w.WriteHeader(tc.status)
				}
				_, _ = io.WriteString(w, tc.body)
			}))
			defer server.Close()
			c := NewClient(server.URL)
			c.AtOnce = tc.once
			var samples []Sample
			c.Converse(t.Context(), time.Now(), &Conversation{Turns: []turn{{Question: "?", output: 5}, {Question: "?", output: 5}}},
				func(s Sample) { samples = append(samples, s) })
			require.Len(t, samples, 1)
			require.ErrorContains(t, samples[0].Err, tc.want)
			assert.Equal(t, tc.gotByte, samples[0].GotByte)
			assert.Equal(t, 1, asked)
		})
	}
}

// Targets go with each request, and the server receives what was asked for.
func TestRequests(t *testing.T) {
	var header http.Header
	var body, path string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, in *http.Request) {
		b, _ := io.ReadAll(in.Body)
		header, body, path = in.Header, string(b), in.URL.Path
	}))
	defer server.Close()
	c := NewClient(server.URL)
	c.SLO = endpick.SLO{TTFT: 1500 * time.Microsecond, TPOT: 20 * time.Millisecond}
	c.Ask(t.Context(), time.Now(), []Message{{"user", "Hi!"}}, 7)
	assert.Equal(t, []string{"1.5", "20"}, []string{header.Get("x-slo-ttft-ms"), header.Get("x-slo-tpot-ms")})
	assert.NotContains(t, header, "Idempotency-Key")
	assert.Equal(t, "/v1/chat/completions", path)
	assert.JSONEq(t, `{"model":"demo-8b","stream":true,"stream_options":{"include_usage":true},"max_tokens":7,"messages":[{"role":"user","content":"Hi!"}]}`, body)
	c.AtOnce, c.API, c.SLO = true, APIs["messages"], endpick.SLO{}
	c.Ask(t.Context(), time.Now(), []Message{{"system", "S"}, {"user", "Hi!"}}, 7)
	assert.JSONEq(t, `{"model":"demo-8b","max_tokens":7,"system":"S","messages":[{"role":"user","content":"Hi!"}]}`, body)
	assert.NotContains(t, header, "X-Slo-Ttft-Ms")
}

func TestModelOf(t *testing.T) {
	model := rig.Must(ModelOf(t.Context(), "http://"+fleet(t, 1).Members[0].Address+"/"))
	assert.Equal(t, modelserver.DefaultModel, model)
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	require.ErrorContains(t, rig.Err(ModelOf(t.Context(), server.URL)), "lists no model")
}

// A member that was killed comes back at its address with an empty cache.
func TestFleet(t *testing.T) {
	f := fleet(t, 2)
	endpoints := f.Endpoints()
	require.Len(t, endpoints, 2)
	assert.Equal(t, []string{"server-1", "server-2"}, []string{endpoints[0].ID, endpoints[1].ID})
	assert.Equal(t, 1<<16, endpoints[0].KVTokens)
	m := f.Members[0]
	assert.Equal(t, m.Address, endpoints[0].Address)
	c := NewClient("http://" + m.Address)
	defer c.Close()
	prompt := []Message{{"user", strings.Repeat("the same ", 50)}}
	ask := func() Sample { return c.Ask(t.Context(), time.Now(), prompt, 8) }
	require.NoError(t, ask().Err)
	assert.Positive(t, ask().CachedTokens)
	require.NoError(t, m.Kill())
	require.NoError(t, m.Kill(), "once is enough")
	require.Error(t, ask().Err)
	require.NoError(t, m.Start(f.config))
	s := ask()
	require.NoError(t, s.Err)
	assert.Zero(t, s.CachedTokens)
}

// All conversations are played, each request is reported, and cold ones share nothing with earlier ones.
func TestPlay(t *testing.T) {
	f := fleet(t, 1)
	w := Workload{Duration: 50 * time.Millisecond, Rate: 400, Groups: 2, SystemTokens: 100, QuestionTokens: 10, OutputTokens: 10, Turns: 2, Seed: 3}
	conversations := w.Conversations()
	require.NotEmpty(t, conversations)
	c := NewClient("http://" + f.Members[0].Address)
	defer c.Close()
	steps := 0
	samples := c.Play(t.Context(), conversations, func() { steps++ })
	assert.Len(t, samples, 2*len(conversations))
	assert.Equal(t, len(samples), steps)
	r := Summarise("x", samples, endpick.SLO{})
	assert.Zero(t, r.Failed, r.FirstErr)
	cold := Cold(conversations)
	assert.Equal(t, conversations[0].Turns, cold[0].Turns)
	assert.NotEqual(t, conversations[0].System[:8], cold[0].System[:8])
	assert.Zero(t, c.Ask(t.Context(), time.Now(), []Message{{"system", cold[0].System}}, 4).CachedTokens)
	assert.NotEqual(t, cold[0].System, Cold(conversations)[0].System)
	assert.Len(t, Words(rand.New(rand.NewPCG(1, 1)), 5), 20)
}

func TestSummarise(t *testing.T) {
	ms := time.Millisecond
	r := Summarise("p", []Sample{
		{TTFT: 10 * ms, E2E: 50 * ms, SinceFirst: 40 * ms, PromptTokens: 100, CachedTokens: 48, OutputTokens: 5},
		{TTFT: 20 * ms, E2E: 20 * ms, PromptTokens: 100, OutputTokens: 1, Turn: 1},             // no TPOT
		{TTFT: 15 * ms, E2E: 66 * ms, SinceFirst: 51 * ms, PromptTokens: 200, OutputTokens: 6}, // a TPOT of 10.2 ms
		{Err: errors.New("first"), PromptTokens: 1000},
		{Err: errors.New("second")},
	}, endpick.SLO{TTFT: 15 * ms, TPOT: 10 * ms})
	require.Equal(t, []int{5, 2}, []int{r.Requests, r.Failed})
	require.EqualError(t, r.FirstErr, "first")
	require.Equal(t, []Percentiles{{15, 20, 20}, {10, 10.2, 10.2}, {50, 66, 66}}, []Percentiles{*r.TTFT, *r.TPOT, *r.E2E})
	require.Equal(t, []float64{0.12, 0}, []float64{*r.PrefixHitRatio, *r.LaterHitRatio})
	require.Equal(t, 0.2, *r.SLOMet, "the first alone: two failed, one came late, one was slow")
}

func TestNothingMeasuredIsNotZero(t *testing.T) {
	results := []Result{Summarise("p", nil, endpick.SLO{})}
	var b bytes.Buffer
	require.NoError(t, WriteJSON(&b, results))
	require.JSONEq(t, `[{"policy":"p","requests":0,"failed":0,"ttft_ms":null,"tpot_ms":null,"e2e_ms":null,"prefix_hit_ratio":null,"prefix_hit_ratio_later":null}]`, b.String())
	b.Reset()
	require.NoError(t, WriteTable(&b, results))
	require.Regexp(t, `(?m)^ *p +0 +0( +-){8}$`, b.String())
}

func TestConversations(t *testing.T) {
	w := Workload{Duration: 100 * time.Second, Rate: 12, Groups: 5, SystemTokens: 100, QuestionTokens: 80, OutputTokens: 48, Turns: 3, Think: 400 * time.Millisecond, Seed: 1}
	all := w.Conversations()
	require.Equal(t, all, w.Conversations(), "the same seed gives the same conversations")
	// 400 are expected, with a standard deviation of 20.
	require.InDelta(t, 400, len(all), 80)
	systems := map[string]int{}
	last := time.Duration(0)
	var outputs, thinks float64
	for _, c := range all {
		require.GreaterOrEqual(t, c.start, last)
		require.Less(t, c.start, w.Duration)
		last = c.start
		systems[c.System]++
		require.Len(t, c.System, 400)
		require.Len(t, c.Turns, 3)
		require.Zero(t, c.Turns[0].think)
		for _, turn := range c.Turns {
			require.Len(t, turn.Question, 4*w.QuestionTokens)
			require.GreaterOrEqual(t, turn.output, 24)
			require.LessOrEqual(t, turn.output, 72)
			outputs += float64(turn.output)
			thinks += turn.think.Seconds()
		}
	}
	require.Len(t, systems, 5)
	require.InDelta(t, 48, outputs/float64(3*len(all)), 2)
	require.InDelta(t, 0.4, thinks/float64(2*len(all)), 0.06)

	w.Seed = 2
	require.NotEqual(t, all, w.Conversations())
}
