package prefix

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCanonicalJSON(t *testing.T) {
	for in, want := range map[string]string{
		` { "b" : 1 , "a" : [ 1 , { "d":2,"c":3 } , "x" ] } `: `{"a":[1,{"c":3,"d":2},"x"],"b":1}`,
		`{"a":1,"b":2}`:                                   `{"a":1,"b":2}`,
		`{"b":1,"a":2,"b":3}`:                             `{"a":2,"b":3}`,
		`{"a":1,"a":2}`:                                   `{"a":2}`,
		`{"b":{"d":1,"c":2},"a":{"f":3,"e":4}}`:           `{"a":{"e":4,"f":3},"b":{"c":2,"d":1}}`,
		`{"b":{"b":1,"a":2},"b":{"b":3,"a":4},"a":[]}`:    `{"a":[],"b":{"a":4,"b":3}}`,
		`{"b":1,"a":[{"y":1,"x":[{"q":1,"p":2}]},{}]}`:    `{"a":[{"x":[{"p":2,"q":1}],"y":1},{}],"b":1}`,
		`[{"a":{"c":1,"b":2}},{"c":3},{"e":4,"d":5}]`:     `[{"a":{"b":2,"c":1}},{"c":3},{"d":5,"e":4}]`,
		`[1.50, -0, 1E5,true , null,0.1e+3,false,-2e-1]`:  `[1.50,-0,1E5,true,null,0.1e+3,false,-2e-1]`,
		`"\u0061\n\"\\\/\u2028<\u000A\u001F\u0022\u005c"`: "\"a\\n\\\"\\\\/\u2028<\\n\\u001f\\\"\\\\\"",
		`"\ud83d\ude00\u00E9\b\f\r\t\u0008\u000c\u000b"`:  `"😀é\b\f\r\t\b\f\u000b"`,
		`"\u0007\u0009\u000d\u000e\u007f"`:                "\"\\u0007\\t\\r\\u000e\x7f\"",
		`{"\u0062":1,"a":{}}`:                             `{"a":{},"b":1}`,
		`{"a!":1,"a":2,"":3}`:                             `{"":3,"a!":1,"a":2}`,
		"\t12\n":                                          "12",
		`{}`:                                              `{}`,
		`[ ]`:                                             `[]`,
		`{"z":{"y":{"x":1,"w":2}},"a":"b"}`:               `{"a":"b","z":{"y":{"w":2,"x":1}}}`,
	} {
		assert.Equal(t, want, canonicalJSON(in), in)
		assert.Equal(t, want, naiveCanonical(in), in)
	}
	deepest := strings.Repeat(`[{"b":1,"a":`, maxDepth/2) + "1" + strings.Repeat("}]", maxDepth/2)
	assert.Equal(t, strings.Repeat(`[{"a":`, maxDepth/2)+"1"+strings.Repeat(`,"b":1}]`, maxDepth/2), canonicalJSON(deepest))
	for _, s := range []string{
		`{"a":1}{"a":1}`, `{"a":1`, "1\v", "", " ", `{"b":1,"a":2,}`, `{,}`, `[1,]`, `[,1]`, `[1 2]`, `{"a" 1}`, `{"a":}`, `{1:2}`, `{"b":1 "a":2}`,
		`[1}`, `{"b":1,"a":2]`, `]`, `}`, `,`, `:`, `"`, `"\`, `"\x"`, `"\u12"`, `"\u12g4"`, "\"\n\"", "\"\x00\"", "[1]\x00", "\xef\xbb\xbf{}",
		"01", "-", "+1", "1.", ".5", "1e", "1e+", "tru", "nul", "True", "truefalse", "NaN", "--1", "0x1", "1_0",
		// JSON by its grammar, but no Unicode: which of the strings are equal?
		"{ \"b\":1,\"a\":\"\xff\"}", `[ "\ud800"]`, `[ "\ud800\ud800"]`, `[ "\udc00\ud800"]`, `[ "\ud800x"]`, `[ "\ud800\n"]`,
		// Deeper than engines read.
		"[" + deepest + "]", strings.Repeat("[ ", 100_000), `{"b":1,"a":"` + strings.Repeat("x", maxCanonical) + `"}`, strings.Repeat(`{"b":1,"a":`, 100_000) + "1" + strings.Repeat("}", 100_000),
	} {
		assert.Equal(t, s, canonicalJSON(s))
		assert.Equal(t, s, naiveCanonical(s))
	}
}

// naiveCanonical is canonicalJSON by means of encoding/json.
func naiveCanonical(s string) string {
	if !json.Valid([]byte(s)) || !isUnicode(s) || depth(s) > maxDepth || len(s) > maxCanonical || naiveParts(s) > maxParts {
		return s
	}
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		panic("valid, and can't be decoded")
	}
	return naiveText(v)
}

func naiveText(v any) string {
	var all []string
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			all = append(all, naiveText(key)+":"+naiveText(value))
		}
		slices.SortFunc(all, func(a, b string) int { return strings.Compare(keyOf(a), keyOf(b)) })
		return "{" + strings.Join(all, ",") + "}"
	case []any:
		for _, value := range v {
			all = append(all, naiveText(value))
		}
		return "[" + strings.Join(all, ",") + "]"
	case string:
		for i, c := range []string{"\\", `"`, "\b", "\f", "\n", "\r", "\t"} {
			v = strings.ReplaceAll(v, c, `\`+string(`\"bfnrt`[i]))
		}
		for c := range rune(' ') {
			v = strings.ReplaceAll(v, string(c), fmt.Sprintf(`\u%04x`, c))
		}
		return `"` + v + `"`
	case nil:
		return "null"
	}
	return fmt.Sprint(v) // true, false, a json.Number
}

// keyOf is the key of a member, including quotes.
func keyOf(member string) string {
	return member[:strings.Index(strings.ReplaceAll(strings.ReplaceAll(member[1:], `\\`, "--"), `\"`, "--"), `"`)+2]
}

var escapes = regexp.MustCompile(`\\(u[0-9a-fA-F]{4}|.)`)

// isUnicode reports whether the bytes are UTF-8 and surrogates are paired.
func isUnicode(s string) bool {
	high := -1 // where the low half must be
	for _, at := range escapes.FindAllStringIndex(s, -1) {
		code := s[at[0]:at[1]]
		if high >= 0 && at[0] != high {
			return false
		}
		n, _ := strconv.ParseUint(code[min(2, len(code)):], 16, 16)
		low := n >= 0xdc00 && n <= 0xdfff
		if low != (high >= 0) {
			return false
		}
		high = -1
		if utf16.IsSurrogate(rune(n)) && !low {
			high = at[1]
		}
	}
	return high < 0 && utf8.ValidString(s)
}

func depth(s string) (deepest int) {
	d := json.NewDecoder(strings.NewReader(s))
	for now := 0; ; {
		token, err := d.Token()
		if err != nil {
			return deepest
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			now++
			deepest = max(deepest, now)
		case json.Delim(']'), json.Delim('}'):
			now--
		}
	}
}

// drawJSON draws a text that is mostly JSON.
func drawJSON(t *rapid.T, levels int) string {
	white := rapid.SampledFrom([]string{"", "", "", " ", "\n\t"})
	str := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{
		"a", "b", "!", "é", "😀", `\u0061`, `\u0022`, `\"`, `\\`, `\/`, `\n`, `\u000a`, `\u0000`, `\ud83d\ude00`, "\x7f", "{", ",",
	}), 0, 2), func(pieces []string) string { return `"` + strings.Join(pieces, "") + `"` })
	var all []string
	n := rapid.IntRange(0, 4).Draw(t, "members")
	kind := rapid.SampledFrom([]string{"object", "object", "array", "string", "word"}).Draw(t, "kind")
	text := ""
	switch {
	case kind == "string":
		text = str.Draw(t, "string")
	case kind == "word" || levels == 0:
		text = rapid.SampledFrom([]string{"1", "-0.5e3", "true", "null", "12345678901234567890"}).Draw(t, "word")
	case kind == "array":
		for range n {
			all = append(all, drawJSON(t, levels-1))
		}
		text = "[" + strings.Join(all, ",") + white.Draw(t, "white") + "]"
	default:
		for range n {
			all = append(all, white.Draw(t, "white")+str.Draw(t, "key")+white.Draw(t, "white")+":"+drawJSON(t, levels-1))
		}
		text = "{" + strings.Join(all, ",") + white.Draw(t, "white") + "}"
	}
	return white.Draw(t, "white") + text + white.Draw(t, "white")
}

