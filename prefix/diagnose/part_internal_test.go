package diagnose

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport/recording"
)

// counted is a chat whose text is a quarter of a token for each byte; its answer had 17.
func counted(t *testing.T, second int, r recording.Request, messages ...recording.Piece) *prompt {
	r.Prompt = &recording.Prompt{Messages: messages}
	r.InputTokens = 5
	for _, m := range messages {
		r.InputTokens += m.Bytes/4 + 3 + (len(m.Role)+3)/4
	}
	r.OutputTokens = 17
	p := ready(t, second, r)
	require.InDelta(t, 0.25, p.scale.perByte, 0)
	return p
}

func with(p recording.Piece, change func(*recording.Piece)) recording.Piece {
	change(&p)
	return p
}

var (
	sys   = piece("system", 400, 1)   // 105 tokens, with the five around it
	ask1  = piece("user", 40, 2)      // 14
	said  = piece("assistant", 64, 3) // 22
	ask2  = piece("user", 40, 4)
	ask3  = piece("user", 80, 5) // 24
	other = piece("user", 40, 6)
	// The same words, wrapped differently; and with a changed value.
	wrapped = func(p recording.Piece, hash recording.Hash) recording.Piece {
		return with(p, func(p *recording.Piece) { p.Hash = hash })
	}
	dated = func(p recording.Piece, hash recording.Hash, at int) recording.Piece {
		return with(p, func(p *recording.Piece) {
			p.Hash, p.Words, p.Values = hash, hash, []recording.Value{{At: at, Kind: "timestamp", Hash: hash}}
		})
	}
)

