package dialect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
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