func TestCanonicalJSONIsTheNaiveOne(t *testing.T) {
	var c canonicalizer // reused, as by a Hasher
	rapid.Check(t, func(t *rapid.T) {
		s := drawJSON(t, 5)
		if rapid.IntRange(0, 9).Draw(t, "cut") == 0 {
			s = s[:rapid.IntRange(0, len(s)).Draw(t, "at")]
		}
		want := naiveCanonical(s)
		var got []byte
		if !c.write(s, new(budget), func(piece []byte) { got = append(got, piece...) }) {
			got = []byte(s)
		}
		require.Equal(t, want, string(got))
		require.Equal(t, want, canonicalJSON(want), "a canonical form is its own")
		require.Equal(t, want, canonicalJSON(s))
	})
}

// Objects with many members are radix-sorted, keys with long common heads by their
// next bytes, and of equal keys the last one wins.
func TestCanonicalJSONOfManyMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		heads := rapid.SliceOfN(rapid.SampledFrom([]string{
			"", "1234567", "12345678", "123456789", `\"\"\"\"`, "äöüß", "0123456789012345678901234", `1234567\"`, `123456\\`, "!", `a\u0061`,
		}), 1, 4).Draw(t, "heads")
		n := rapid.IntRange(1, 3*fewMembers).Draw(t, "members")
		most := rapid.IntRange(1, 400).Draw(t, "names")
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"%s%s":%d`, heads[i%len(heads)], strconv.Itoa(rapid.IntRange(0, most).Draw(t, "name")), i)
		}
		s := "{" + b.String()[1:] + "}"
		require.Equal(t, naiveCanonical(s), canonicalJSON(s))
		s = `[1, {"b":` + s + `,"a":` + s + `}]`
		require.Equal(t, naiveCanonical(s), canonicalJSON(s))
	})
}

// Whatever is sent as a tool is either left alone or converted to what
// encoding/json makes of it.
func FuzzCanonicalJSON(f *testing.F) {
	for _, s := range []string{
		`{"b":1,"a":[{"d":null,"c":"\u00e9"}]}`, `[1, 2.0, 1e5, -0]`, `"\ud83d\ude00\ud800"`, `{"a":1,"\u0061":2}`, `{`, "1\v", `"` + "\xff" + `\n"`,
		`{"b":{"d":[{"f":1,"e":2}],"c":0},"a":{"b":1,"a":2,"b":3}}`, "\"\x7f\u2028\"", `[ [ ] , { } ]`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := canonicalJSON(s)
		require.Equal(t, naiveCanonical(s), c)
		require.Equal(t, c, canonicalJSON(c))
	})
}
