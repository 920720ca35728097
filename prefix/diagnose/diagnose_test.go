package diagnose_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/diagnose"
	"github.com/endpick/endpick/prefix/diagnose/sketch"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var key = prefix.NewKey()

func text(role, content string) prefix.Message {
	return prefix.Message{Role: role, Parts: []prefix.Part{{Content: content}}}
}

// filler is text of so many tokens of four bytes that occurs nowhere else.
func filler(seed, tokens int) string {
	var b strings.Builder
	for i := range tokens {
		fmt.Fprintf(&b, "%c%c%c ", 'a'+seed%26, 'a'+i%26, 'a'+i/26%26)
	}
	return b.String()
}

var base = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// asked is a request that arrived so many seconds after the start and took one. A
// token is four bytes; around a message there are three and its role; the head of
// the answer has five.
func asked(second int, endpoint string, cached int, c conversation, change ...func(*recording.Request)) *recording.Request {
	return recorded(second, endpoint, cached, c, false, change...)
}

// said is asked of a server with the text recorded.
func said(second int, cached int, c conversation) *recording.Request {
	return recorded(second, "a", cached, c, true)
}

func recorded(second int, endpoint string, cached int, c conversation, words bool, change ...func(*recording.Request)) *recording.Request {
	ttft := 1000.0
	r := &recording.Request{
		Version: recording.Version, Time: base.Add(time.Duration(second) * time.Second), TTFTMillis: &ttft, E2EMillis: 1500,
		Model: "m", Endpoint: endpoint, Status: "completed", HTTP: 200, Attempts: 1, Stream: true, OutputTokens: 16, CachedTokens: &cached, BlockTokens: 16,
	}
	for _, f := range change {
		f(r)
	}
	r.InputTokens = 5
	s := sketch.New(key, words)
	var h prefix.Hasher
	h.Reset(prefix.Scope{Key: key, Model: r.Model, Adapter: r.Adapter, Tenant: fmt.Sprint(r.Tenant), Salt: fmt.Sprint(r.Salt)}.Seed(), nil)
	for _, tool := range c.Tools {
		h.WriteTool(tool)
		s.Tool(tool, h.Len())
		r.InputTokens += (len(tool) + 1) / 4
	}
	if len(c.Tools) > 0 {
		r.InputTokens += 2
	}
	for i := range c.Messages {
		m := &c.Messages[i]
		h.WriteMessage(m)
		s.Message(m, h.Len())
		r.InputTokens += 3 + (len(m.Role)+3)/4 + (len(m.Parts[0].Content)+3)/4
	}
	for _, b := range h.Blocks() {
		r.Blocks = append(r.Blocks, recording.Hash(b))
	}
	r.Prompt = s.Prompt
	return r
}

// conversation is the prompt of a chat request.
type conversation struct {
	Tools    []string
	Messages []prefix.Message
}

func chat(messages ...prefix.Message) conversation { return conversation{Messages: messages} }

func explain(requests ...*recording.Request) *diagnose.Report {
	return rig.Must(diagnose.Explain(requests, diagnose.Config{Price: 2, CachedMultiplier: 0.25}))
}

// brief summarizes a report: cause, place, requests and tokens.
func brief(r *diagnose.Report) (all []string) {
	for _, f := range r.Findings {
		place := ""
		if f.Message >= 0 {
			place = fmt.Sprintf(" at %d:%d", f.Message, f.Offset)
		}
		all = append(all, fmt.Sprintf("%v%s: %d in %d", f.Cause, place, f.Tokens, f.Requests))
	}
	return all
}

func ofTenant(h recording.Hash) func(*recording.Request) {
	return func(r *recording.Request) { r.Tenant = h }
}

var (
	system   = text("system", filler(1, 200)) // 205 tokens: head 2, role 2, text 200, end 1
	question = text("user", filler(2, 20))    // 24
	answer   = text("assistant", filler(3, 16))
	second   = text("user", filler(4, 20))
	first    = chat(system, question)                 // 205 + 24 + 5 = 234
	goneOn   = chat(system, question, answer, second) // 234 + 16 + 1 + 24 + 5 = 280
	another  = chat(system, text("user", filler(5, 20)))
)

