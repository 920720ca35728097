package diagnose

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport/recording"
)

// answered is a request that arrived at a second and took one to its first token.
func answered(second int, r recording.Request) *recording.Request {
	ttft := 1000.0
	r.Time, r.TTFTMillis, r.Status = time.Unix(int64(second), 0), &ttft, "completed"
	if r.Endpoint == "" {
		r.Endpoint = "a"
	}
	if r.InputTokens == 0 {
		r.InputTokens = 1000
	}
	return &r
}

func piece(role string, bytes int, hash recording.Hash) recording.Piece {
	return recording.Piece{Role: role, Bytes: bytes, Hash: hash, Words: hash, Template: hash}
}

func holding(messages ...recording.Piece) recording.Request {
	return recording.Request{Prompt: &recording.Prompt{Messages: messages}}
}

func ready(t *testing.T, second int, r recording.Request) *prompt {
	p := newPrompt(answered(second, r))
	require.NotNil(t, p)
	return p
}

func TestWhatLeavesSomethingInACache(t *testing.T) {
	number := func(v float64) *float64 { return &v }
	at := time.Unix(100, 0)
	good := recording.Request{Time: at, Endpoint: "a", InputTokens: 1, HTTP: 200, Status: "completed", TTFTMillis: number(250), E2EMillis: 900, Blocks: []recording.Hash{1}}
	for name, tc := range map[string]struct {
		change func(*recording.Request)
		ready  time.Duration // negative: there is nothing
	}{
		"all":                        {func(*recording.Request) {}, 250 * time.Millisecond},
		"canceled after its first":   {func(r *recording.Request) { r.Status = "canceled" }, 250 * time.Millisecond},
		"without a first token":      {func(r *recording.Request) { r.TTFTMillis = nil }, 900 * time.Millisecond},
		"canceled before its first":  {func(r *recording.Request) { r.TTFTMillis, r.Status = nil, "canceled" }, -1},
		"failed":                     {func(r *recording.Request) { r.TTFTMillis, r.Status = nil, "failed" }, -1},
		"no tokens":                  {func(r *recording.Request) { r.InputTokens = 0 }, -1},
		"no server":                  {func(r *recording.Request) { r.Endpoint = "" }, -1},
		"refused":                    {func(r *recording.Request) { r.HTTP = 400 }, -1},
		"a redirect":                 {func(r *recording.Request) { r.HTTP = 399 }, 250 * time.Millisecond},
		"neither blocks nor pieces":  {func(r *recording.Request) { r.Blocks = nil }, -1},
		"pieces without blocks":      {func(r *recording.Request) { r.Blocks, r.Prompt = nil, &recording.Prompt{} }, 250 * time.Millisecond},
		"blocks and pieces":          {func(r *recording.Request) { r.Prompt = &recording.Prompt{} }, 250 * time.Millisecond},
		"a time that can't be":       {func(r *recording.Request) { r.TTFTMillis = number(1e300) }, 1e9 * time.Millisecond},
		"a time before it was asked": {func(r *recording.Request) { r.TTFTMillis = number(-250) }, -250 * time.Millisecond},
	} {
		r := good
		tc.change(&r)
		p := newPrompt(&r)
		if tc.ready == -1 {
			assert.Nil(t, p, name)
			continue
		}
		require.NotNil(t, p, name)
		assert.Equal(t, tc.ready, p.ready.Sub(at), name)
	}
}

