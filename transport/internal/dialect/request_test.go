package dialect

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const manyItems = 1 << 16

// promptScope is that of prompts in tests, unless they are about it.
var (
	promptScope = prefix.Scope{Model: "m", Salt: "salt"}
	promptSeed  = promptScope.Seed()
)

// understood is what is known of a request before it is routed.
type understood struct {
	request
	req   endpick.Request
	learn int // bytes of text to learn from
}

func understand(t testing.TB, kind *api, body string) understood {
	u, err := tryToUnderstand(kind, []byte(body), manyItems)
	require.NoError(t, err)
	return u
}

func tryToUnderstand(kind *api, body []byte, maxItems int) (u understood, err error) {
	if err := u.read(kind, body, maxItems, rates{}); err != nil {
		return u, err
	}
	return u, checkNames(&endpick.Request{Model: u.model})
}

// read reads a request for which a host may have set something, with what was learned before.
func (u *understood) read(kind *api, body []byte, maxItems int, learned rates) (err error) {
	if u.request, err = parse(kind, nil, body, maxItems); err != nil {
		return err
	}
	u.learn, err = u.readPrompt(context.Background(), &u.req, promptScope, learned)
	if u.unread {
		u.api, u.stream = other, false
	}
	return err
}

func TestOnlyTheHeadOfEndlessTokensIsHashed(t *testing.T) {
	u := understand(t, completion, "{\"prompt\":["+strings.Repeat("7,", maxHashedTokens+prefix.BlockTokens)+"7]}")
	assert.Equal(t, maxHashedTokens+prefix.BlockTokens+1, u.req.InputTokens)
	assert.Len(t, u.req.Blocks, maxHashedTokens/prefix.BlockTokens)
}

func TestExpectedOutputIsTheMeanOrTheLimit(t *testing.T) {
	learned := rates{output: 300, outputs: 3}
	for body, want := range map[string]int{
		`{"prompt":"x"}`:                    100,
		`{"prompt":"x","max_tokens":20}`:    20,
		`{"prompt":"x","max_tokens":5000}`:  100,
		`{"prompt":"x","n":3}`:              300,
		`{"prompt":"x","n":-1}`:             100,
		`{"prompt":"x","n":2000000000}`:     1<<31 - 1,
		`{"prompt":"x","max_tokens":"20"}`:  100,
		`{"prompt":"x","max_tokens":1e300}`: 100,
		`{"prompt":["x","y"],"n":2}`:        400,
		`{"input":"x"}`:                     100,
	} {
		var u understood
		require.NoError(t, u.read(completion, []byte(body), manyItems, learned))
		assert.Equal(t, want, u.req.ExpectedOutputTokens, body)
	}
}

// The number of parallel responses is known if they stream, or may.
func TestResponsesBesideEachOther(t *testing.T) {
	w := newTalk(t)
	for _, tc := range []struct {
		path, body string
		want       int
	}{
		{"/v1/chat/completions", `{"messages":[{}]}`, 0},
		{"/v1/chat/completions", `{"messages":[{}],"n":1}`, 0},
		{"/v1/chat/completions", `{"messages":[{}],"n":3}`, 3},
		{"/v1/completions", `{"prompt":["x","y"],"n":3}`, 6},
		{"/v1/completions", `{"prompt":[[1],[2]]}`, 2},
		{"/v1/completions", `{"prompt":["x","y","z"],"n":2000000000}`, math.MaxInt32},
		{"/generate", `{"text":["x","y"],"sampling_params":{"n":2}}`, 4},
		{"/completion", `{"prompt":"x","n_cmpl":2}`, 2},
		{"/v1/messages", `{"messages":[{}],"n":3}`, 0},
		{"/v1/responses", `{"input":"x","n":3}`, 0},
		{"/v1/embeddings", `{"input":["x","y"]}`, 0},
		{"/v1/other", `{"n":3}`, 0},
	} {
		assert.Equal(t, tc.want, w.ask(tc.path, tc.body, nil).Request.Responses, "%s %s", tc.path, tc.body)
	}
}