func TestExplain(t *testing.T) {
	at := func(clock string, more ...prefix.Message) conversation {
		// The clock is behind 3 tokens of text, 201 in all.
		return chat(append([]prefix.Message{text("system", "It is now   "+clock+filler(1, 196))}, more...)...)
	}
	tools := func(order ...int) conversation {
		c := first
		for _, i := range order {
			c.Tools = append(c.Tools, `{"name":"`+filler(10+i, 22)+`"}`) // 99 bytes, and a comma
		}
		return c
	}
	for _, tc := range []struct {
		name     string
		requests []*recording.Request
		want     []string
	}{
		{"nothing there", nil, nil},
		{"one", []*recording.Request{asked(0, "a", 0, first)}, nil},
		{"a conversation goes on", []*recording.Request{asked(0, "a", 0, first), asked(2, "a", 240, goneOn)}, nil},
		{"the same again", []*recording.Request{asked(0, "a", 0, first), asked(2, "a", 224, first)}, nil},
		// Of 234 tokens, fourteen blocks are complete.
		{"another server", []*recording.Request{asked(0, "a", 0, first), asked(2, "b", 0, goneOn)}, []string{"other server: 224 in 1"}},
		{"evicted", []*recording.Request{asked(0, "a", 0, first), asked(2, "a", 0, goneOn)}, []string{"evicted: 224 in 1"}},
		{"evicted in part", []*recording.Request{asked(0, "a", 0, first), asked(2, "a", 192, goneOn)}, []string{"evicted: 32 in 1"}},
		{"evicted, but for less than counts", []*recording.Request{asked(0, "a", 0, first), asked(2, "a", 224, goneOn)}, nil},
		{"more than a whole block of what was sent", // by an engine that counts single tokens
			[]*recording.Request{asked(0, "a", 0, first), asked(2, "a", 233, first), asked(4, "b", 0, goneOn)}, []string{"other server: 224 in 1"}},
		{"back to a server that knows the beginning",
			[]*recording.Request{asked(0, "a", 0, first), asked(2, "b", 0, goneOn), asked(4, "a", 224, chat(append(slices.Clone(goneOn.Messages), answer, question)...))},
			// b has 280; a 234.
			[]string{"other server: 272 in 2"}}, // 224, and 272 − 224
		{"it was not ready", []*recording.Request{asked(0, "a", 0, first), asked(0, "b", 0, first)}, nil},
		{"only just ready", []*recording.Request{asked(0, "a", 0, first), asked(1, "b", 0, first)}, []string{"other server: 224 in 1"}},
		{"too long ago", []*recording.Request{asked(0, "a", 0, first), asked(3602, "a", 0, first)}, nil},
		{"not too long ago", []*recording.Request{asked(0, "a", 0, first), asked(3601, "a", 0, first)}, []string{"evicted: 224 in 1"}},
		{"a failure leaves nothing",
			[]*recording.Request{asked(0, "a", 0, first, func(r *recording.Request) { r.HTTP = 500 }), asked(2, "a", 0, first)}, nil},
		{"nor does what was never sent", []*recording.Request{asked(0, "", 0, first), asked(2, "a", 0, first)}, nil},
		{"nor what was given up before its first token",
			[]*recording.Request{asked(0, "a", 0, first, func(r *recording.Request) { r.Status, r.TTFTMillis = "canceled", nil }), asked(2, "a", 0, first)}, nil},
		{"what was given up after it does",
			[]*recording.Request{asked(0, "a", 0, first, func(r *recording.Request) { r.Status = "canceled" }), asked(2, "a", 0, first)}, []string{"evicted: 224 in 1"}},
		{"thoughts are not sent back", // 116 tokens, of which the client sends 16
			[]*recording.Request{asked(0, "a", 0, first, func(r *recording.Request) { r.OutputTokens = 116 }), asked(2, "a", 224, goneOn)}, nil},

		// 2 + 2 + 3 tokens precede the clock; with the question's head, 205 + 1 + 3 would
		// be shared otherwise: 208.
		{"a clock", []*recording.Request{asked(0, "a", 0, at("10:30   ", question)), asked(2, "a", 0, at("10:31   ", second))},
			[]string{"timestamp at 0:12: 208 in 1"}},
		{"a clock in each of three", []*recording.Request{
			asked(0, "a", 0, at("10:30   ", question)), asked(2, "a", 0, at("10:31   ", second)), asked(4, "a", 0, at("10:32   ", question)),
		}, []string{"timestamp at 0:12: 432 in 2"}}, // 208, and 235 of the first
		{"a clock in what was not ready", []*recording.Request{
			asked(0, "a", 0, asks("10:30")), asked(0, "a", 208, asks("10:31", answer, second)),
		}, nil},
		{"a clock too long ago", []*recording.Request{
			asked(0, "a", 0, asks("10:30")), asked(3602, "a", 208, asks("10:31", answer, second)),
		}, nil},
		{"a clock at the end", []*recording.Request{
			asked(0, "a", 0, chat(text("system", filler(1, 196)+"It is  10:30"), question)), asked(2, "a", 192, chat(text("system", filler(1, 196)+"It is  10:31"), second)),
		}, nil},
		{"a clock in the question", []*recording.Request{
			asked(0, "a", 0, chat(system, text("user", "10:30 "+filler(2, 100)))), asked(2, "a", 208, chat(system, text("user", "10:31 "+filler(2, 100)))),
		}, nil},
		{"a clock in a question that is past", []*recording.Request{
			asked(0, "a", 0, chat(system, text("user", "10:30   "+filler(2, 98)))),
			asked(2, "a", 208, chat(system, text("user", "10:31   "+filler(2, 98)), answer, second)),
		}, []string{"timestamp at 1:0: 96 in 1"}}, // to the end of that question, and 208 were cached
		{"words", []*recording.Request{
			asked(0, "a", 0, first), asked(2, "a", 0, chat(text("system", "Now then, "+system.Parts[0].Content[10:]), second)),
		}, []string{"reworded at 0:0: 208 in 1"}},
		{"another prompt", []*recording.Request{asked(0, "a", 0, first), asked(2, "a", 0, chat(text("system", filler(9, 200)), second))}, nil},
		{"white space", []*recording.Request{
			asked(0, "a", 0, first), asked(2, "a", 96, chat(text("system", system.Parts[0].Content[:399]+"\n"+system.Parts[0].Content[400:]), second)),
		}, []string{"whitespace at 0:379: 112 in 1"}}, // about: six blocks end there
		{"tools turned", []*recording.Request{asked(0, "a", 0, tools(1, 2, 3)), asked(2, "a", 0, tools(3, 2, 1))},
			[]string{"tools reordered at 0:-1: 304 in 1"}}, // 2 + 3·25 + 234 = 311
		{"a tool more", []*recording.Request{asked(0, "a", 0, tools(1, 2, 3)), asked(2, "a", 48, tools(1, 2, 4, 3))},
			[]string{"tools changed at 2:-1: 246 in 1"}}, // 320 of 336 are whole; 48 were cached, and 26 are the new one
		{"a tool less, the last", []*recording.Request{asked(0, "a", 0, tools(1, 2, 3)), asked(2, "a", 48, tools(1, 2))},
			[]string{"tools changed at 2:-1: 224 in 1"}},
		{"a tool less, the first", []*recording.Request{asked(0, "a", 0, tools(1, 2, 3)), asked(2, "a", 0, tools(2, 3))},
			[]string{"tools changed at 0:-1: 272 in 1"}},
		{"a tool more, for another prompt", []*recording.Request{
			asked(0, "a", 0, tools(1, 2, 3)), asked(2, "a", 48, conversation{
				Tools: tools(1, 2, 4, 3).Tools, Messages: []prefix.Message{text("system", "Now then, "+system.Parts[0].Content[10:]), second},
			}),
		}, nil},
		{"put in", []*recording.Request{
			asked(0, "a", 0, asks("10:30")), asked(2, "a", 208, chat(system, text("user", filler(6, 8)), asks("10:30").Messages[1], answer, second)),
		}, []string{"inserted at 1:0: 101 in 1"}}, // the question of about a hundred
		{"put in at two places", []*recording.Request{
			asked(0, "a", 0, asks("10:30")), asked(2, "a", 208, chat(system, text("user", filler(6, 8)), asks("10:30").Messages[1], answer, second)),
			asked(4, "a", 0, chat(text("system", filler(11, 200)), text("assistant", filler(12, 20)), text("user", filler(13, 101)))),
			asked(6, "a", 224, chat(text("system", filler(11, 200)), text("assistant", filler(12, 20)), text("user", filler(14, 8)), text("user", filler(13, 101)), answer, second)),
		}, []string{"inserted at 1:0: 218 in 2"}},
		{"dropped", []*recording.Request{
			asked(0, "a", 0, chat(append(slices.Clone(first.Messages), answer, asks("10:30").Messages[1])...)),
			asked(2, "a", 208, chat(system, asks("10:30").Messages[1], text("assistant", filler(7, 16)), text("user", filler(8, 40)))),
			asked(4, "a", 0, chat(text("system", filler(11, 200)), text("assistant", filler(12, 20)), text("user", filler(13, 20)), text("assistant", filler(14, 8)), text("user", filler(15, 101)))),
			asked(6, "a", 224, chat(text("system", filler(11, 200)), text("assistant", filler(12, 20)), text("user", filler(15, 101)), text("assistant", filler(16, 16)), text("user", filler(17, 40)))),
		}, []string{"dropped at 1:0: 208 in 2"}},
		{"what a tool says now", []*recording.Request{
			asked(0, "a", 0, chat(system, text("tool", "10:30 "+filler(9, 100)))), asked(2, "a", 208, chat(system, text("tool", "10:31 "+filler(9, 100)))),
		}, nil},
		{"another tenant's", []*recording.Request{asked(0, "a", 0, first, ofTenant(1), inSession(7)), asked(2, "b", 0, another, ofTenant(2), inSession(7))}, nil},
		{"the conversation of another tenant", []*recording.Request{asked(0, "a", 0, first, ofTenant(1)), asked(2, "b", 0, goneOn, ofTenant(2))},
			[]string{"other tenant: 224 in 1"}},
		{"another adapter", []*recording.Request{
			asked(0, "a", 0, first), asked(2, "a", 0, goneOn, func(r *recording.Request) { r.Adapter = "l" }),
		}, []string{"other adapter: 224 in 1"}},
		{"another model", []*recording.Request{
			asked(0, "a", 0, first), asked(2, "a", 0, first, func(r *recording.Request) { r.Model = "n" }),
		}, []string{"other model: 224 in 1"}},
		{"another model for another question", []*recording.Request{
			asked(0, "a", 0, first), asked(2, "a", 0, another, func(r *recording.Request) { r.Model = "n" }),
		}, nil},
		{"another model that is asked more at once", []*recording.Request{
			asked(0, "a", 0, first), asked(2, "a", 0, chat(system, question, second), func(r *recording.Request) { r.Model = "n" }),
		}, nil},
		{"another model in a session", []*recording.Request{
			asked(0, "a", 0, first, func(r *recording.Request) { r.Session = 7 }),
			asked(2, "a", 0, another, func(r *recording.Request) { r.Model, r.Session = "n", 7 }),
		}, []string{"other model: 208 in 1"}},
		{"other tools of another model", []*recording.Request{
			asked(0, "a", 0, tools(10)), asked(2, "a", 0, tools(11), func(r *recording.Request) { r.Model = "n" }),
		}, nil},
		{"another salt for another question", []*recording.Request{
			asked(0, "a", 0, first, func(r *recording.Request) { r.Salt = 1 }), asked(2, "a", 0, another, func(r *recording.Request) { r.Salt = 2 }),
		}, nil},
		{"another salt", []*recording.Request{
			asked(0, "a", 0, first, func(r *recording.Request) { r.Salt = 1 }), asked(2, "a", 0, goneOn, func(r *recording.Request) { r.Salt = 2 }),
		}, []string{"other salt: 224 in 1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := explain(tc.requests...)
			assert.Equal(t, tc.want, brief(r))
			tokens := 0
			for _, f := range r.Findings {
				tokens += f.Tokens
				assert.InDelta(t, float64(f.Tokens)*2/1e6*0.75, f.Cost, 1e-12)
				assert.NotEmpty(t, f.Cause.Advice())
			}
			assert.Equal(t, tokens, r.LostTokens)
			assert.InDelta(t, float64(tokens)*1.5/1e6, r.Cost, 1e-12)

			slices.Reverse(tc.requests)
			assert.Equal(t, tc.want, brief(explain(tc.requests...)), "in any order")
		})
	}
}