func TestWherePromptsPart(t *testing.T) {
	plain := func(all ...recording.Piece) []recording.Piece { return all }
	shaped := func(p recording.Piece, hash recording.Hash, shape ...uint32) recording.Piece {
		return with(p, func(p *recording.Piece) { p.Hash, p.Words, p.Template, p.Shape = hash, hash, hash, shape })
	}
	var many, others []recording.Piece
	for i := range 100 {
		many = append(many, piece("user", 4, recording.Hash(1000+i))) // 5 tokens
		others = append(others, wrapped(many[i], recording.Hash(2000+i)))
	}
	at := func(c Cause, message int, role string, offset int, at, end, fresh float64) breach {
		return breach{cause: c, message: message, role: role, offset: offset, at: at, end: end, fresh: fresh}
	}
	none := breach{}
	for name, tc := range map[string]struct {
		q, p  []recording.Piece
		input int // what the engine counted of q more than it should have
		want  breach
	}{
		"the same":      {plain(sys, ask1), plain(sys, ask1), 0, none},
		"it goes on":    {plain(sys, ask1), plain(sys, ask1, said, ask2), 0, none},
		"it asks anew":  {plain(sys, ask1), plain(sys, ask2), 0, none},
		"it is another": {plain(sys, ask1), plain(piece("system", 400, 7), ask1), 0, at(Reworded, 0, "system", 0, 4, 105+14+5, 0)},
		// 105 tokens, and the head of the question with its two and its role.
		"wrapped": {plain(sys, ask1), plain(wrapped(sys, 7), ask3), 0, at(Whitespace, 0, "system", 0, 4, 108, 0)},
		"a date":  {plain(dated(sys, 7, 10), ask1), plain(dated(sys, 8, 12), ask3), 0, at(Timestamp, 0, "system", 12, 7, 108, 0)},
		"the first counts": {plain(wrapped(sys, 7), ask1, said, ask2), plain(wrapped(sys, 8), wrapped(ask1, 9), said, ask3), 0,
			at(Whitespace, 0, "system", 0, 4, 105+14+22+3, 0)},
		// All of q, and of its answer what was computed: 16 of 17.
		"wrapped, and it goes on": {plain(sys, ask1), plain(wrapped(sys, 7), ask1, said, ask2), 0, at(Whitespace, 0, "system", 0, 4, 124+16, 0)},
		"as the engine counts":    {plain(sys, ask1), plain(wrapped(sys, 7), ask1, said, ask2), 7, at(Whitespace, 0, "system", 0, 4, 131+16, 0)},
		"or less":                 {plain(sys, ask1), plain(wrapped(sys, 7), ask1, said, ask2), -7, at(Whitespace, 0, "system", 0, 4, 117+16, 0)},
		"but not by much":         {plain(sys, ask1), plain(wrapped(sys, 7), ask1, said, ask2), 8, at(Whitespace, 0, "system", 0, 4, 124+16, 0)},
		"nor by much less":        {plain(sys, ask1), plain(wrapped(sys, 7), ask1, said, ask2), -8, at(Whitespace, 0, "system", 0, 4, 124+16, 0)},
		"without its answer":      {plain(sys, ask1), plain(wrapped(sys, 7), ask1, ask2), 90, at(Whitespace, 0, "system", 0, 4, 119, 0)},

		"put in": {plain(sys, ask1), plain(sys, ask3, ask1, said, ask2), 0, at(Inserted, 1, "user", 0, 108, 105+24+14+5+16, 24)},
		"put in twice": {plain(sys, ask1, ask2), plain(sys, ask3, ask1, other, ask2, said, ask2), 0,
			at(Inserted, 1, "user", 0, 108, 105+24+14+14+14+5+16, 24+14)},
		"two put in":      {plain(sys, ask1), plain(sys, ask3, other, ask1, said, ask2), 0, at(Inserted, 1, "user", 0, 108, 105+24+14+14+5+16, 24+14)},
		"little put in":   {plain(sys, ask1), plain(sys, piece("user", 0, 9), ask1, said, ask2), 0, at(Inserted, 1, "user", 0, 108, 105+4+14+5+16, 4)},
		"put in at first": {plain(sys, ask1), plain(ask3, sys, ask1, said, ask2), 0, at(Inserted, 0, "user", 0, 3, 24+105+14+5+16, 24)},
		"nothing that tells was put before": {plain(sys, with(ask1, func(p *recording.Piece) { p.Bytes = 8 })),
			plain(sys, ask3, with(ask1, func(p *recording.Piece) { p.Bytes = 8 }), said, ask2), 0, none},
		"left out":        {plain(sys, ask1, said, ask2), plain(sys, ask2, said, ask3), 0, at(Dropped, 1, "user", 0, 108, 105+14+5+16, 0)},
		"first left out":  {plain(ask3, sys, ask1), plain(sys, ask1, said, ask2), 0, at(Dropped, 0, "system", 0, 4, 105+14+5+16, 0)},
		"little left out": {plain(sys, piece("user", 0, 9), ask1), plain(sys, ask1, said, ask2), 0, at(Dropped, 1, "user", 0, 108, 105+14+5+16, 0)},

		"other words, and it goes on":    {plain(sys, ask1, said, ask2), plain(sys, other, said, ask2), 0, at(Reworded, 1, "user", 0, 108, 105+14+22+14+5, 0)},
		"by what tells":                  {plain(sys, ask1, piece("assistant", 12, 9), ask2), plain(sys, other, piece("assistant", 12, 9), ask3), 0, at(Reworded, 1, "user", 0, 108, 105+14+9+3, 0)},
		"by what comes everywhere":       {plain(sys, ask1, piece("assistant", 8, 9), ask2), plain(sys, other, piece("assistant", 8, 9), ask3), 0, none},
		"other words, and other answers": {plain(sys, ask1, said, ask2), plain(sys, other, piece("assistant", 64, 9), ask3), 0, none},
		"other words at the end of one":  {plain(sys, ask1), plain(sys, other, said, ask2), 0, none},
		"other words at the end":         {plain(sys, said, ask2), plain(sys, piece("assistant", 64, 9)), 0, none},
		"other words of another":         {plain(sys, ask1, said, ask2), plain(sys, piece("tool", 40, 6), said, ask2), 0, none},
		"instructions of another kind":   {plain(shaped(sys, 7, 1, 2, 3, 4), ask1), plain(shaped(sys, 8, 5, 6, 7, 8), ask3), 0, none},
		"instructions that are alike":    {plain(shaped(sys, 7, 1, 2, 3, 4), ask1), plain(shaped(sys, 8, 1, 2, 3, 5), ask3), 0, at(Reworded, 0, "system", 0, 4, 108, 0)},
		"a question that is alike":       {plain(shaped(ask1, 7, 1, 2, 3, 4), said), plain(shaped(ask1, 8, 1, 2, 3, 4), piece("assistant", 64, 9), ask3), 0, none},
		"instructions that come later":   {plain(sys, shaped(sys, 7, 1, 2, 3, 4), ask1), plain(sys, shaped(sys, 8, 1, 2, 3, 4), ask3), 0, none},
		"another role, the same words":   {plain(sys, ask1, said), plain(with(sys, func(p *recording.Piece) { p.Role, p.Hash = "developer", 9 }), ask1, said), 0, none},
		"nothing, in the words of none":  {plain(sys, piece("user", 0, 8), ask1, said), plain(sys, wrapped(piece("user", 0, 8), 9), ask2, said), 0, none},
		"a letter":                       {plain(sys, piece("user", 4, 8), said), plain(sys, wrapped(piece("user", 4, 8), 9), said), 0, at(Whitespace, 1, "user", 0, 108, 105+5+22+5, 0)},

		"the date of a question":          {plain(sys, dated(ask1, 7, 4)), plain(sys, dated(ask1, 8, 4)), 0, none},
		"the date of a result":            {plain(sys, dated(piece("tool", 40, 6), 7, 4)), plain(sys, dated(piece("tool", 40, 6), 8, 4)), 0, none},
		"the date of what was said":       {plain(sys, dated(said, 7, 4)), plain(sys, dated(said, 8, 4)), 0, at(Timestamp, 1, "assistant", 4, 105+5+1, 105+22+5, 0)},
		"the date of an earlier question": {plain(sys, dated(ask1, 7, 4)), plain(sys, dated(ask1, 8, 4), said, ask2), 0, at(Timestamp, 1, "user", 4, 109, 105+14+5+16, 0)},

		"64 wrapped": {append(many[:64:64], said), append(others[:64:64], said), 0, at(Whitespace, 0, "user", 0, 3, 64*5+22+5, 0)},
		"65 wrapped": {append(many[:65:65], said), append(others[:65:65], said), 0, at(Whitespace, 0, "user", 0, 3, 64*5+3, 0)},
	} {
		q := counted(t, 0, recording.Request{}, tc.q...)
		q.r.InputTokens += tc.input
		x := &explainer{}
		b, ok := x.part(q, counted(t, 9, recording.Request{}, tc.p...))
		assert.Equal(t, tc.want != none, ok, name)
		if ok {
			assert.Equal(t, tc.want, b, name)
		}
	}
}

