package diagnose_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/diagnose"
	"github.com/endpick/endpick/transport/recording"
)

// others are conversations that begin like first, one every two seconds.
func others(from, n int) (all []*recording.Request) {
	for i := range n {
		all = append(all, asked(from+2*i, "z", 0, chat(system, text("user", filler(30+i, 20))), ofTenant(0)))
	}
	return all
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
	many := others(10, 20)
	clock := []string{"timestamp at 1:0: 96 in 1"}
	of := func(all ...*recording.Request) (found []string) {
		for _, b := range brief(explain(t, append(all, many...)...)) {
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

// A prompt is not compared with one that was not ready, was too long ago, or has other
// tools.
func TestWhatIsNotCompared(t *testing.T) {
	tools := func(c conversation, n int) conversation {
		c.Tools = []string{`{"name":"` + filler(n, 22) + `"}`}
		return c
	}
	for name, requests := range map[string][]*recording.Request{
		"not ready":    {asked(0, "a", 0, asks("10:30")), asked(0, "a", 208, asks("10:31", answer, second))},
		"too long ago": {asked(0, "a", 0, asks("10:30")), asked(3602, "a", 208, asks("10:31", answer, second))},
		"other tools of another model": {
			asked(0, "a", 0, tools(first, 20)), asked(2, "a", 0, tools(first, 21), func(r *recording.Request) { r.Model = "n" }),
		},
	} {
		assert.Empty(t, brief(explain(t, requests...)), name)
	}
}

// A server holds a prompt once the first of its requests was ready, whichever came
// first.
func TestReadyInAnyOrder(t *testing.T) {
	slow := func(r *recording.Request) {
		ttft := 100_000.0
		r.TTFTMillis = &ttft
	}
	want := []string{"evicted: 224 in 1"}
	assert.Equal(t, want, brief(explain(t, asked(0, "a", 0, first), asked(2, "a", 224, first, slow), asked(5, "a", 0, first))))
	assert.Equal(t, want, brief(explain(t, asked(0, "a", 0, first, slow), asked(2, "a", 0, first), asked(5, "a", 0, first))))
	done := func(r *recording.Request) { r.TTFTMillis = nil } // its end counts, after a second and a half
	assert.Equal(t, want, brief(explain(t, asked(0, "a", 0, first, done), asked(2, "b", 0, another), asked(2, "a", 0, first)))[:1])
	assert.Empty(t, brief(explain(t, asked(0, "a", 0, first, done), asked(1, "a", 0, first))))
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
		r := explain(t, asked(0, "a", 0, with(tc.one, question)), asked(2, "a", 0, with(tc.two, second)))
		require.Len(t, r.Findings, 1, tc.one)
		f := r.Findings[0]
		assert.Equal(t, tc.want, f.Cause.String())
		assert.Equal(t, []any{0, "system", false}, []any{f.Message, f.Role, f.Tool})
		assert.Equal(t, 12+strings.IndexFunc(tc.one, func(r rune) bool { return r != ' ' && (tc.want != "number" || r == '1') }), f.Offset)
		assert.Empty(t, f.Old+f.New, "nothing of the text is recorded")
	}
}

// said is asked with the text recorded.
func said(second int, cached int, c conversation) *recording.Request {
	r := asked(second, "a", cached, c)
	s := diagnose.NewSketcher(key, true)
	var h prefix.Hasher
	h.Reset(prefix.Scope{Key: key, Model: r.Model, Tenant: fmt.Sprint(r.Tenant), Salt: fmt.Sprint(r.Salt)}.Seed(), nil)
	for i := range c.Messages {
		h.WriteMessage(&c.Messages[i])
		s.Message(&c.Messages[i], h.Len())
	}
	r.Prompt = s.Prompt
	return r
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
		r := explain(t, said(0, 0, with(tc.one, question)), said(2, 0, with(tc.two, second)))
		require.Len(t, r.Findings, 1, tc.one)
		assert.Equal(t, [2]string{tc.old, tc.now}, [2]string{r.Findings[0].Old, r.Findings[0].New})
	}
	r := explain(t, said(0, 0, with("Some words here", question)), said(2, 0, with("Some  words here", second)))
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
	r := explain(t,
		asked(0, "a", 0, first, tenant(1, "m")), asked(2, "a", 0, goneOn, tenant(1, "m")),
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
		r := explain(t, asked(0, "a", 0, with(n, first)), asked(2, "b", 0, with(n, another)))
		require.Len(t, r.Findings, 1)
		assert.Equal(t, "other server", r.Findings[0].Cause.String())
		assert.InDelta(t, want, r.Findings[0].Tokens, 16, "%d tools", n)
	}
}

func TestConfigIsNamed(t *testing.T) {
	for field, c := range map[string]diagnose.Config{"Price": {Price: math.Inf(1)}, "CachedMultiplier": {CachedMultiplier: math.NaN()}, "Window": {Window: -1}, "MinTokens": {MinTokens: -1}} {
		_, err := diagnose.Explain(nil, c)
		var ce *endpick.ConfigError
		require.ErrorAs(t, err, &ce)
		assert.Equal(t, "diagnose.Config."+field, ce.Field)
	}
	_, err := diagnose.Explain(nil, diagnose.Config{CachedMultiplier: 1})
	require.NoError(t, err)
}