// A server that does not report its cache is assumed to have what it was sent.
func TestSilentServers(t *testing.T) {
	silent := func(r *recording.Request) { r.CachedTokens = nil }
	refused := func(r *recording.Request) { r.HTTP = 400 } // that does not count
	r := explain(asked(0, "a", 0, first, silent), asked(2, "b", 0, goneOn, silent), asked(3, "b", 0, goneOn, refused), asked(4, "b", 0, goneOn, silent))
	assert.Equal(t, []string{"other server: 224 in 1"}, brief(r))
	assert.Equal(t, []int{3, 3, 0}, []int{r.Requests, r.Silent, r.CachedTokens})
	assert.Equal(t, 234+280+280, r.InputTokens)
}

// Without descriptions of prompts, as in version 1, server changes and evictions are still
// visible.
func TestWithoutPrompts(t *testing.T) {
	old := func(r *recording.Request) *recording.Request {
		r.Version, r.Prompt = 0, nil
		return r
	}
	one, two := old(asked(0, "a", 0, first)), old(asked(2, "b", 0, goneOn))
	shared := 16 * len(one.Blocks)
	assert.Equal(t, []string{fmt.Sprintf("other server: %d in 1", shared)}, brief(explain(one, two)))
	two.Endpoint = "a"
	assert.Equal(t, []string{fmt.Sprintf("evicted: %d in 1", shared)}, brief(explain(one, two)))

	whole := asked(0, "a", 0, first)
	partial := asked(2, "a", 0, chat(text("system", "Now then, "+system.Parts[0].Content[10:]), second))
	partial.Prompt.Partial = true
	assert.Empty(t, explain(whole, partial).Findings, "what is before it is not known")
}