// A request that can't be routed by its model is refused; we tolerate what engines do.
func TestModels(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m"}`: "m", "\xef\xbb\xbf" + `{"model":"m"}`: "m", `{"model":"a","model":"b"}`: "b", `{"model":"\u0061"}`: "a",
		`{}`: "", `{"model":null}`: "", `{"model":""}`: "", `{"mod\u0065l":"m"}`: "m",
		`{"a":{"model":"m"}}`: "", ` {"model":"m"}`: "m",
		`{"model":7}`: "error", `{"model":["m"]}`: "error", `{"model":{"m":1}}`: "error", `{"model":true}`: "error", `{"model":"m","model":1}`: "error",
		"\xef\xbb\xbf" + `{"model":7}`: "error",
	} {
		for _, kind := range []*api{chat, completion, other} {
			c, err := parse(kind, nil, []byte(body), manyItems)
			if want == "error" {
				var bad *endpick.RequestError
				require.ErrorAs(t, err, &bad, body)
				assert.Equal(t, "model", bad.Field)
				continue
			}
			require.NoError(t, err, body)
			assert.Equal(t, want, c.model, body)
		}
	}
}

func joined(pieces [][]byte) string {
	var b strings.Builder
	for _, p := range pieces {
		b.Write(p)
	}
	return b.String()
}

func TestAskForUsage(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string
		keep           bool
	}{
		{"nothing was said", `{"prompt":"x","stream":true}`, `{"stream_options":{"include_usage":true},"prompt":"x","stream":true}`, true},
		{"white space stays", " {\n \"prompt\" : \"x\" , \"stream\" : true }\n", " {\"stream_options\":{\"include_usage\":true},\n \"prompt\" : \"x\" , \"stream\" : true }\n", true},
		{"empty options, which mean yes to some engines", `{"prompt":"x","stream":true,"stream_options":{}}`, "", false},
		{"figures in each event, which the client would see", `{"prompt":"x","stream":true,"stream_options":{"include_usage":false,"continuous_usage_stats":true}}`, "", false},
		{"null options", `{"stream_options": null ,"prompt":"x","stream":true}`, `{"stream_options": {"include_usage":true} ,"prompt":"x","stream":true}`, true},
		{"refused", `{"prompt":"x","stream":true,"stream_options":{"include_usage":false}}`, `{"prompt":"x","stream":true,"stream_options":{"include_usage":true}}`, true},
		{"other options stay", `{"prompt":"x","stream":true,"stream_options":{"a":1,"include_usage":null,"b":[2]}}`,
			`{"prompt":"x","stream":true,"stream_options":{"include_usage":true,"a":1,"b":[2]}}`, true},
		{"it stands between others", `{"prompt":"x","stream":true,"stream_options":{"a":1, "b":2 ,"include_usage":0,"c":3,"d":4}}`,
			`{"prompt":"x","stream":true,"stream_options":{"include_usage":true,"a":1,"b":2,"c":3,"d":4}}`, true},
		{"twice", `{"prompt":"x","stream":true,"stream_options":{"include_usage":true,"include_usage":false}}`, `{"prompt":"x","stream":true,"stream_options":{"include_usage":true}}`, true},
		{"twice, and asked for", `{"prompt":"x","stream":true,"stream_options":{"include_usage":false,"include_usage":true}}`, "", false},
		{"asked for", `{"prompt":"x","stream":true,"stream_options":{"include_usage":true}}`, "", false},
		{"asked for as engines in Python accept it", `{"prompt":"x","stream":true,"stream_options":{"include_usage":1}}`, "", false},
		{"no stream", `{"prompt":"x"}`, "", false},
		{"a byte order mark", "\xef\xbb\xbf" + `{"prompt":"x","stream":true}`, "\xef\xbb\xbf" + `{"stream_options":{"include_usage":true},"prompt":"x","stream":true}`, true},
		{"options that are none, and long", `{"prompt":"x","stream":true,"stream_options":{"include_usage":true,"a":"` + strings.Repeat("x", maxOptions) + `"}}`, "", false},
		{"options that are none", `{"prompt":"x","stream":true,"stream_options":7}`, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := understand(t, completion, tc.in)
			sent, hide := u.askForUsage()
			assert.Equal(t, tc.keep, hide)
			if tc.want == "" {
				tc.want = tc.in
			}
			assert.Equal(t, tc.want, joined(sent))
		})
	}
}