// A conversation continues if model, adapter, tenant, salt, tools and messages are the
// same, in the same order.
func TestNamesOfConversations(t *testing.T) {
	tools := []recording.Piece{piece("", 9, 100), piece("", 9, 101)}
	messages := []recording.Piece{piece("system", 9, 200), piece("user", 9, 201), piece("user", 9, 202)}
	base := recording.Request{Model: "a", Adapter: "b", Tenant: 5, Salt: 6, Prompt: &recording.Prompt{Tools: tools, Messages: messages}}
	seen := map[uint64]string{}
	for name, change := range map[string]func(*recording.Request){
		"":                  func(*recording.Request) {},
		"model":             func(r *recording.Request) { r.Model = "c" },
		"adapter":           func(r *recording.Request) { r.Adapter = "c" },
		"no adapter":        func(r *recording.Request) { r.Adapter = "" },
		"adapter for model": func(r *recording.Request) { r.Model, r.Adapter = "b", "a" },
		"tenant":            func(r *recording.Request) { r.Tenant = 7 },
		"salt":              func(r *recording.Request) { r.Salt = 7 },
		"salt for tenant":   func(r *recording.Request) { r.Tenant, r.Salt = 6, 5 },
		"no tools":          func(r *recording.Request) { r.Prompt = &recording.Prompt{Messages: messages} },
		"one tool":          func(r *recording.Request) { r.Prompt = &recording.Prompt{Tools: tools[:1], Messages: messages} },
		"tools turned": func(r *recording.Request) {
			r.Prompt = &recording.Prompt{Tools: []recording.Piece{tools[1], tools[0]}, Messages: messages}
		},
		"messages turned": func(r *recording.Request) {
			r.Prompt = &recording.Prompt{Tools: tools, Messages: []recording.Piece{messages[0], messages[2], messages[1]}}
		},
		"a message for tool": func(r *recording.Request) {
			r.Prompt = &recording.Prompt{Tools: tools[:1], Messages: append([]recording.Piece{tools[1]}, messages...)}
		},
	} {
		r := base
		change(&r)
		p := ready(t, 0, r)
		require.Len(t, p.chains, len(r.Prompt.Messages))
		last := p.chains[len(p.chains)-1]
		assert.NotContains(t, seen, last, "%q is %q", name, seen[last])
		seen[last] = name
	}
	short := base
	short.Prompt = &recording.Prompt{Tools: tools, Messages: messages[:2]}
	assert.Equal(t, ready(t, 0, base).chains[:2], ready(t, 0, short).chains)
	partial := base
	partial.Prompt = &recording.Prompt{Tools: tools, Messages: messages, Partial: true}
	p := ready(t, 0, partial)
	assert.Empty(t, p.chains)
	assert.Empty(t, p.tools)
	assert.Empty(t, p.messages)
}

// A prompt of 592 bytes, a quarter of a token each, with 16 tokens around them: 2 before
// the tools; 2, 2 and 1 around the instructions; 2, 1 and 1 around the question; 2 and 3
// before the answer.
func worked(t *testing.T) *prompt {
	ended := func(p recording.Piece, end int) recording.Piece {
		p.End = end
		return p
	}
	p := ready(t, 0, recording.Request{InputTokens: 592/4 + 16, Prompt: &recording.Prompt{
		// 99 + 49 bytes of tools, a bracket before and a comma or a bracket after each: 151.
		Tools: []recording.Piece{ended(piece("", 99, 1), 101), ended(piece("", 49, 2), 152)},
		// 400 + 41 bytes of text; blocks have four bytes and the role before them.
		Messages: []recording.Piece{ended(piece("system", 400, 3), 562), ended(piece("user", 41, 4), 611)},
	}})
	require.Equal(t, scale{0.25, true}, p.scale)
	return p
}

func TestTokensOfPlaces(t *testing.T) {
	p := worked(t)
	for n, want := range []float64{1 + 0.25, 1 + 101./4, 2 + 151./4} {
		assert.InDelta(t, want, p.toolTokens(n), 0, "%d tools", n)
	}
	assert.InDelta(t, 105, p.pieceTokens(0), 0)
	assert.InDelta(t, 14.25, p.pieceTokens(1), 0)
	for _, tc := range []struct {
		message, offset int
		want            float64
	}{
		{0, -1, 39.75}, {0, 0, 43.75}, {0, 100, 68.75}, {0, 400, 143.75}, {0, 401, 143.75},
		{1, -9, 144.75}, {1, 0, 147.75}, {1, 41, 158}, {1, 1000, 158}, {2, -1, 159}, // and 5 are the whole
	} {
		assert.InDelta(t, tc.want, p.tokensAt(tc.message, tc.offset), 0, "%d:%d", tc.message, tc.offset)
	}
	for _, tc := range []struct{ blocks, message, offset, tokens int }{
		{0, 0, -162, 0}, {1, 0, -98, 16}, {2, 0, -34, 33}, // of 39.75 for 152 bytes of tools: 16.7, 33.5
		{3, 0, 30, 51}, {8, 0, 350, 131}, {9, 1, 6, 149}, {10, 2, -1, 159}, {1000, 2, -1, 159},
	} {
		message, offset := p.place(tc.blocks)
		assert.Equal(t, []int{tc.message, tc.offset, tc.tokens}, []int{message, offset, p.blockTokens(tc.blocks)}, "%d blocks", tc.blocks)
	}
}