func TestTheWorstComesFirst(t *testing.T) {
	r := explain(asked(0, "a", 0, first), asked(2, "b", 0, goneOn), asked(4, "b", 0, goneOn), asked(6, "b", 0, goneOn))
	assert.Equal(t, []string{"evicted: 544 in 2", "other server: 224 in 1"}, brief(r)) // 272 each
	assert.Equal(t, base.Add(2*time.Second), r.Findings[0].Before.Time)
	assert.Equal(t, base.Add(4*time.Second), r.Findings[0].After.Time)
	assert.Equal(t, base, r.Findings[1].Before.Time)
	assert.Equal(t, base.Add(2*time.Second), r.Findings[1].After.Time)
}

func TestConfig(t *testing.T) {
	few := []*recording.Request{asked(0, "a", 0, first), asked(2, "a", 192, goneOn)}
	for tokens, want := range map[int]int{32: 1, 33: 0} {
		r := rig.Must(diagnose.Explain(few, diagnose.Config{MinTokens: tokens}))
		assert.Len(t, r.Findings, want)
		assert.Zero(t, r.Cost)
		assert.Equal(t, 192, r.CachedTokens)
	}
	// Of 224 tokens, whole blocks of 128 can be found; one that is missing says nothing.
	for cached, want := range map[int]map[int]int{224: {0: 0, 16: 0, 128: 0}, 192: {0: 1, 15: 1, 128: 0}, 128: {16: 1, 128: 0}, 0: {64: 1, 128: 0}} {
		for block, findings := range want {
			few := []*recording.Request{asked(0, "a", 0, first), asked(2, "a", cached, goneOn)}
			r := rig.Must(diagnose.Explain(few, diagnose.Config{BlockTokens: func(endpoint string) int {
				assert.Equal(t, "a", endpoint)
				return block
			}}))
			assert.Len(t, r.Findings, findings, "%d of blocks of %d", cached, block)
		}
	}
	assert.Empty(t, rig.Must(diagnose.Explain(few, diagnose.Config{Window: 900 * time.Millisecond})).Findings)
	for field, all := range map[string][]diagnose.Config{
		"Price":            {{Price: -1}, {Price: math.Inf(1)}, {Price: math.NaN()}},
		"CachedMultiplier": {{CachedMultiplier: 1.5}, {CachedMultiplier: -1}, {CachedMultiplier: math.NaN()}},
		"Window":           {{Window: -1}},
		"MinTokens":        {{MinTokens: -1}},
	} {
		for _, c := range all {
			assert.Equal(t, "diagnose.Config."+field, rig.Field(diagnose.Explain(nil, c)))
		}
	}
	require.NoError(t, rig.Err(diagnose.Explain(nil, diagnose.Config{CachedMultiplier: 1})))
}

