package dialect

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startedMeter is the meter of a stream whose client did not ask for usage.
func startedMeter(t tester) *Meter {
	return newTalk(t).streaming("/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`)
}

var oneChunk = []byte("data: " + contentChunk + "\n\n")

func TestMeteringAChunkAllocatesNothing(t *testing.T) {
	m := startedMeter(t)
	out := m.Feed(nil, oneChunk)
	assert.Equal(t, string(oneChunk), string(out))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { out = m.Feed(out[:0], oneChunk) }))
}

// What is counted after each event. A running count from an engine covers everything so far, including what
// was estimated as longer: the next piece is estimated by itself. Of a text that is repeated from its
// beginning, only what is new counts. Each of several interleaved responses has a count of its own: none is
// charged for another.
func TestTokensAreCountedAsTheyCome(t *testing.T) {
	says := func(bytes int, usage string) string {
		return fmt.Sprintf(`{"choices":[{"delta":{"content":%q}}]%s}`, strings.Repeat("x", bytes), usage)
	}
	repeats := func(bytes int) string { return fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", bytes)) }
	for _, tc := range []struct {
		name, path, body string
		events           []string
		want             []int // tokens so far
		outcome          int   // the engine's total; 0: unknown
	}{
		{"four bytes a token, whose parts add up", "/v1/chat/completions", `{"model":"m","messages":[{}],"stream":true}`, []string{
			says(32, ""), says(400, `,"usage":{"completion_tokens":11}`), says(8, ""), says(3, ""), says(1, ""),
		}, []int{8, 11, 13, 13, 14}, 11},
		{"a text repeated", "/generate", `{"model":"m","text":"hello","stream":true}`, []string{repeats(8), repeats(16), repeats(16), repeats(32)}, []int{2, 4, 4, 8}, 0},
		{"SGLang repeats the text", "/generate", `{"model":"m","text":["a","b"],"stream":true}`, []string{
			`{"text":"xxxxxxxx","index":0}`, `{"text":"xxxxxxxxxxxx","index":1}`, `{"text":"xxxxxxxxxxxxxxxx","index":0}`, `{"text":"xxxxxxxxxxxxxxxx","index":1}`,
		}, []int{2, 5, 7, 8}, 0},
		{"SGLang counts", "/generate", `{"model":"m","text":"a","sampling_params":{"n":2},"stream":true}`, []string{
			`{"text":"x","meta_info":{"prompt_tokens":9,"completion_tokens":5},"index":0}`, `{"text":"x","meta_info":{"prompt_tokens":9,"completion_tokens":3},"index":1}`,
			`{"text":"xy","meta_info":{"prompt_tokens":9,"completion_tokens":6},"index":1}`, `{"text":"xy","meta_info":{"prompt_tokens":9,"completion_tokens":7},"index":0}`,
			`{"text":"xyz","meta_info":{"prompt_tokens":9,"completion_tokens":9},"index":0}`,
		}, []int{5, 8, 11, 13, 15}, 0},
		{"vLLM counts in each chunk", "/v1/chat/completions", `{"model":"m","messages":[{}],"n":2,"stream":true}`, []string{
			`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`,
			`{"choices":[{"index":1,"delta":{"content":"b"}}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`,
			`{"choices":[{"index":1,"delta":{"content":"b"}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`,
			`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":6}}`,
		}, []int{2, 4, 5, 5}, 6},
		{"alone, it is as it was", "/v1/chat/completions", `{"model":"m","messages":[{}],"stream":true}`, []string{
			`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`,
			`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":4}}`,
			`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`,
		}, []int{2, 4, 4}, 3},
	} {
		m := newTalk(t).streaming(tc.path, tc.body)
		for i, event := range tc.events {
			m.Feed(nil, []byte("data: "+event+"\n\n"))
			assert.Equal(t, tc.want[i], m.counted, "%s, event %d", tc.name, i)
		}
		assert.Equal(t, tc.outcome, m.Outcome(endpick.Completed).OutputTokens, tc.name)
	}
}

// An engine that invents choices fills no memory.
func TestChoicesAreBounded(t *testing.T) {
	m := newTalk(t).streaming("/v1/chat/completions", `{"model":"m","messages":[{}],"n":3,"stream":true}`)
	for i := range 50 {
		m.Feed(nil, fmt.Appendf(nil, "data: {\"choices\":[{\"index\":%d,\"delta\":{\"content\":\"x\"}}]}\n\n", i))
	}
	assert.Len(t, m.choices, 3)
	assert.Equal(t, maxChoices, newTalk(t).streaming("/v1/completions", `{"model":"m","prompt":"a","n":1000000,"stream":true}`).most)
}

// A stream with an event too long to parse is passed on, and nothing is concluded
// from it: neither that it was cut off nor how it continues.
func TestAStreamWithAnEventTooLong(t *testing.T) {
	content := []byte(`data: {"choices":[{"delta":{"content":"` + strings.Repeat("x", 100) + `"}}]}` + "\n\n")
	for _, long := range []bool{false, true} {
		m := startedMeter(t)
		m.Feed(nil, content)
		if long {
			m.Feed(nil, []byte("data: "+strings.Repeat("x", maxEvent+1)+"\n\n"))
		}
		_, err := m.End(nil)
		blocks := m.Outcome(endpick.Completed).Blocks
		if long {
			assert.NoError(t, err)
			assert.Empty(t, blocks)
		} else {
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
			assert.NotEmpty(t, blocks)
		}
	}
}

// firstTokens is how many tokens came with the first one.
type firstTokens int

func (f *firstTokens) Match(*endpick.Request, []endpick.Candidate) {}
func (f *firstTokens) FirstToken(ev *endpick.Event)                { *f = firstTokens(ev.OutputTokens) }

// A lease gets all tokens of a piece in one call once the piece has been read,
// including those of an event that ends the stream.
func TestTokensAreReportedByThePiece(t *testing.T) {
	w := newTalk(t)
	var first firstTokens
	require.NoError(t, w.router.SetPolicy(endpick.Policy{Matcher: &first}))
	reported := func() int { return w.router.Endpoints()[0].Candidate.InFlight.OutputTokens }
	m := w.streaming("/v1/chat/completions", `{"stream":true,"messages":[{}]}`)
	event := strings.Replace(string(oneChunk), "work", strings.Repeat("work ", 20), 1)
	m.Feed(nil, []byte(strings.Repeat(event, 5)+"data: {\"choices\":[{}]}\n\n"+event[:10]))
	require.NotZero(t, reported())
	require.Equal(t, m.Seen().OutputTokens, reported())
	require.EqualValues(t, reported(), first, "it came with the others")
	before := reported()
	m.Feed(nil, []byte(strings.TrimRight(event[10:], "\n")))
	require.Equal(t, before, reported())
	_, err := m.End(nil)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Greater(t, reported(), before)
	require.Equal(t, m.Seen().OutputTokens, reported())
}

// An engine's figure that no response of this size can have had is none.
func TestImpossibleUsageIsNone(t *testing.T) {
	body := func(tokens int) string {
		return fmt.Sprintf(`{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":3,"completion_tokens":%d}}`, tokens)
	}
	for tokens, want := range map[int]int{9: 9, 5000: 5000, 1 << 20: 0, 1<<31 - 1: 0} {
		seen, outcome, err := metered(t, "/v1/chat/completions", `{"messages":[{}]}`, "application/json", body(tokens))
		require.NoError(t, err)
		assert.Equal(t, max(want, 1), seen.OutputTokens, "%d, by its length", tokens)
		assert.Equal(t, want, outcome.OutputTokens, tokens)
		assert.Equal(t, 3, outcome.InputTokens)
		m := newTalk(t).streaming("/v1/chat/completions", `{"stream":true,"messages":[{}]}`)
		m.Feed(nil, []byte("data: "+strings.Replace(body(tokens), "message", "delta", 1)+"\n\n"))
		m.Outcome(endpick.Canceled)
		assert.Equal(t, max(want, 1), m.Seen().OutputTokens, "%d, as a stream goes", tokens)
	}
}
