package dialect

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCount(t *testing.T) {
	for in, want := range map[string]int{"0": 0, "17": 17, "2147483647": 1<<31 - 1, "17.0": 17, "3.00": 3} {
		n, ok := count([]byte(in))
		assert.True(t, ok, in)
		assert.Equal(t, want, n, in)
	}
	for _, in := range []string{"", "-1", "1.5", "1e3", "2147483648", "99999999999999999999999", "null", `"5"`, ".0", "1."} {
		_, ok := count([]byte(in))
		assert.False(t, ok, in)
	}
}

func TestFieldTakesTheLastOfTwins(t *testing.T) {
	assert.Equal(t, "2", string(field([]byte(`{"a":1,"b":{"a":9},"a":2}`), "a")))
	assert.Equal(t, "1", string(field([]byte(`{"\u0061":1}`), "a")), "an escaped key is the same key")
	assert.Nil(t, field([]byte(`{"a":1}`), "b"))
	assert.Nil(t, field([]byte(`[1]`), "a"))
}

func TestMembersSayWhetherTheObjectEnds(t *testing.T) {
	for in, broken := range map[string]bool{
		`{}`: false, `{"a":1}`: false, ` {"a":{"b":[1,{}]} , "c":"}"} `: false,
		`{`: true, `{"a`: true, `{"a"`: true, `{"a":`: true, `{"a":1`: true, `{"a":{"b":1}`: true, `{"a" 1}`: true, `{a:1}`: true,
	} {
		m, ok := membersOf([]byte(in))
		require.True(t, ok, in)
		for ok {
			_, ok = m.next()
		}
		assert.Equal(t, broken, m.broken, in)
	}
}

// Strings end at the right place, whatever runs of bytes and escapes they consist
// of: short runs are scanned differently from long ones.
func TestSkipString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		b.WriteByte('"')
		for range rapid.IntRange(0, 6).Draw(t, "runs") {
			n := rapid.SampledFrom([]int{1, 2, 7, 8, 9, 50, 70, 200}).Draw(t, "length")
			b.WriteString(strings.Repeat(rapid.SampledFrom([]string{"x", `\"`, `\\`, `\n`, "[", `\u00e9`}).Draw(t, "of"), n))
		}
		b.WriteByte('"')
		whole := b.String()
		text := whole + rapid.SampledFrom([]string{"", `"`, `,"x"`, `\"`}).Draw(t, "rest")
		require.Equal(t, len(whole), skipString([]byte(text), 0))
		require.Equal(t, len(whole)+1, skipValue([]byte("["+text), 1))
		require.Equal(t, len(whole)+2, skipValue([]byte("["+whole+"]"), 0))
		require.Equal(t, -1, skipString([]byte(whole[:len(whole)-1]), 0), "one without end")
		var want string
		require.NoError(t, json.Unmarshal([]byte(whole), &want))
		require.Equal(t, want, string(stringBytes([]byte(whole))))
		require.Equal(t, len(want), stringLen([]byte(whole)))
	})
}