func TestCauses(t *testing.T) {
	seen := map[string]bool{}
	for c := diagnose.Timestamp; c <= diagnose.OtherSalt; c++ {
		assert.NotEmpty(t, c.String())
		assert.NotEmpty(t, c.Advice())
		assert.False(t, seen[c.String()])
		seen[c.String()] = true
	}
	for _, c := range []diagnose.Cause{diagnose.OtherSalt + 1, 255} {
		assert.Equal(t, "unknown", c.String())
		assert.Empty(t, c.Advice())
	}
}

// Prompts of any length lose whole blocks: the tokens of a head are known to
// within one if words and tokens don't align.
func TestWithinABlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := rapid.IntRange(10, 99)
		n := rapid.IntRange(60, 4000).Draw(t, "bytes")
		body := filler(1, 1001)[:n]
		make := func(second, minute, seed int) *recording.Request {
			return asked(second, "a", 0, chat(text("system", fmt.Sprintf("It is 10:%d. ", minute)+body), text("user", filler(seed, 30))))
		}
		minute := clock.Draw(t, "minute")
		r := explain(make(0, minute, 2), make(2, minute+1, 3))
		want := (2 + 2 + (13+n+3)/4 + 1 + 3) / 16 * 16 // with the head of the question
		if want < 32 || want-6 < 32 {
			return
		}
		require.Len(t, r.Findings, 1)
		require.Equal(t, diagnose.Timestamp, r.Findings[0].Cause)
		require.InDelta(t, want, r.Findings[0].Tokens, 16)
	})
}