func TestBlocksThatEndBetweenMessages(t *testing.T) {
	// 182 bytes with ten around them are three blocks; 179 bytes end before the third does.
	for bytes, want := range map[int]struct{ message, offset, tokens int }{
		182: {1, -8, 50}, // 45.5 tokens and five, to the message after it
		179: {1, -5, 50}, // 44.75: what is in the head of the next one is not there
		183: {0, 182, 49},
		189: {0, 182, 49},
	} {
		p := ready(t, 0, recording.Request{Prompt: &recording.Prompt{Messages: []recording.Piece{
			{Role: "system", Bytes: bytes, End: bytes + 10}, {Role: "user", Bytes: 400, End: bytes + 418},
		}}})
		p.scale = scale{0.25, true}
		message, offset := p.place(3)
		if bytes == 179 {
			want.tokens = 49 // 44.75 and five
		}
		assert.Equal(t, []int{want.message, want.offset, want.tokens}, []int{message, offset, p.blockTokens(3)}, "%d bytes", bytes)
	}
	// If the text was longer when it was cut into blocks than as recorded, offsets are scaled: 64
	// of 92 bytes are 6 of 10.
	p := ready(t, 0, recording.Request{Prompt: &recording.Prompt{Messages: []recording.Piece{{Bytes: 10, End: 100}, {Bytes: 10, End: 110}}}})
	message, offset := p.place(1)
	assert.Equal(t, []int{0, 6}, []int{message, offset})
}

func TestTextThatIsNoChat(t *testing.T) {
	p := ready(t, 0, recording.Request{InputTokens: 80, Prompt: &recording.Prompt{Messages: []recording.Piece{{Bytes: 400, End: 400}}}})
	assert.Equal(t, scale{0.2, false}, p.scale)
	assert.InDelta(t, 0, p.tokensAt(0, 0), 0)
	assert.InDelta(t, 20, p.tokensAt(0, 100), 0)
	assert.InDelta(t, 80, p.tokensAt(1, -1), 0)
	assert.Zero(t, p.toolTokens(0))
	message, offset := p.place(5)
	assert.Equal(t, []int{0, 320, 64}, []int{message, offset, p.blockTokens(5)})

	for _, tc := range []struct {
		name  string
		input int
		p     recording.Prompt
		want  scale
	}{
		{"shorter than what is around it", 3, recording.Prompt{Messages: []recording.Piece{{Role: "user", Bytes: 8}}}, scale{0, true}},
		{"without text", 30, recording.Prompt{Messages: []recording.Piece{{Role: "user"}}}, scale{0, true}},
		{"of one byte", 10, recording.Prompt{Messages: []recording.Piece{{Role: "user", Bytes: 1}}}, scale{1, true}},
		{"with a role later", 14, recording.Prompt{Messages: []recording.Piece{{Bytes: 1}, {Role: "user", Bytes: 1}}}, scale{1, true}},
		{"with a role before", 14, recording.Prompt{Messages: []recording.Piece{{Role: "user", Bytes: 1}, {Bytes: 1}}}, scale{1, true}},
		{"of a tool", 10, recording.Prompt{Tools: []recording.Piece{{Bytes: 1}}}, scale{1, true}}, // 2, [x], 2 and 3
	} {
		p := ready(t, 0, recording.Request{InputTokens: tc.input, Prompt: &tc.p})
		assert.Equal(t, tc.want, p.scale, tc.name)
	}
}

func TestTokensOfBlocksAlone(t *testing.T) {
	for _, tc := range []struct {
		blocks int
		tokens float64
		input  int
		want   int
	}{
		{0, 16, 100, 0}, {4, 12.5, 100, 50}, {4, 12.5, 45, 45}, {100, 0.29, 1000, 29}, {1 << 30, 1e300, 7, 7},
	} {
		p := ready(t, 0, recording.Request{Blocks: []recording.Hash{1}, BlockTokens: tc.tokens, InputTokens: tc.input})
		assert.Equal(t, tc.want, p.blockTokens(tc.blocks), "%+v", tc)
	}
}