// Tools come first: a difference there costs all messages, as long as these begin alike.
func TestWhereToolsPart(t *testing.T) {
	tool := func(hash recording.Hash) recording.Piece { return piece("", 99, hash) }
	a, b, c, d := tool(1), tool(2), tool(3), tool(4)
	tools := func(all ...recording.Piece) []recording.Piece { return all }
	make := func(second int, all []recording.Piece, messages ...recording.Piece) *prompt {
		p := counted(t, second, recording.Request{}, messages...)
		p.tools = all
		return p
	}
	for name, tc := range map[string]struct {
		q, p []recording.Piece
		want breach
	}{
		"turned":             {tools(a, b, c), tools(a, c, b), breach{cause: ToolsReordered, message: 1, at: 26.25}},
		"one more":           {tools(a, b), tools(a, b, c), breach{cause: ToolsChanged, message: 2, at: 51.25, fresh: 25}},
		"one more first":     {tools(a, b), tools(c, a, b), breach{cause: ToolsChanged, message: 0, at: 1.25, fresh: 25}},
		"one less":           {tools(a, b, c), tools(a, b), breach{cause: ToolsChanged, message: 2, at: 2 + 201./4}},
		"one is there twice": {tools(a, b, b), tools(a, b), breach{cause: ToolsChanged, message: 2, at: 2 + 201./4}},
		"others":             {tools(a, b, c), tools(a, b, d), breach{cause: ToolsChanged, message: 2, at: 51.25, fresh: 25}},
		"none":               {tools(a, b), nil, breach{cause: ToolsChanged, message: 0}},
	} {
		want := tc.want
		want.tool, want.offset = true, -1
		p := make(9, tc.p, sys, ask3)
		want.end = p.toolTokens(len(tc.p)) + 108
		x := &explainer{}
		got, ok := x.part(make(0, tc.q, sys, ask1), p)
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)

		// If the messages begin differently, there is nothing to share after the tools.
		p = make(9, tc.p, dated(sys, 8, 4), ask3)
		want.end = p.toolTokens(len(tc.p)) + 4
		got, ok = x.part(make(0, tc.q, dated(sys, 7, 4), ask1), p)
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)

		// A later difference is not reported, and what follows it counts.
		p = make(9, tc.p, sys, dated(ask1, 8, 4), said, ask3)
		want.end = p.toolTokens(len(tc.p)) + 105 + 14 + 22 + 3
		got, ok = x.part(make(0, tc.q, sys, dated(ask1, 7, 4), said, ask2), p)
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)
	}
}