// Whatever a recording says, losses are not negative and not more than the prompts.
func FuzzExplain(f *testing.F) {
	var b bytes.Buffer
	for _, r := range []*recording.Request{asked(0, "a", 0, first), asked(2, "b", 0, goneOn), asked(4, "b", 9, chat(system, question, second, answer))} {
		b.Write(append(rig.Must(json.Marshal(r)), '\n'))
	}
	f.Add(b.String())
	f.Add(`{"time":"2026-01-02T03:04:05Z","status":"completed","endpoint":"a","input_tokens":9,"blocks":["1"],"block_tokens":1e300}`)
	f.Fuzz(func(t *testing.T, s string) {
		var all []*recording.Request
		_ = recording.Read(strings.NewReader(s), func(_ int, r *recording.Request) error {
			all = append(all, r)
			return nil
		})
		r := explain(all...)
		for _, found := range r.Findings {
			require.GreaterOrEqual(t, found.Tokens, 32*found.Requests)
		}
		require.True(t, r.LostTokens >= 0 && (r.InputTokens <= 0 || r.LostTokens <= r.InputTokens), "%d lost of %d", r.LostTokens, r.InputTokens)
	})
}

func inSession(h recording.Hash) func(*recording.Request) {
	return func(r *recording.Request) { r.Session = h }
}

