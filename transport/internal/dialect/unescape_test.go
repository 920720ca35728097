package dialect

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// A string unescapes to what a byte-by-byte reader makes of it, wherever its escapes fall
// in blocks and words.
func TestUnquotedIsItsTwin(t *testing.T) {
	twin := func(s []byte, shortest bool) (out []byte) {
		for len(s) > 0 {
			if s[0] != '\\' {
				out, s = append(out, s[0]), s[1:]
				continue
			}
			r, size := unescape(s)
			switch {
			case !shortest:
				out = utf8.AppendRune(out, r)
			case size <= 2 && (len(s) == 1 || s[1] != '/'): // short, or not an escape
				out = append(out, s[:size]...)
			default:
				out = append(out, written(string(r))...)
			}
			s = s[size:]
		}
		return out
	}
	pieces := []string{
		`\n`, `\t`, `\"`, `\\`, `\/`, `\u00e9`, `\u0041`, `\u0022`, `\u005c`, `\u000a`, `\u0001`, `\u4f60`, `\ud83d\ude00`, "x", " ", "]", "é", "你", "text of some length ",
		strings.Repeat("a longer piece ", 10), `\`, `\x`, `\u12`, `\u12g4`, `\ud83d`, `\ude00`, `\ud83d\u0041`,
	}
	const sound = 20 // valid pieces, which come first
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		from := pieces[:sound]
		if i%3 == 0 {
			from = pieces
		}
		few := from[r.IntN(len(from)):]
		few = few[:1+r.IntN(len(few))] // crowds of the same
		var b strings.Builder
		for most := r.IntN(400); b.Len() < most; {
			b.WriteString(few[r.IntN(len(few))])
		}
		s := []byte(b.String())
		before := []byte("before")
		if r.IntN(2) == 0 {
			before = append(make([]byte, 0, 1000), before...) // with spare capacity and existing contents
		}
		require.Equal(t, "before"+string(twin(s, false)), string(appendUnquoted(before, s)), "%q", s)
		shortest := twin(s, true)
		require.Equal(t, "before"+string(shortest), string(appendShortest(before, s)), "%q", s)
		if text := `"` + string(s) + `"`; skipString([]byte(text), 0) == len(text) {
			if _, various := readString([]byte(text), 0); !various {
				require.Equal(t, string(s), string(shortest), "stands as it is written")
			}
			if json.Valid([]byte(text)) {
				require.Equal(t, written(string(twin(s, false))), string(shortest))
			}
		}
	}
}

// The end of a string is the same whether it is looked up or searched for, in whatever
// order strings are asked for.
func TestLongStringsEndWhereTheyEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var b strings.Builder
		var starts []int
		for range r.IntN(12) {
			b.WriteString(`,{"`)
			starts = append(starts, b.Len()-1)
			b.WriteString(strings.Repeat([]string{"x", `\"`, `\\`, "]"}[r.IntN(4)], []int{0, 3, leastLong/2 - 2, leastLong - 2, leastLong - 1, leastLong}[r.IntN(6)]))
			b.WriteString([]string{`"`, `"`, `"`, ""}[r.IntN(4)])
		}
		body := []byte(b.String())
		known := longStrings{body: body}
		for _, at := range starts { // a walk over everything
			require.Equal(t, skipString(body, at), known.skip(body, at))
		}
		for range 3 * len(starts) {
			at := starts[r.IntN(len(starts))]
			from := r.IntN(at + 1)
			to := at + 1 + r.IntN(len(body)-at)
			part := body[from:to]
			require.True(t, known.has(part))
			require.Equal(t, skipString(part, at-from), known.skip(part, at-from), "%q from %d", part, at-from)
		}
	}
	body := []byte(`{"a":"` + strings.Repeat("x", 1000) + `"}`)
	known := longStrings{body: body}
	require.False(t, known.has(body[:0]))
	require.False(t, known.has([]byte(string(body))), "other memory")
	require.False(t, known.has(body[1:10:20]), "cut off")
}

// After a walk over the whole, walking into a part does not search for the end of a long string
// again.
func TestLongStringsAreReadOnce(t *testing.T) {
	long := strings.Repeat(`a \"line\"\n`, leastLong)
	body := []byte(`{"messages":[{"role":"user","content":"` + long + `"},{"role":"user","content":[{"type":"text","text":"` + long + `"}]}],"model":"m"}`)
	c, err := parse(chat, nil, body, manyItems)
	require.NoError(t, err)
	require.Len(t, c.long.found, 2)
	w := c.cursor(c.messages)
	require.NotNil(t, w.known)
	for i, s := range c.long.found {
		require.Equal(t, len(long)+2, s.end-s.start)
		require.Equal(t, skipString(body, s.start), s.end, "%d", i)
	}
	_, err = c.readPrompt(t.Context(), &endpick.Request{}, prefix.Scope{}, rates{})
	require.NoError(t, err)
	require.Empty(t, c.long, "what is not needed any more is let go")
}

// BenchmarkStrings measures the cost per byte of a string: to find its end, to write it
// as it is hashed, and to unescape it. The fastest of many measurements counts.
func BenchmarkStrings(b *testing.B) {
	for name, line := range map[string]string{
		"go":      `\n    if err != nil {\n\t\treturn fmt.Errorf(\"a line of code: %w\", err)\n`,
		"python":  `        for name in sorted(names, key=len):\n            print(f\"{name}: {len(name)}\")\n\n`,
		"html":    `\u003cp class=\"x\"\u003eSome text of a page.\u003c/p\u003e\n`,
		"latex":   `\\frac{\\alpha}{\\beta} and \\\\ a new line\n`,
		"prose":   `All work and no play makes Jack a dull boy, and there is more to it than one would think.\n`,
		"flat":    "All work and no play makes Jack a dull boy. ",
		"chinese": `\u4f60\u597d\uff0c\u4e16\u754c`,
		"broken":  `\x\y\z`,
	} {
		text := []byte(`"` + strings.Repeat(line, 1<<16/len(line)) + `"`)
		s := text[1 : len(text)-1]
		out := make([]byte, 0, 2*len(s))
		for way, f := range map[string]func(){
			"end":      func() { _, _ = readString(text, 0) },
			"shortest": func() { out = appendShortest(out[:0], s) },
			"unquoted": func() { out = appendUnquoted(out[:0], s) },
		} {
			b.Run(name+"/"+way, func(b *testing.B) {
				least := time.Duration(math.MaxInt64)
				for b.Loop() {
					start := time.Now()
					f()
					least = min(least, time.Since(start))
				}
				b.ReportMetric(float64(least)/float64(len(s)), "ns/B")
			})
		}
	}
}
