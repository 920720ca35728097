package dialect

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCount(t *testing.T) {
	for in, want := range map[string]int{"0": 0, "17": 17, "2147483647": 1<<31 - 1} {
		n, ok := count([]byte(in))
		assert.True(t, ok, in)
		assert.Equal(t, want, n, in)
	}
	for _, in := range []string{"", "-1", "1.5", "17.0", "1e3", "2147483648", "99999999999999999999999", "null", `"5"`, ".0", "1."} {
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

// For every valid text the scanner finds what encoding/json finds; for any
// other it must merely return.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{}`, `[]`, `{"a":1,"b":[1,2,{"c":null}],"d":"x\"y\\"}`, `{"\ud83d\ude00":"\ud83d","a":"\u00e9\n\/"}`,
		` { "a" : [ ] , "a" : "b" } `, `{"a":{"b":"}"}}`, `{"a`, `{"a":"\`, `["\\\\\"",1e5,true]`, `"\ud83dx"`, `[[1],[2,3]]`,
	} {
		f.Add([]byte(s))
	}
	for i := range 20 { // escapes anywhere in what is read eight bytes at a time
		long := `{"a":"X\/","b":"X\\/","c":"X\u0041 and so on","d":"X\\\u0041","e":"X\\u\n and so on"}`
		f.Add([]byte(strings.ReplaceAll(long, "X", `\n`+strings.Repeat("x", i))))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := membersOf(b)
		got := map[string]string{}
		for m.member() {
			v := m.value()
			if m.i == len(b) && v == nil {
				break // it is broken
			}
			got[string(m.key)] = string(v)
			if !bytes.HasSuffix(b[m.start:m.i], v) || b[m.start] != '"' {
				t.Fatalf("%q: bounds of %q", b, m.key)
			}
		}
		var list []string
		e := elementsOf(b)
		for e.element() {
			list = append(list, string(e.value()))
		}
		if !json.Valid(b) || !utf8.Valid(b) {
			return
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(b, &object) == nil && object != nil {
			require.NotNil(t, m.b)
			require.Len(t, got, len(object))
			for k, v := range object {
				require.Equal(t, string(v), got[k])
				var s string
				if json.Unmarshal(v, &s) == nil && isString(v) {
					require.Equal(t, s, string(stringBytes(v)))
					rest := strings.ReplaceAll(string(v), `\\`, "")
					require.Equal(t, strings.Contains(rest, `\u`) || strings.Contains(rest, `\/`), !isShortest(inQuotes(v)))
				}
			}
		}
		var array []json.RawMessage
		if json.Unmarshal(b, &array) == nil && array != nil {
			require.NotNil(t, e.b)
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