// asks is a conversation whose first question contains a clock.
func asks(clock string, more ...prefix.Message) conversation {
	return chat(append([]prefix.Message{system, text("user", clock+"   "+filler(2, 98))}, more...)...)
}

// Of many conversations that begin alike, the newest are compared; an older one is found
// by its session, or by its last message.
func TestOlderConversationsAreFound(t *testing.T) {
	var many []*recording.Request // one every two seconds
	for i := range 20 {
		many = append(many, asked(10+2*i, "z", 0, chat(system, text("user", filler(30+i, 20))), ofTenant(0)))
	}
	clock := []string{"timestamp at 1:0: 96 in 1"}
	of := func(all ...*recording.Request) (found []string) {
		for _, b := range brief(explain(append(all, many...)...)) {
			if !strings.HasPrefix(b, "evicted") { // the others find nothing in each other
				found = append(found, b)
			}
		}
		return found
	}
	assert.Empty(t, of(asked(0, "z", 0, asks("10:30")), asked(100, "z", 208, asks("10:31", answer, second))), "forgotten")
	assert.Equal(t, clock, of(asked(0, "z", 0, asks("10:30")), asked(4, "z", 208, asks("10:31", answer, second))), "new enough")
	assert.Equal(t, clock, of(asked(0, "z", 0, asks("10:30"), inSession(7)), asked(100, "z", 208, asks("10:31", answer, second), inSession(7))))
	assert.Empty(t, of(asked(0, "z", 0, asks("10:30"), inSession(8)), asked(100, "z", 208, asks("10:31", answer, second), inSession(7))))
	byLast := of(asked(0, "z", 0, asks("10:30", answer, second)), asked(100, "z", 208, asks("10:31", answer, second, text("assistant", filler(7, 16)), question)))
	require.Len(t, byLast, 1)
	assert.Contains(t, byLast[0], "timestamp at 1:0")
}

// A server holds a prompt once the first of its requests was ready, whichever came
// first.
func TestReadyInAnyOrder(t *testing.T) {
	slow := func(r *recording.Request) {
		ttft := 100_000.0
		r.TTFTMillis = &ttft
	}
	want := []string{"evicted: 224 in 1"}
	assert.Equal(t, want, brief(explain(asked(0, "a", 0, first), asked(2, "a", 224, first, slow), asked(5, "a", 0, first))))
	assert.Equal(t, want, brief(explain(asked(0, "a", 0, first, slow), asked(2, "a", 0, first), asked(5, "a", 0, first))))
	done := func(r *recording.Request) { r.TTFTMillis = nil } // its end counts, after a second and a half
	assert.Equal(t, want, brief(explain(asked(0, "a", 0, first, done), asked(2, "b", 0, another), asked(2, "a", 0, first)))[:1])
	assert.Empty(t, brief(explain(asked(0, "a", 0, first, done), asked(1, "a", 0, first))))
}

// The kind of value that changes is reported, with its place.
func TestKindsOfValues(t *testing.T) {
	with := func(value string, last prefix.Message) conversation {
		return chat(text("system", "Now then,   "+value+" "+filler(1, 196)), last)
	}
	for _, tc := range []struct{ one, two, want string }{
		{"10:30", "10:31", "timestamp"},
		{"2026-01-02", "2026-01-03", "timestamp"},
		{"build 1041", "build 1042", "number"},
		{"6f1e1f4a-7f0c-4d0c-9a44-1a2b3c4d5e6f", "7a2e1f4a-7f0c-4d0c-9a44-1a2b3c4d5e6f", "identifier"},
	} {
		r := explain(asked(0, "a", 0, with(tc.one, question)), asked(2, "a", 0, with(tc.two, second)))
		require.Len(t, r.Findings, 1, tc.one)
		f := r.Findings[0]
		assert.Equal(t, tc.want, f.Cause.String())
		assert.Equal(t, []any{0, "system", false}, []any{f.Message, f.Role, f.Tool})
		assert.Equal(t, 12+strings.IndexFunc(tc.one, func(r rune) bool { return r != ' ' && (tc.want != "number" || r == '1') }), f.Offset)
		assert.Empty(t, f.Old+f.New, "nothing of the text is recorded")
	}
}

