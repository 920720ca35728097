package prefix

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCanonicalJSON(t *testing.T) {
	for in, want := range map[string]string{
		` { "b" : 1 , "a" : [ 1 , { "d":2,"c":3 } , "x" ] } `: `{"a":[1,{"c":3,"d":2},"x"],"b":1}`,
		`{"a":1,"b":2}`:                     `{"a":1,"b":2}`,
		`{"b":1,"a":2,"b":3}`:               `{"a":2,"b":3}`,
		`{"a":1,"a":2}`:                     `{"a":2}`,
		`[1.50, -0, 1E5,true , null]`:       `[1.50,-0,1E5,true,null]`,
		`"\u0061\n\"\\\/\u2028<"`:           "\"a\\u000a\\\"\\\\/\u2028<\"",
		`{"\u0062":1,"a":{}}`:               `{"a":{},"b":1}`,
		"\t12\n":                            "12",
		`{}`:                                `{}`,
		`[ ]`:                               `[]`,
		`{"a":1}{"a":1}`:                    `{"a":1}{"a":1}`,
		`{"a":1`:                            `{"a":1`,
		"1\v":                               "1\v",
		"":                                  "",
		`{"z":{"y":{"x":1,"w":2}},"a":"b"}`: `{"a":"b","z":{"y":{"w":2,"x":1}}}`,
	} {
		assert.Equal(t, want, canonicalJSON(in), in)
	}
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	assert.Equal(t, deep, canonicalJSON(deep))
}

// The canonical form has the same value, and is its own canonical form.
func FuzzCanonicalJSON(f *testing.F) {
	for _, s := range []string{
		`{"b":1,"a":[{"d":null,"c":"\u00e9"}]}`, `[1, 2.0, 1e5, -0]`, `"\ud83d\ude00\ud800"`, `{"a":1,"\u0061":2}`, `{`, "1\v", `"` + "\xff" + `\n"`,
	} {
		f.Add(s)
	}
	decode := func(t *testing.T, s string) any {
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		var v any
		require.NoError(t, d.Decode(&v))
		return v
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := canonicalJSON(s)
		require.Equal(t, c, canonicalJSON(c))
		if !json.Valid([]byte(s)) {
			require.Equal(t, s, c)
			return
		}
		require.True(t, json.Valid([]byte(c)))
		require.Equal(t, decode(t, s), decode(t, c))
	})
}
