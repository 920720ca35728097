package dialect

import (
	"bytes"
	"context"
	"maps"
	"math"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shapes are bodies made to cost more than their length.
var shapes = rig.Bodies()

func apiOfShape(s rig.Body) *api { return apiOf(http.MethodPost, s.Path) }

// prepareBody does what a transport does with a body before routing it, and returns all that remains of a
// waiting request; nil: it is refused.
func prepareBody(kind *api, body []byte) (*understood, [][]byte) {
	u, err := tryToUnderstand(kind, bytes.Clone(body), manyItems)
	if err != nil {
		return nil, nil
	}
	pieces, _ := u.askForUsage()
	return &u, pieces
}

// No body takes much longer than a flat one of its size. The margin is wide, and
// the fastest of many measurements counts, since a machine may be busy; quadratic
// work would take hundreds or thousands of times as long.
func TestTimeIsLinearInTheBody(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector slows down some code more than other")
	const size, most = 4 << 20, 100
	flat := rig.Flat.Bytes(size)
	longest := max(rig.LeastTime(5, 0, func() { prepareBody(chat, flat) }), 20*time.Millisecond) * most
	for name, s := range shapes {
		body := s.Bytes(size)
		assert.Less(t, rig.LeastTime(10, longest, func() { prepareBody(apiOfShape(s), body) }), longest, name)
	}
}

// No stream takes much longer than another of its size.
func TestTimeIsLinearInTheStream(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector slows down some code more than other")
	const n = 100_000
	filter := func(stream string) func() {
		return func() {
			s := eventFilter{inspect: func([]byte) edit { return edit{} }}
			s.feed(nil, []byte(stream))
		}
	}
	said := func(e event) func() {
		return func() {
			for a, i := (answer{wanted: true}), 0; i < n; i++ {
				a.on(&e)
			}
		}
	}
	for name, c := range map[string]struct{ flat, odd func() }{
		"CR":             {filter(strings.Repeat("data: x\n\n", n)), filter(strings.Repeat("data: x\r\r", n))},
		"CR in an event": {filter(strings.Repeat("data: x\n", n)), filter(strings.Repeat("data: x\r", n) + "\r")},
		"names":          {said(event{kind: text, text: []byte(`"xy"`)}), said(event{kind: tool, name: []byte(`"xy"`)})},
	} {
		longest := 30 * max(rig.LeastTime(5, 0, c.flat), 3*time.Millisecond)
		assert.Less(t, rig.LeastTime(5, longest, c.odd), longest, name)
	}
}

// A waiting request keeps its body plus an eighth, or what it reports to the
// queue; reading it takes at most a few times that.
func TestMemoryIsLinearInTheBody(t *testing.T) {
	const size = 4 << 20
	stats := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m
	}
	all := maps.Clone(shapes)
	all["flat"] = rig.Flat
	for name, s := range all {
		body := s.Bytes(size)
		before := stats()
		u, pieces := prepareBody(apiOfShape(s), body)
		after := stats()
		assert.Less(t, int(after.TotalAlloc-before.TotalAlloc), 6*size, "%s: used", name)
		if u == nil {
			continue // refused
		}
		remains := int(after.HeapAlloc) - int(before.HeapAlloc)
		assert.Less(t, remains, 2*size, "%s: remains", name)
		reported := (&Call{request: u.request}).Memory() + 8*cap(u.req.Blocks)
		assert.InDelta(t, remains, reported, size/16, "%s: reported to the queue", name)
		runtime.KeepAlive(u)
		runtime.KeepAlive(pieces)
		runtime.KeepAlive(body)
	}
}

