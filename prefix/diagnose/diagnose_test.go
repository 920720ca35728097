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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/diagnose"
	"github.com/endpick/endpick/transport/recording"
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
	ttft := 1000.0
	r := &recording.Request{
		Version: recording.Version, Time: base.Add(time.Duration(second) * time.Second), TTFTMillis: &ttft, E2EMillis: 1500,
		Model: "m", Endpoint: endpoint, Status: "completed", HTTP: 200, Attempts: 1, Stream: true, OutputTokens: 16, CachedTokens: &cached, BlockTokens: 16,
	}
	for _, f := range change {
		f(r)
	}
	r.InputTokens = 5
	s := diagnose.NewSketcher(key, false)
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

func chat(messages ...prefix.Message) conversation {
	return conversation{Messages: messages}
}

func explain(t require.TestingT, requests ...*recording.Request) *diagnose.Report {
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
		{"nor does what was never sent",
			[]*recording.Request{asked(0, "", 0, first), asked(2, "a", 0, first)}, nil},
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
		{"dropped", []*recording.Request{
			asked(0, "a", 0, chat(append(slices.Clone(first.Messages), answer, asks("10:30").Messages[1])...)),
			asked(2, "a", 208, chat(system, asks("10:30").Messages[1], text("assistant", filler(7, 16)), text("user", filler(8, 40)))),
		}, []string{"dropped at 1:0: 96 in 1"}},
		{"another tenant's", []*recording.Request{asked(0, "a", 0, first, ofTenant(1)), asked(2, "b", 0, another, ofTenant(2))}, nil},
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
		{"another model in a session", []*recording.Request{
			asked(0, "a", 0, first, func(r *recording.Request) { r.Session = 7 }),
			asked(2, "a", 0, another, func(r *recording.Request) { r.Model, r.Session = "n", 7 }),
		}, []string{"other model: 208 in 1"}},
		{"another salt for another question", []*recording.Request{
			asked(0, "a", 0, first, func(r *recording.Request) { r.Salt = 1 }), asked(2, "a", 0, another, func(r *recording.Request) { r.Salt = 2 }),
		}, nil},
		{"another salt", []*recording.Request{
			asked(0, "a", 0, first, func(r *recording.Request) { r.Salt = 1 }), asked(2, "a", 0, goneOn, func(r *recording.Request) { r.Salt = 2 }),
		}, []string{"other salt: 224 in 1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := explain(t, tc.requests...)
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
			assert.Equal(t, tc.want, brief(explain(t, tc.requests...)), "in any order")
		})
	}
}

// A server that does not report its cache is assumed to have what it was sent.
func TestSilentServers(t *testing.T) {
	silent := func(r *recording.Request) { r.CachedTokens = nil }
	r := explain(t, asked(0, "a", 0, first, silent), asked(2, "b", 0, goneOn, silent), asked(4, "b", 0, goneOn, silent))
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
	assert.Equal(t, []string{fmt.Sprintf("other server: %d in 1", shared)}, brief(explain(t, one, two)))
	two.Endpoint = "a"
	assert.Equal(t, []string{fmt.Sprintf("evicted: %d in 1", shared)}, brief(explain(t, one, two)))

	whole := asked(0, "a", 0, first)
	partial := asked(2, "a", 0, chat(text("system", "Now then, "+system.Parts[0].Content[10:]), second))
	partial.Prompt.Partial = true
	assert.Empty(t, explain(t, whole, partial).Findings, "what is before it is not known")
}

// Engines that count single tokens have at least what was expected.
func TestSingleTokens(t *testing.T) {
	r := explain(t, asked(0, "a", 0, first), asked(2, "a", 233, first), asked(4, "b", 0, goneOn))
	assert.Equal(t, []string{"other server: 224 in 1"}, brief(r))
}

func TestTheWorstComesFirst(t *testing.T) {
	r := explain(t, asked(0, "a", 0, first), asked(2, "b", 0, goneOn), asked(4, "b", 0, goneOn), asked(6, "b", 0, goneOn))
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
	}
	r := rig.Must(diagnose.Explain(few, diagnose.Config{Window: 900 * time.Millisecond}))
	assert.Empty(t, r.Findings)
	for _, c := range []diagnose.Config{{Price: -1}, {Price: math.Inf(1)}, {Price: math.NaN()}, {CachedMultiplier: 1.5}, {CachedMultiplier: -1}, {Window: -1}, {MinTokens: -1}} {
		_, err := diagnose.Explain(nil, c)
		require.ErrorAs(t, err, new(*endpick.ConfigError))
	}
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
		r := explain(t, make(0, minute, 2), make(2, minute+1, 3))
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
		line := rig.Must(json.Marshal(r))
		b.Write(append(line, '\n'))
	}
	f.Add(b.String())
	f.Add(`{"time":"2026-01-02T03:04:05Z","status":"completed","endpoint":"a","input_tokens":9,"blocks":["1"],"block_tokens":1e300}`)
	f.Fuzz(func(t *testing.T, s string) {
		var all []*recording.Request
		_ = recording.Read(strings.NewReader(s), func(_ int, r *recording.Request) error {
			all = append(all, r)
			return nil
		})
		r := explain(t, all...)
		for _, found := range r.Findings {
			if found.Tokens < 32*found.Requests {
				t.Fatalf("%+v", found)
			}
		}
		if r.LostTokens < 0 || r.InputTokens > 0 && r.LostTokens > r.InputTokens {
			t.Fatalf("%d lost of %d", r.LostTokens, r.InputTokens)
		}
	})
}
