package dialect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// The answers are llama.cpp's, shortened.
const (
	nativeLast = `{"index":0,"content":"","tokens":[],"id_slot":1,"stop":true,"model":"tiny.gguf","tokens_predicted":3,"tokens_evaluated":24,` +
		`"generation_settings":{"seed":1},"prompt":"<s> Once upon a time","truncated":false,"stop_type":"limit","tokens_cached":26,` +
		`"timings":{"cache_n":18,"prompt_n":6,"prompt_ms":0.7,"predicted_n":3,"predicted_ms":1.5}}`
	nativeProgress = `{"index":0,"content":"","tokens":[0],"stop":false,"id_slot":-1,"tokens_predicted":0,"tokens_evaluated":24,"prompt_progress":{"total":24,"cache":18,"processed":24}}`
)

func nativePiece(content string) string {
	return `{"index":0,"content":"` + content + `","tokens":[390],"stop":false,"id_slot":-1,"tokens_predicted":1,"tokens_evaluated":24}`
}

// The blocks follow the engine's order: other files first, then the text before the
// hole.
func TestInfillSharesItsFiles(t *testing.T) {
	file := `{"filename":"a.go","text":"` + words("package a") + `"}`
	read := func(extra, before string) []uint64 {
		return understand(t, infill, `{"input_suffix":"}","input_prefix":"`+before+`","input_extra":[`+extra+`]}`).req.Blocks
	}
	shared := func(a, b []uint64) (n int) {
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	one := read(file, words("func f"))
	assert.Greater(t, shared(one, read(file, words("func g"))), 0)
	assert.Equal(t, 0, shared(one, read(strings.Replace(file, "a.go", "b.go", 1), words("func f"))))
	assert.Equal(t, one, read(`{"text":"`+words("package a")+`","x":[1],"filename":"a.go"}`, words("func f")))
	assert.Equal(t, one[:1], read(file+","+file, words("func f"))[:1], "another file comes after")
	assert.NotEqual(t, one, read(`7,`+file, words("func g")))
}

func TestNativePromptsAreTheirTwins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawn{T: t}
		long := func() { d.put(`"` + words("long") + `"`) }
		one := func() {
			rapid.SampledFrom([]func(){
				d.str, d.ids, long,
				func() { d.list(rapid.SampledFrom([]func(){long, func() { d.put("7") }, d.str}).Draw(t, "of")) },
				func() { d.put(`[1,`); long(); d.put(`,2]`) },
				func() { d.put(`{"prompt_string":`); long(); d.put(`,"multimodal_data":["x"]}`) },
				func() { d.anything(1) },
			}).Draw(t, "one")()
		}
		if d.often() {
			d.list(one)
		} else {
			one()
		}
		body := []byte(`{"prompt":` + d.b.String() + "}")
		u, err := tryToUnderstand(native, body, manyItems)
		agree(t, native, body, u, err)
	})
}