func TestWhereTheTextsPart(t *testing.T) {
	text := func(p recording.Piece, hash recording.Hash, text string) recording.Piece {
		return with(p, func(p *recording.Piece) { p.Hash, p.Text = hash, text })
	}
	x := &explainer{}
	b, ok := x.part(counted(t, 0, recording.Request{}, text(sys, 7, "one two"), text(ask1, 8, "what now")), counted(t, 9, recording.Request{}, text(sys, 9, "one  two"), text(ask3, 10, "what else")))
	assert.True(t, ok)
	assert.Equal(t, breach{cause: Whitespace, role: "system", offset: 4, at: 5, end: 108 + 5./4}, b, "four bytes, and five of the question")
	b, ok = x.part(counted(t, 0, recording.Request{}, sys, text(ask1, 8, "what now"), said), counted(t, 9, recording.Request{}, wrapped(sys, 9), piece("tool", 80, 10)))
	assert.True(t, ok)
	assert.InDelta(t, 105, b.end, 0, "roles differ")
}

func TestOffsets(t *testing.T) {
	blocks := func(n int) (all []recording.Hash) {
		for i := range n {
			all = append(all, recording.Hash(i+1))
		}
		return all
	}
	// Instructions of 182 bytes end, with ten more, after three blocks; the question
	// begins eight bytes later.
	pieces := []recording.Piece{{Role: "system", Bytes: 182, End: 192, Hash: 1}, {Role: "user", Bytes: 400, End: 600, Hash: 2}}
	for _, tc := range []struct {
		q, p    int // blocks
		message int
		x, y    string
		broken  bool
		want    int
	}{
		{5, 5, 1, "abc", "abd", false, 2}, {5, 5, 1, "abc", "abd", true, 2},
		{5, 5, 1, "", "", true, -1},
		{5, 5, 1, "abc", "", false, 120}, {5, 5, 1, "", "abd", false, 120}, // 320 − 200
		{4, 5, 1, "", "", false, 56}, {5, 4, 1, "", "", false, 56},
		{3, 9, 1, "", "", false, 0}, {2, 9, 0, "", "", false, 118}, {0, 9, 0, "", "", false, 0},
		{2, 9, 1, "", "", false, 0}, // they diverge before the block ends
		{9, 9, 1, "", "", false, 376},
	} {
		r := recording.Request{Prompt: &recording.Prompt{Messages: pieces}}
		q, p := r, r
		q.Blocks, p.Blocks = blocks(tc.q), blocks(tc.p)
		w := walk{q: ready(t, 0, q), p: ready(t, 9, p), a: tc.message, b: tc.message, broken: tc.broken}
		assert.Equal(t, tc.want, w.offsetIn(&recording.Piece{Text: tc.x}, &recording.Piece{Text: tc.y}), "%+v", tc)
	}
}

func TestWhatHasChanged(t *testing.T) {
	values := func(all ...any) (p recording.Piece) {
		for i := 0; i < len(all); i += 3 {
			p.Values = append(p.Values, recording.Value{At: all[i].(int), Kind: all[i+1].(string), Hash: recording.Hash(all[i+2].(int))})
		}
		return p
	}
	for i, tc := range []struct {
		x, y   recording.Piece
		cause  Cause
		offset int
	}{
		{values(1, "timestamp", 1), values(2, "timestamp", 2), Timestamp, 2},
		{values(1, "number", 1), values(2, "number", 2), Number, 2},
		{values(1, "identifier", 1), values(2, "identifier", 2), Identifier, 2},
		{values(1, "number", 1), values(2, "timestamp", 2), Identifier, 2},
		{values(1, "number", 1, 8, "timestamp", 2), values(1, "number", 1, 9, "timestamp", 3), Timestamp, 9},
		{values(1, "number", 1, 8, "timestamp", 2), values(1, "number", 2, 9, "timestamp", 3), Number, 1},
		{values(1, "number", 1), values(1, "number", 1, 9, "number", 3), Identifier, -1},
		{values(1, "number", 1, 9, "number", 3), values(1, "number", 1), Identifier, -1},
		{values(), values(), Identifier, -1},
	} {
		cause, offset := changed(&tc.x, &tc.y)
		assert.Equal(t, []any{tc.cause, tc.offset}, []any{cause, offset}, "%d", i)
	}
}

func TestFind(t *testing.T) {
	var all []recording.Piece
	for i := range 100 {
		all = append(all, piece("user", 12, recording.Hash(i)))
	}
	for _, tc := range []struct{ from, of, bytes, want int }{
		{0, 0, 12, 0}, {1, 0, 12, -1}, {0, 63, 12, 63}, {0, 64, 12, -1}, {1, 64, 12, 64}, {90, 99, 12, 99}, {0, 5, 11, -1}, {100, 99, 12, -1},
	} {
		m := piece("user", tc.bytes, recording.Hash(tc.of))
		assert.Equal(t, tc.want, find(all, tc.from, &m), "%+v", tc)
	}
}