// Objects and arrays end at the right place, wherever in a word that is.
func TestSkipContainerIsItsTwin(t *testing.T) {
	twin := func(b []byte) int {
		depth := 0
		for i := 0; i < len(b); i++ {
			switch b[i] {
			case '"':
				for i++; i < len(b) && b[i] != '"'; i++ {
					if b[i] == '\\' {
						i++
					}
				}
				if i >= len(b) {
					return -1
				}
			case '{', '[':
				if depth++; depth > maxDepth {
					return -2
				}
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
		return -1
	}
	pieces := rapid.SampledFrom([]string{"{", "[", "[", "}", "]", "]", `""`, `"]"`, `"\\"`, `"\""`, "\"", ",", ":", "1", "   ", "#", "]", "\xfb\xfd", `"long text "`, strings.Repeat("[", 90)})
	rapid.Check(t, func(t *rapid.T) {
		b := []byte("[" + strings.Join(rapid.SliceOfN(pieces, 0, 40).Draw(t, "pieces"), ""))
		require.Equal(t, twin(b), skipValue(b, 0), "%s", b)
	})
}

// For every valid text the scanner finds what encoding/json finds; for any
// other it must merely return.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{}`, `[]`, `{"a":1,"b":[1,2,{"c":null}],"d":"x\"y\\"}`, `{"\ud83d\ude00":"\ud83d","a":"\u00e9\n\/"}`,
		` { "a" : [ ] , "a" : "b" } `, `{"a":{"b":"}"}}`, `{"a`, `{"a":"\`, `["\\\\\"",1e5,true]`, `"\ud83dx"`, `[[1],[2,3]]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, isObject := membersOf(b)
		got := map[string]string{}
		for ok := isObject; ok; {
			var x member
			if x, ok = m.next(); ok {
				got[string(x.key)] = string(x.value)
				if !bytes.HasSuffix(b[x.at:x.end], x.value) || b[x.at] != '"' {
					t.Fatalf("%q: bounds of %q", b, x.key)
				}
				if n := len(stringBytes(x.value)); isString(x.value) && n != stringLen(x.value) {
					t.Fatalf("stringLen(%q) = %d, not %d", x.value, stringLen(x.value), n)
				}
			}
		}
		var list []string
		e, isArray := elementsOf(b)
		for ok := isArray; ok; {
			var x []byte
			if x, ok = e.next(); ok {
				list = append(list, string(x))
			}
		}
		if !json.Valid(b) || !utf8.Valid(b) {
			return
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(b, &object) == nil && object != nil {
			require.True(t, isObject)
			require.False(t, m.broken)
			require.Len(t, got, len(object))
			for k, v := range object {
				require.Equal(t, string(v), got[k])
				var s string
				if json.Unmarshal(v, &s) == nil && isString(v) {
					require.Equal(t, s, string(stringBytes(v)))
				}
			}
		}
		var array []json.RawMessage
		if json.Unmarshal(b, &array) == nil && array != nil {
			require.True(t, isArray)
			require.Len(t, list, len(array))
			for i, v := range array {
				require.Equal(t, string(v), list[i])
				n, ok := count(v)
				if want, err := strconv.ParseInt(string(v), 10, 32); err == nil && want >= 0 && !strings.HasPrefix(string(v), "-") {
					require.True(t, ok && n == int(want), "%s", v)
				}
			}
		}
	})
}

// The scanner finds the end of a string, and escapes that could be written differently,
// as a byte-by-byte reader does, wherever quotes and backslashes fall in words of eight
// bytes and blocks of 64.
func TestStringsEndWhereTheyEnd(t *testing.T) {
	naive := func(b []byte, i int) (end int, various bool) {
		for i++; i < len(b); i++ {
			if b[i] == '\\' {
				if i++; i < len(b) && b[i]%2 != 0 {
					various = true
				}
			} else if b[i] == '"' {
				return i + 1, various
			}
		}
		return -1, various
	}
	r := rand.New(rand.NewPCG(1, 2))
	check := func(b []byte, at int) {
		end, various := naive(b, at)
		gotEnd, gotVarious := readString(b, at)
		require.Equal(t, end, gotEnd, "%q from %d", b, at)
		if end >= 0 {
			require.Equal(t, various, gotVarious, "%q from %d", b, at)
		}
	}
	for range 50_000 {
		n, plain := 1+r.IntN(120), r.IntN(60)
		b := make([]byte, n)
		for i := range b {
			b[i] = `"\\\`[r.IntN(4)]
			if r.IntN(60) < plain {
				b[i] = 'a' + byte(r.IntN(200))
			}
		}
		at := r.IntN(n)
		b[at] = '"'
		check(b, at)
	}
	pieces := []string{`\"`, `\"#`, `\n`, `\t`, `\\`, `\\]`, "]", "#", "é", "你", `\u00e9`, `\/`, `\]`, `"`}
	for range 20_000 {
		few := pieces[:1+r.IntN(len(pieces))]
		b := []byte(strings.Repeat(" ", r.IntN(9)))
		at := len(b)
		b = append(b, '"')
		for most := r.IntN(900); len(b) < most; {
			b = append(b, few[r.IntN(len(few))]...)
			for range r.IntN(1 + r.IntN(1+r.IntN(200))) {
				b = append(b, 'a'+byte(r.IntN(26)))
			}
		}
		if r.IntN(3) > 0 {
			b = append(b, `",`...)
		}
		check(b, at)
	}
}