// For each server, the first and the last prompt that has computed a head are known; find
// returns one that was ready then and in use since.
func TestPlaces(t *testing.T) {
	at := func(second int, endpoint string) *prompt {
		return &prompt{r: &recording.Request{Endpoint: endpoint}, ready: time.Unix(int64(second), 0)}
	}
	a2, a4, a6, b3 := at(2, "a"), at(4, "a"), at(6, "a"), at(3, "b")
	for _, order := range [][]*prompt{{a2, a4, b3, a6}, {a6, b3, a4, a2}, {a4, b3, a6, a2}, {a4, a2, a6, b3}} {
		var ps places
		for _, p := range order {
			ps = ps.add(p)
		}
		require.Len(t, ps, 2)
		for _, tc := range []struct {
			then, since int
			endpoint    string
			want        *prompt
		}{
			{1, 0, "a", nil}, {2, 0, "a", a2}, {5, 0, "a", a2}, {6, 0, "a", a6}, {9, 0, "a", a6},
			{9, 6, "a", a6}, {9, 7, "a", nil}, {2, 0, "b", nil}, {3, 3, "b", b3}, {9, 4, "b", nil}, {9, 0, "c", nil}, {1, 0, "", nil},
		} {
			got := ps.find(time.Unix(int64(tc.then), 0), time.Unix(int64(tc.since), 0), tc.endpoint)
			assert.Same(t, tc.want, got, "%+v", tc)
		}
		assert.NotNil(t, ps.find(time.Unix(9, 0), time.Unix(0, 0), ""))
		assert.Same(t, a6, ps.find(time.Unix(9, 0), time.Unix(5, 0), ""), "wherever it is")
	}
	var many places
	for i := range maxPlaces + 10 {
		many = many.add(at(i, fmt.Sprint(i)))
	}
	assert.Len(t, many, maxPlaces)
	many.add(at(1000, "3"))
	assert.Equal(t, []int64{3, 1000}, []int64{many[3].first.ready.Unix(), many[3].last.ready.Unix()}, "those that are known go on")
}

// An earlier prompt reaches to its end or, if its answer comes next, to the end of that
// minus a token: 50 tokens were 128 to 272 bytes, give or take 8 and a fifth.
func TestReach(t *testing.T) {
	for _, tc := range []struct {
		role      string
		bytes     int
		estimated bool
		want      float64
	}{
		{"assistant", 200, false, 249}, {"assistant", 128, false, 249}, {"assistant", 124, false, 200},
		{"assistant", 272, false, 249}, {"assistant", 276, false, 200}, {"user", 200, false, 200}, {"assistant", 200, true, 200},
	} {
		q := &prompt{r: &recording.Request{InputTokens: 200, OutputTokens: 50, Estimated: tc.estimated}}
		p := &prompt{r: &recording.Request{}, messages: []recording.Piece{piece("user", 9, 1), piece(tc.role, tc.bytes, 2)}, scale: scale{0.25, true}}
		assert.InDelta(t, tc.want, q.reach(p, 1), 0, "%+v", tc)
		assert.InDelta(t, 200, q.reach(p, 2), 0, "there is no answer")
	}
}

// What a server has of a prompt follows from its blocks, or from an earlier prompt that is
// the whole of its beginning, if that is not much less.
func TestHeld(t *testing.T) {
	first, second := piece("user", 400, 1), piece("user", 400, 2)
	first.End, second.End = 408, 816
	goesOn := holding(first, second)
	for i := range 12 {
		goesOn.Blocks = append(goesOn.Blocks, recording.Hash(i+1))
	}
	for _, tc := range []struct {
		blocks, tokens int // of the earlier one
		want           int
	}{
		{0, 60, 60},
		{6, 95, 95}, {6, 120, 120}, // six blocks end at byte 376, at 97 tokens
		{6, 81, 81}, {6, 80, 97}, // less by a grain is a better guess than blocks; less than that is not the same
	} {
		var h history
		h.init()
		before := holding(first)
		before.Blocks = goesOn.Blocks[:tc.blocks]
		before.InputTokens = tc.tokens
		q := ready(t, 0, before)
		h.add(q)
		p := ready(t, 9, goesOn)
		p.scale = scale{0.25, true}
		anywhere, here := h.held(p, time.Unix(0, 0))
		assert.Equal(t, found{tc.want, q}, anywhere, "%+v", tc)
		assert.Equal(t, anywhere, here)
		p.r.Endpoint = "b"
		anywhere, here = h.held(p, time.Unix(0, 0))
		assert.Equal(t, found{tc.want, q}, anywhere, "%+v", tc)
		assert.Zero(t, here)
	}

	// Blocks after a gap are useless.
	var h history
	h.init()
	some := recording.Request{Blocks: []recording.Hash{1, 2, 4, 5}}
	h.add(ready(t, 0, some))
	p := ready(t, 9, recording.Request{Blocks: []recording.Hash{1, 2, 3, 4, 5}, BlockTokens: 10})
	anywhere, _ := h.held(p, time.Unix(0, 0))
	assert.Equal(t, 20, anywhere.tokens)
}