func TestAlike(t *testing.T) {
	shape := func(v ...uint32) []uint32 { return v }
	for _, tc := range []struct {
		x, y []uint32
		want bool
	}{
		{nil, nil, false}, {shape(1, 2, 3), shape(1, 2, 3), false}, {shape(1, 2, 3, 4), shape(1, 2, 3, 4), true},
		{shape(1, 2, 3, 4), shape(5, 6, 7, 8), false}, {shape(1, 2), shape(1, 2, 3, 4), true}, {shape(1), shape(1, 2, 3, 4), false},
		{shape(1, 2, 3, 4, 5, 6, 7, 8), shape(1, 2, 3, 4, 100, 101, 102, 103), true}, // four of the least eight
		{shape(1, 2, 3, 4, 5, 6, 7, 8), shape(1, 2, 3, 99, 100, 101, 102, 103), false},
		{shape(1, 2, 3, 4), shape(1, 2, 3, 50, 51, 52, 53, 54), false},
		{shape(1, 2, 3, 4), shape(1, 2, 3, 4, 51, 52, 53, 54), true},
		{shape(1, 2, 10, 11, 12, 13), shape(3, 10, 11, 12, 13, 14), true},
		{shape(1, 2, 3, 4, 100, 101), shape(5, 6, 7, 8, 100, 101), false}, // the equal ones are not among the smallest
	} {
		assert.Equal(t, tc.want, alike(tc.x, tc.y), "%v %v", tc.x, tc.y)
		assert.Equal(t, tc.want, alike(tc.y, tc.x), "%v %v", tc.y, tc.x)
	}
}

func TestQuotes(t *testing.T) {
	text := func(s ...string) *prompt {
		p := &prompt{}
		for _, s := range s {
			p.messages = append(p.messages, recording.Piece{Text: s})
		}
		return p
	}
	b := breach{cause: Timestamp, message: 1}
	for name, tc := range map[string]struct {
		x, y     *prompt
		b        breach
		old, now string
	}{
		"a word":               {text("", "at 10:30 h"), text("", "at 10:31 h"), b, "10:30", "10:31"},
		"no text before":       {text("", ""), text("", "at 10:31 h"), b, "", ""},
		"no text after":        {text("", "at 10:30 h"), text("", ""), b, "", ""},
		"not in the prompt":    {text("", "at 10:30 h"), text("", "at 10:31 h"), breach{cause: Evicted, message: 1}, "", ""},
		"dropped":              {text("", "at 10:30 h"), text("", "at 10:31 h"), breach{cause: Dropped, message: 1}, "10:30", "10:31"},
		"nobody knows where":   {text("", "at 10:30 h"), text("", "at 10:31 h"), breach{cause: Timestamp, message: 1, offset: -1}, "", ""},
		"in no message":        {text("", "at 10:30 h"), text("", "at 10:31 h"), breach{cause: Timestamp, message: -1}, "", ""},
		"in a tool":            {text("", "at 10:30 h"), text("", "at 10:31 h"), breach{cause: ToolsChanged, message: 1, tool: true}, "", ""},
		"not there before":     {text(""), text("", "at 10:31 h"), b, "", ""},
		"not there any more":   {text("", "at 10:30 h"), text(""), b, "", ""},
		"white space":          {text("", "0123456789abcdef ghi"), text("", "0123456789abcdef  ghi"), breach{cause: Whitespace, message: 1}, "56789abcdef ghi", "56789abcdef  ghi"},
		"white space at first": {text("", "a b"), text("", "a  b"), breach{cause: Whitespace, message: 1}, "a b", "a  b"},
		"and in a long text": {text("", strings.Repeat("x", 50)+" "+strings.Repeat("y", 50)), text("", strings.Repeat("x", 50)+"\n"+strings.Repeat("y", 50)), breach{cause: Whitespace, message: 1},
			strings.Repeat("x", 12) + " " + strings.Repeat("y", 19), strings.Repeat("x", 12) + "\n" + strings.Repeat("y", 19)},
		"letters are whole": {text("", strings.Repeat("ä", 40)), text("", strings.Repeat("ä", 39)+"ö"), b, strings.Repeat("ä", 32), strings.Repeat("ä", 32)},
		"nor are they cut":  {text("", "x"+strings.Repeat("ä", 40)), text("", "x"+strings.Repeat("ä", 39)+"ö"), b, "x" + strings.Repeat("ä", 31), "x" + strings.Repeat("ä", 31)},
	} {
		old, now := quote(tc.x, tc.y, tc.b)
		assert.Equal(t, []string{tc.old, tc.now}, []string{old, now}, name)
	}
}