// If the text is recorded, the words that differ are reported, cut to fit a line.
func TestWordsThatDiffer(t *testing.T) {
	with := func(head string, last prefix.Message) conversation {
		return chat(text("system", head+" "+filler(1, 196)), last)
	}
	long := func(c string) string { return "session-" + strings.Repeat(c, 200) }
	for _, tc := range []struct{ one, two, old, now string }{
		{"It is 10:30 here", "It is 10:31 here", "10:30", "10:31"},
		{"In build 1041 we", "In build 1042 we", "1041", "1042"},
		{long("1"), long("2"), long("1")[:64], long("2")[:64]},
	} {
		r := explain(said(0, 0, with(tc.one, question)), said(2, 0, with(tc.two, second)))
		require.Len(t, r.Findings, 1, tc.one)
		assert.Equal(t, [2]string{tc.old, tc.now}, [2]string{r.Findings[0].Old, r.Findings[0].New})
	}
	r := explain(said(0, 0, with("Some words here", question)), said(2, 0, with("Some  words here", second)))
	require.Len(t, r.Findings, 1)
	f := r.Findings[0]
	assert.Equal(t, "whitespace", f.Cause.String())
	assert.Equal(t, 5, f.Offset)
	assert.Equal(t, "Some words here "+filler(1, 196)[:9], f.Old, "a little on both sides")
	assert.Equal(t, "Some  words here "+filler(1, 196)[:8], f.New)
}

// A finding is about one tenant and model, which it names.
func TestFindingsAreApart(t *testing.T) {
	tenant := func(h recording.Hash, model string) func(*recording.Request) {
		return func(r *recording.Request) { r.Tenant, r.Model = h, model }
	}
	r := explain(asked(0, "a", 0, first, tenant(1, "m")), asked(2, "a", 0, goneOn, tenant(1, "m")),
		asked(4, "a", 0, another, tenant(2, "m")), asked(6, "b", 0, another, tenant(2, "m")),
		asked(8, "a", 0, chat(text("system", filler(8, 100)), second), tenant(1, "n")), asked(10, "a", 0, chat(text("system", filler(8, 100)), second), tenant(1, "n")),
	)
	var all []string
	for _, f := range r.Findings {
		all = append(all, fmt.Sprint(f.Tenant, " ", f.Model, " ", f.Cause, " ", f.Tokens, " ", f.Message, " ", f.Offset, " ", f.Requests))
	}
	assert.Equal(t, []string{fmt.Sprint(recording.Hash(1), " m evicted 224 -1 -1 1"), fmt.Sprint(recording.Hash(2), " m other server 224 -1 -1 1"), fmt.Sprint(recording.Hash(1), " n evicted 128 -1 -1 1")}, all)
}

// A head with tools that another server has computed includes the tools and the
// messages.
func TestToolsAreCounted(t *testing.T) {
	with := func(n int, c conversation) conversation {
		for i := range n {
			c.Tools = append(c.Tools, `{"name":"`+filler(10+i, 22)+`"}`)
		}
		return c
	}
	for n, want := range map[int]int{0: 208, 1: 224, 3: 272, 8: 400} { // 2 + 25·n + 205, and 3 of the question's head
		r := explain(asked(0, "a", 0, with(n, first)), asked(2, "b", 0, with(n, another)))
		require.Len(t, r.Findings, 1)
		assert.Equal(t, "other server", r.Findings[0].Cause.String())
		assert.InDelta(t, want, r.Findings[0].Tokens, 16, "%d tools", n)
	}
}