// Of the prompts that share something, the newest are candidates, however they are found;
// each once, the nearest first.
func TestCandidates(t *testing.T) {
	alone := 1000 // hashes that occur nowhere else
	fresh := func() recording.Hash { alone++; return recording.Hash(alone) }
	request := func(change func(*recording.Request), messages ...recording.Piece) recording.Request {
		r := holding(messages...)
		r.Model = fmt.Sprint("m", fresh())
		if change != nil {
			change(&r)
		}
		return r
	}
	random := func(n int) (all []recording.Piece) {
		for range n {
			all = append(all, piece("user", 20, fresh()))
		}
		return all
	}
	asked := random(12)
	template := piece("user", 20, fresh())
	template.Template = asked[0].Template
	of := func(q recording.Request, change func(*recording.Request)) bool {
		var h history
		h.init()
		earlier := ready(t, 0, q)
		h.add(earlier)
		all := h.candidates(ready(t, 1, request(change, asked...)), time.Unix(1, 0))
		assert.LessOrEqual(t, len(all), 1)
		return len(all) == 1
	}
	in := func(session recording.Hash) func(*recording.Request) {
		return func(r *recording.Request) { r.Session = session }
	}
	client := func(model, adapter string, tenant, salt recording.Hash) func(*recording.Request) {
		return func(r *recording.Request) { r.Model, r.Adapter, r.Tenant, r.Salt = model, adapter, tenant, salt }
	}
	for name, tc := range map[string]struct {
		q      recording.Request
		change func(*recording.Request)
		want   bool
	}{
		"nothing in common":           {request(nil, random(3)...), nil, false},
		"its last is our last":        {request(nil, append(random(3), asked[11])...), nil, true},
		"its last is our eighth last": {request(nil, append(random(3), asked[4])...), nil, true},
		"its last is our ninth last":  {request(nil, append(random(3), asked[3])...), nil, false},
		"our last is in its middle":   {request(nil, append(append(random(3), asked[11]), random(1)...)...), nil, false},
		"one session":                 {request(in(7), random(3)...), in(7), true},
		"two sessions":                {request(in(7), random(3)...), in(8), false},
		"no session":                  {request(in(0), random(3)...), in(0), false},
		"one beginning":               {request(nil, append([]recording.Piece{asked[0]}, random(2)...)...), nil, true},
		"one template":                {request(nil, append([]recording.Piece{template}, random(2)...)...), nil, true},
		"the template comes later":    {request(nil, append(random(2), template, piece("user", 20, fresh()))...), nil, false},
		"one client":                  {request(client("m", "l", 1, 5), random(3)...), client("m", "l", 1, 6), true},
		"two tenants":                 {request(client("m", "l", 1, 5), random(3)...), client("m", "l", 2, 5), false},
		"two adapters":                {request(client("m", "l", 1, 5), random(3)...), client("m", "k", 1, 5), false},
		"two models":                  {request(client("m", "l", 1, 5), random(3)...), client("n", "l", 1, 5), false},
		"found in each of the ways":   {request(in(7), asked...), in(7), true},
		"nothing of it is known":      {recording.Request{Session: 7, Blocks: []recording.Hash{1}}, in(7), false},
	} {
		assert.Equal(t, tc.want, of(tc.q, tc.change), name)
	}

	var h history
	h.init()
	old := ready(t, 0, request(nil, append([]recording.Piece{asked[0]}, random(1)...)...))
	h.add(old)
	var crowd []*prompt
	for i := range 20 { // of one template
		crowd = append(crowd, ready(t, i+1, request(nil, append([]recording.Piece{template}, random(1)...)...)))
		crowd[i].messages[0].Hash = fresh()
		h.add(crowd[i])
	}
	all := h.candidates(ready(t, 100, request(nil, asked...)), time.Unix(0, 0))
	require.Len(t, all, 17)
	assert.Same(t, old, all[0], "what begins alike comes before what is only made alike")
	for i := range 16 {
		assert.Same(t, crowd[19-i], all[1+i])
	}
	// Prompts that were not ready yet, or are too old, are no candidates.
	all = h.candidates(ready(t, 10, request(nil, asked...)), time.Unix(7, 0))
	require.Len(t, all, 4)
	assert.Same(t, crowd[8], all[0], "it was ready when the request came, at ten")
	assert.Same(t, crowd[5], all[3], "it was ready at seven")
	assert.Nil(t, h.candidates(ready(t, 100, recording.Request{Blocks: []recording.Hash{1}}), time.Unix(0, 0)))
}

func TestTimesThatCantBe(t *testing.T) {
	assert.Equal(t, time.Unix(1_000_000, 0), after(time.Unix(0, 0), math.Inf(1)))
}