// Another model, adapter, tenant or salt is to blame if a conversation continues, or if a
// session or random salts show that it was meant to.
func TestWhereScopesPart(t *testing.T) {
	type change = func(*recording.Request)
	in := func(model, adapter string, tenant, salt, session recording.Hash) change {
		return func(r *recording.Request) {
			r.Model, r.Adapter, r.Tenant, r.Salt, r.Session = model, adapter, tenant, salt, session
		}
	}
	chat := func(all ...recording.Piece) []recording.Piece { return all }
	first, goesOn := chat(sys, ask1), chat(sys, ask1, said, ask2)
	for name, tc := range map[string]struct {
		q, p         []recording.Piece
		before, then change
		salts        int // of the client that came once, besides
		cause        Cause
		end          float64 // 0: nothing is to blame
	}{
		"model":                           {first, goesOn, in("m", "", 0, 0, 0), in("n", "l", 1, 1, 0), 0, OtherModel, 140},
		"adapter":                         {first, goesOn, in("m", "", 0, 0, 0), in("m", "l", 1, 1, 0), 0, OtherAdapter, 140},
		"tenant":                          {first, goesOn, in("m", "l", 0, 0, 0), in("m", "l", 1, 1, 0), 0, OtherTenant, 140},
		"salt":                            {first, goesOn, in("m", "l", 1, 0, 0), in("m", "l", 1, 1, 0), 0, OtherSalt, 140},
		"the same again":                  {first, first, in("m", "", 0, 0, 0), in("n", "", 0, 0, 0), 0, OtherModel, 124},
		"it goes on with a question":      {first, chat(sys, ask1, ask2), in("m", "", 0, 0, 0), in("n", "", 0, 0, 0), 0, OtherModel, 0},
		"another question":                {first, chat(sys, ask2), in("m", "", 0, 0, 0), in("n", "", 0, 0, 0), 0, OtherModel, 0},
		"the beginning of the one before": {goesOn, first, in("m", "", 0, 0, 0), in("n", "", 0, 0, 0), 0, OtherModel, 0},
		"another question, one session":   {first, chat(sys, ask3), in("m", "", 0, 0, 7), in("n", "", 0, 0, 7), 0, OtherModel, 108},
		"two sessions":                    {first, chat(sys, ask3), in("m", "", 0, 0, 7), in("n", "", 0, 0, 8), 0, OtherModel, 0},
		"one session, two tenants":        {first, chat(sys, ask3), in("m", "", 1, 0, 7), in("m", "", 2, 0, 7), 0, OtherTenant, 0},
		"salts are drawn":                 {first, chat(sys, ask3), in("m", "", 0, 1, 0), in("m", "", 0, 2, 0), 1, OtherSalt, 108},
		"only two of them":                {first, chat(sys, ask3), in("m", "", 0, 1, 0), in("m", "", 0, 2, 0), 0, OtherSalt, 0},
		"one has none":                    {first, chat(sys, ask3), in("m", "", 0, 0, 0), in("m", "", 0, 2, 0), 5, OtherSalt, 0},
		"the other has none":              {first, chat(sys, ask3), in("m", "", 0, 1, 0), in("m", "", 0, 0, 0), 5, OtherSalt, 0},
		"salts and models are drawn":      {first, chat(sys, ask3), in("m", "", 0, 1, 0), in("n", "", 0, 2, 0), 5, OtherModel, 0},
	} {
		before, then := recording.Request{}, recording.Request{}
		tc.before(&before)
		tc.then(&then)
		q, p := counted(t, 0, before, tc.q...), counted(t, 9, then, tc.p...)
		all := []*prompt{q, p}
		for i := range tc.salts {
			one := then
			one.Salt = recording.Hash(100 + i)
			all = append(all, counted(t, 1, one, first...))
		}
		x := &explainer{salts: saltsOf(all)}
		b, ok := x.part(q, p)
		assert.Equal(t, tc.end > 0, ok, name)
		if ok {
			assert.Equal(t, breach{cause: tc.cause, message: -1, offset: -1, end: tc.end}, b, name)
		}
		// With other tools it is another prompt; and a salt that occurs twice was not random.
		q.tools = []recording.Piece{piece("", 9, 1)}
		_, ok = x.part(q, p)
		assert.False(t, ok, name)
		q.tools = nil
		for _, again := range []*prompt{q, p} {
			x = &explainer{salts: saltsOf(append(all, again))}
			_, ok = x.part(q, p)
			assert.Equal(t, tc.end > 0 && name != "salts are drawn", ok, name)
		}
	}
}