// Limits are exact, whatever the items are, and also count together.
func TestLimits(t *testing.T) {
	items := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	// Padding, to make the body long enough for that many.
	long := func(n int, body string) []byte { return []byte(body + strings.Repeat(" ", n*itemBytes)) }
	for name, tc := range map[string]struct {
		kind *api
		body func(n int) string // with n items
	}{
		"messages":   {chat, func(n int) string { return `{"messages":[` + items(n, "{}") + `]}` }},
		"parts":      {chat, func(n int) string { return `{"messages":[{"content":[` + items(n-1, "1") + `]}]}` }},
		"tools":      {chat, func(n int) string { return `{"tools":[` + items(n-1, `"x"`) + `],"messages":[{}]}` }},
		"tool calls": {chat, func(n int) string { return `{"messages":[{"tool_calls":[` + items(n-1, "{}") + `]}]}` }},
		"all": {chat, func(n int) string {
			return `{"tools":[` + items(2, `{}`) + `],"messages":[{"content":[{},{}]},{"tool_calls":[{},{}]},` + items(n-8, "0") + `]}`
		}},
		"texts":          {completion, func(n int) string { return `{"prompt":[` + items(n, `"x"`) + `]}` }},
		"lists of ids":   {completion, func(n int) string { return `{"prompt":[` + items(n, `[1]`) + `]}` }},
		"the last twin":  {chat, func(n int) string { return `{"messages":[{},{},{}],"messages":[` + items(n, "{}") + `]}` }},
		"contents again": {chat, func(n int) string { return `{"messages":[{"content":[0,0,0],"content":[` + items(n-1, "0") + `]}]}` }},
	} {
		for _, limit := range []int{9, 20, 1000} {
			require.NoError(t, rig.Err(tryToUnderstand(tc.kind, long(limit, tc.body(limit)), limit)), "%s, %d", name, limit)
			_, err := tryToUnderstand(tc.kind, long(limit, tc.body(limit+1)), limit)
			var bad *endpick.RequestError
			require.ErrorAs(t, err, &bad, "%s, %d", name, limit)
			assert.Equal(t, tooManyItems, bad)
			assert.ErrorAs(t, err, new(*endpick.RequestError))
		}
	}
	// Token ids are limited by the body's length alone, and so is what is not parsed.
	for _, body := range []string{`{"prompt":[` + items(1000, "1") + `]}`, `{"prompt":"x","logit_bias":{` + items(1000, `"1":1`) + `},"stop":[` + items(1000, `""`) + `]}`} {
		assert.Equal(t, completion, understand(t, completion, body).api)
	}
	require.NoError(t, rig.Err(tryToUnderstand(chat, []byte(`{"messages":[{}]}`), math.MaxInt)))
}

// The number of items is limited by the length of the body.
func TestLimitsGoByTheLength(t *testing.T) {
	const n = 1 << 16
	for name, tc := range map[string]struct {
		s     rig.Body
		limit int
	}{
		"messages": {shapes["empty messages"], fewItems + n/itemBytes},
		"parts":    {shapes["empty blocks"], fewItems + n/itemBytes - 1},
		"items":    {shapes["empty items"], fewItems + n/itemBytes},
		"texts":    {shapes["texts"], fewItems + n/itemBytes},
	} {
		body := func(items int) []byte {
			b := []byte(tc.s.Head + strings.TrimSuffix(strings.Repeat(tc.s.Item+tc.s.Comma, items), tc.s.Comma) + tc.s.Tail)
			return append(b, bytes.Repeat([]byte(" "), n-len(b))...)
		}
		require.NoError(t, rig.Err(tryToUnderstand(apiOfShape(tc.s), body(tc.limit), manyItems)), name)
		require.ErrorAs(t, rig.Err(tryToUnderstand(apiOfShape(tc.s), body(tc.limit+1), manyItems)), new(*endpick.RequestError), name)
	}
}

func TestDepth(t *testing.T) {
	nested := func(depth int, open, close string) string {
		return strings.Repeat(open, depth) + strings.Repeat(close, depth)
	}
	for name, body := range map[string]func(depth int) string{
		"messages":        func(d int) string { return `{"messages":` + nested(d, "[", "]") + `}` },
		"tools":           func(d int) string { return `{"messages":[{}],"tools":` + nested(d, "[", "]") + `}` },
		"something else":  func(d int) string { return `{"messages":[{}],"a":` + nested(d-1, `{"a":`, `}`) + `}` },
		"both kinds":      func(d int) string { return `{"a":` + nested(d/2, `[{"a":`, `}]`) + `,"messages":[{}]}` },
		"after something": func(d int) string { return `{"a":[[],[],"]",` + nested(d-1, "[", "]") + `],"messages":[{}]}` },
	} {
		_, err := tryToUnderstand(chat, []byte(body(maxDepth)), manyItems)
		require.NoError(t, err, name)
		for _, d := range []int{maxDepth + 2, 1 << 20} {
			_, err = tryToUnderstand(chat, []byte(body(d)), manyItems)
			require.EqualError(t, err, "endpick: request: body is nested deeper than 256 levels", name)
		}
	}
	_, err := tryToUnderstand(chat, []byte(`{"messages":[{}],"a":"`+strings.Repeat("[", 1000)+`"}`), manyItems)
	require.NoError(t, err, "brackets in a string are no levels")
}

func TestReadingLooksAtItsClient(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, s := range map[string]rig.Body{
		"messages": shapes["empty messages"], "tools": shapes["small tools"], "texts": shapes["texts"], "lists": shapes["lists of token ids"],
	} {
		c := rig.Must(parse(apiOfShape(s), nil, s.Bytes(100000), manyItems))
		require.ErrorIs(t, rig.Err(c.readPrompt(ctx, &endpick.Request{}, prefix.Scope{}, rates{})), context.Canceled, name)
		assert.GreaterOrEqual(t, c.items, fewItems+len(c.body)/itemBytes-64, "%s: no more than a few were looked at", name)
	}
}