func TestSaltsAreCountedByClient(t *testing.T) {
	of := func(tenant, salt recording.Hash) *prompt {
		return counted(t, 0, recording.Request{Model: "m", Tenant: tenant, Salt: salt}, sys)
	}
	s := saltsOf([]*prompt{of(1, 1), of(1, 2), of(1, 3), of(1, 4), of(1, 4), of(2, 1), of(2, 2), of(2, 0), of(3, 5), of(3, 5), of(3, 5)})
	for tenant, want := range map[recording.Hash]int{1: 3, 2: 2, 3: 0} {
		assert.Equal(t, want, s.single[of(tenant, 9).client()], "%d", tenant)
		assert.Equal(t, want >= 3, s.changing(of(tenant, 0).client()))
	}
	assert.Equal(t, []bool{true, false, false, false}, []bool{s.once(of(1, 1).scope), s.once(of(1, 4).scope), s.once(of(2, 0).scope), s.once(of(9, 9).scope)})
}

// A finding is about one place, except that a sliding window counts as the same everywhere.
func TestFindingsAreGathered(t *testing.T) {
	r := func(tenant recording.Hash, model string) *prompt {
		return &prompt{r: &recording.Request{Tenant: tenant, Model: model}}
	}
	for _, tc := range []struct {
		name   string
		a, b   breach
		of, to *prompt
		want   int
	}{
		{"the same", breach{cause: Number, message: 1, role: "user"}, breach{cause: Number, message: 1, role: "user", offset: 7}, r(1, "m"), r(1, "m"), 1},
		{"other tenants", breach{cause: Number}, breach{cause: Number}, r(1, "m"), r(2, "m"), 2},
		{"other models", breach{cause: Number}, breach{cause: Number}, r(1, "m"), r(1, "n"), 2},
		{"other causes", breach{cause: Number}, breach{cause: Timestamp}, r(1, "m"), r(1, "m"), 2},
		{"other messages", breach{cause: Number, message: 1}, breach{cause: Number, message: 2}, r(1, "m"), r(1, "m"), 2},
		{"other roles", breach{cause: Number, role: "user"}, breach{cause: Number, role: "tool"}, r(1, "m"), r(1, "m"), 2},
		{"a tool", breach{cause: ToolsChanged, tool: true}, breach{cause: ToolsChanged}, r(1, "m"), r(1, "m"), 2},
		{"put in elsewhere", breach{cause: Inserted, message: 1, role: "user"}, breach{cause: Inserted, message: 4, role: "tool"}, r(1, "m"), r(1, "m"), 1},
		{"left out elsewhere", breach{cause: Dropped, message: 1, role: "user"}, breach{cause: Dropped, message: 4, role: "tool"}, r(1, "m"), r(1, "m"), 1},
		{"evicted", breach{cause: Evicted, message: -1}, breach{cause: Evicted, message: -1}, r(1, "m"), r(1, "m"), 1},
	} {
		x := &explainer{groups: map[group]*Finding{}}
		before := r(0, "")
		x.blame(tc.of, before, tc.a, 10)
		x.blame(tc.to, r(0, ""), tc.b, 5)
		require.Len(t, x.findings, tc.want, tc.name)
		f := x.findings[0]
		assert.Equal(t, []any{tc.a.cause, tc.a.message, tc.a.tool, tc.a.role, tc.a.offset}, []any{f.Cause, f.Message, f.Tool, f.Role, f.Offset}, tc.name)
		assert.Same(t, before.r, f.Before)
		assert.Same(t, tc.of.r, f.After)
		if tc.want == 1 {
			assert.Equal(t, []int{15, 2}, []int{f.Tokens, f.Requests}, tc.name)
			continue
		}
		assert.Equal(t, []int{10, 1, 5, 1}, []int{f.Tokens, f.Requests, x.findings[1].Tokens, x.findings[1].Requests}, tc.name)
	}
}

// The loss is what would have been shared beyond what was cached, in whole blocks: the
// earlier prompt with the largest loss determines the cause.
func TestTheMostIsBlamed(t *testing.T) {
	explain := func(minTokens int, cached int, all ...*prompt) (found []string) {
		var requests []*recording.Request
		for i, p := range all {
			c := 0
			if i == len(all)-1 {
				c = cached
			}
			p.r.CachedTokens = &c
			requests = append(requests, p.r)
		}
		r, err := Explain(requests, Config{MinTokens: minTokens, Window: time.Hour})
		require.NoError(t, err)
		assert.Equal(t, cached, r.CachedTokens)
		assert.Equal(t, len(all), r.Requests)
		for _, f := range r.Findings {
			found = append(found, fmt.Sprintf("%v %d", f.Cause, f.Tokens))
		}
		return found
	}
	make := func(second int, all ...recording.Piece) *prompt {
		return counted(t, second, recording.Request{Session: 7}, all...)
	}
	// 108 tokens would have been shared, which are six whole blocks.
	for min, want := range map[int][]string{96: {"timestamp 96"}, 97: nil} {
		assert.Equal(t, want, explain(min, 0, make(0, dated(sys, 7, 4), ask1), make(9, dated(sys, 8, 4), ask3)), "%d", min)
	}
	// With 16 cached five blocks are left; those of a new tool would not have been shared.
	assert.Equal(t, []string{"timestamp 80"}, explain(32, 16, make(0, dated(sys, 7, 4), ask1), make(9, dated(sys, 8, 4), ask3)))
	// Two candidates: more was lost relative to the one with the smaller difference.
	long, short := make(0, dated(sys, 7, 4), ask1, said, ask2), make(2, dated(sys, 9, 4), ask3)
	last := make(9, dated(sys, 8, 4), ask1, said, ask3)
	assert.Equal(t, []string{"timestamp 144"}, explain(32, 0, long, last)) // 105 + 14 + 22 + 3
	assert.Equal(t, []string{"timestamp 96", "timestamp 0"}[:1], explain(32, 0, long, short)[:1])
	found := explain(32, 0, short, long, last)
	assert.Equal(t, []string{"timestamp 240"}, found, "96 of the second, and 144 of the last")
	// What precedes the value was not lost because of it, if nothing is known about its blocks.
	near := with(dated(sys, 7, 380), func(p *recording.Piece) {})
	then := dated(sys, 8, 380)
	assert.Empty(t, explain(32, 0, make(0, near, ask1), make(9, then, ask3)), "99 of 108 are before it")
	assert.Empty(t, explain(10, 0, make(0, near, ask1), make(9, then, ask3)))
	assert.Equal(t, []string{"timestamp 96"}, explain(9, 0, make(0, near, ask1), make(9, then, ask3)))

	// Of a head of 124 + 16 tokens eight blocks are complete. Missing ones count from so
	// many tokens on; otherwise they are not attributed to a value.
	for min, want := range map[int][]string{48: {"evicted 48"}, 49: nil} {
		assert.Equal(t, want, explain(min, 80, make(0, sys, ask1), make(9, sys, ask1, said, ask2)), "%d", min)
		there, gone := make(0, sys, ask1), make(9, sys, ask1, said, ask2)
		gone.r.Endpoint = "b"
		if want != nil {
			want = []string{"other server 48"}
		}
		assert.Equal(t, want, explain(min, 80, there, gone), "%d", min)
	}
	dates := func(second int, hash recording.Hash, more ...recording.Piece) *prompt {
		return make(second, append([]recording.Piece{sys, dated(piece("user", 400, 9), hash, 4)}, more...)...)
	}
	for cached, want := range map[int][]string{96: {"timestamp 128"}, 80: {"timestamp 128"}, 48: {"timestamp 128", "evicted 48"}} {
		earlier, last := dates(0, 7), dates(9, 8, said, ask2) // 105 + 104, 5 and 16 are 230
		earlier.r.Blocks, last.r.Blocks = []recording.Hash{1, 2, 3, 4, 5, 6}, []recording.Hash{1, 2, 3, 4, 5, 6}
		for i, end := range []int{410, 818, 900, 960} {
			if i < 2 {
				earlier.messages[i].End = end
			}
			last.messages[i].End = end
		}
		assert.Equal(t, want, explain(32, cached, earlier, last), "%d: six blocks are 384 bytes, which end at 97 tokens", cached)
	}
}

func TestCostsAreFinite(t *testing.T) {
	_, err := Explain(nil, Config{Price: math.Inf(-1)})
	require.Error(t, err)
	_, err = Explain(nil, Config{Price: math.MaxFloat64})
	require.NoError(t, err)
}
