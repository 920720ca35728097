package bpe_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"

	"github.com/endpick/endpick/internal/lab/llamaserver"
	"github.com/endpick/endpick/transport/tokens"
	"github.com/endpick/endpick/transport/tokens/bpe"
)

// Directories with models' files, each named after llama.cpp's name for its split.
const modelsEnv = "ENDPICK_TOKENIZERS"

// The ids of texts and chats equal llama.cpp's for the vocabularies, merges and templates
// in use. llama.cpp does not normalise texts, as other tokenizers do; for most texts that
// makes no difference.
func TestLlamaMakesTheSameIDs(t *testing.T) {
	dir := os.Getenv(modelsEnv)
	if dir == "" {
		t.Skip(modelsEnv + " does not say where models' tokenizers are")
	}
	if err := llamaserver.Available(); err != nil {
		t.Skip(err)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) {
			files := filepath.Join(dir, e.Name())
			m, err := bpe.Load(files)
			require.NoError(t, err)
			server, err := llamaserver.StartModel(writeGGUF(t, files, e.Name()))
			require.NoError(t, err)
			t.Cleanup(server.Kill)
			same := 0
			for i := range 400 {
				text := someText(rand.New(rand.NewPCG(1, uint64(i))))
				if !norm.NFC.IsNormalString(text) {
					continue
				}
				var answer struct{ Tokens []uint32 }
				post(t, server.URL()+"/tokenize", map[string]any{"content": text, "add_special": false, "parse_special": true}, &answer)
				ids, err := m.Encode(t.Context(), text)
				require.NoError(t, err)
				if len(ids) == 0 {
					ids = []uint32{}
				}
				require.Equal(t, answer.Tokens, ids, "%q", text)
				same++
			}
			chats := 0
			for _, body := range someChats {
				var answer struct{ Prompt string }
				post(t, server.URL()+"/apply-template", json.RawMessage(body), &answer)
				text, err := m.Chat([]byte(body))
				if err != nil {
					require.ErrorIs(t, err, tokens.ErrNoPrompt)
					continue
				}
				require.Equal(t, answer.Prompt, text, "%s", body)
				ids, err := m.Tokens(t.Context(), "/v1/chat/completions", []byte(body))
				require.NoError(t, err)
				theirs, err := (&tokens.Llama{URL: server.URL()}).Tokens(t.Context(), "/v1/chat/completions", []byte(body))
				require.NoError(t, err)
				require.Equal(t, theirs, ids, "%s", body)
				chats++
			}
			t.Logf("%d texts, %d chats", same, chats)
			require.Greater(t, same, 100)
			require.Greater(t, chats, 2)
		})
	}
}

func post(t *testing.T, url string, body, answer any) {
	t.Helper()
	b, err := json.Marshal(body)
	require.NoError(t, err)
	resp, err := http.Post(url, "application/json", bytes.NewReader(b))
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 200, resp.StatusCode)
	require.NoError(t, json.NewDecoder(resp.Body).Decode(answer))
}

var someChats = []string{
	`{"messages":[{"role":"user","content":"Hi!"}]}`,
	`{"messages":[{"role":"system","content":"Be brief. "},{"role":"user","content":" Why é <x> & \"y\"? "},{"role":"assistant","content":"So."},{"role":"user","content":"And 12345?\n\n\n"}]}`,
	`{"messages":[{"role":"user","content":[{"type":"text","text":"One."},{"type":"text","text":"Two."}]}]}`,
	`{"messages":[{"role":"user","content":"日本語 and <|im_end|> and 👩‍👩‍👧"},{"role":"assistant","content":"x"},{"role":"user","content":"y"}]}`,
	`{"messages":[{"role":"user","content":"Weather?"}],"tools":[{"type":"function","function":{"name":"w","description":"it's \"so\"","parameters":{"type":"object","properties":{"z":{"type":"number"},"a":{"type":"string"}},"required":["z"]}}}]}`,
	`{"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"w","arguments":"{\"z\": 1, \"a\": \"x\"}"}}]},{"role":"tool","tool_call_id":"1","content":"rain"}],"tools":[{"type":"function","function":{"name":"w","description":"d","parameters":{"type":"object","properties":{"z":{"type":"number"},"a":{"type":"string"}}}}}]}`,
}

// someText is made of pieces that are hard to split and merge.
func someText(r *rand.Rand) string {
	parts := []string{
		"Hello", " world", "'s", "'LL", "don't", "İ", "ß", "ſ", "é", "e\u0301", "日本", "語。", "한국", "مرحبا", "हिन्दी", "🙂", "👩‍👩‍👧", "\U0001F1E9\U0001F1EA", "\u200b", "\u00a0", "\u0085", "\u2028", "\u3000",
		" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "0", "12", "345", "67890", "½", "²", "Ⅻ", "!", "...", "!?\n", "/*", "//\n", "{}", "_x", "a_b", "CamelCase", "XMLHttp", "http://a.b/c?d=e", "\x00", "\x7f", "<|", "|>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ǅ", "ª", "\u0300", "\u20ac", "—", "“”",
	}
	var b strings.Builder
	for range 1 + r.IntN(24) {
		if r.IntN(6) == 0 {
			b.WriteRune(rune(0x20 + r.IntN(0x3000)))
			continue
		}
		b.WriteString(parts[r.IntN(len(parts))])
	}
	return b.String()
}

// writeGGUF writes a llama.cpp model with this vocabulary and one layer of zeros.
func writeGGUF(t *testing.T, files, split string) string {
	var tokenizer struct {
		Added []struct {
			ID      int
			Content string
			Special bool
		} `json:"added_tokens"`
		Model struct {
			Vocab  map[string]int
			Merges []json.RawMessage
		}
	}
	read := func(name string, into any) {
		text, err := os.ReadFile(filepath.Join(files, name))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, into))
	}
	read("tokenizer.json", &tokenizer)
	var config struct {
		Template string          `json:"chat_template"`
		BOS, EOS json.RawMessage // strings, or objects
	}
	read("tokenizer_config.json", &config)
	size := 0
	for _, id := range tokenizer.Model.Vocab {
		size = max(size, id+1)
	}
	for _, a := range tokenizer.Added {
		size = max(size, a.ID+1)
	}
	names, types := make([]string, size), make([]int32, size)
	for i := range names {
		names[i], types[i] = fmt.Sprintf("[unused %d]", i), 5
	}
	for name, id := range tokenizer.Model.Vocab {
		names[id], types[id] = name, 1
	}
	for _, a := range tokenizer.Added {
		names[a.ID], types[a.ID] = a.Content, 4
		if a.Special {
			types[a.ID] = 3
		}
	}
	var merges []string
	for _, m := range tokenizer.Model.Merges {
		var list []string
		var one string
		if json.Unmarshal(m, &one) != nil {
			require.NoError(t, json.Unmarshal(m, &list))
			one = strings.Join(list, " ")
		}
		merges = append(merges, one)
	}

	const width, feed, heads, context = 64, 128, 4, 4096
	var kv bytes.Buffer
	fields := 0
	put := func(v any) { require.NoError(t, binary.Write(&kv, binary.LittleEndian, v)) }
	str := func(s string) { put(uint64(len(s))); kv.WriteString(s) }
	field := func(name string, kind uint32) { str(name); put(kind); fields++ }
	number := func(name string, v uint32) { field(name, 4); put(v) }
	list := func(name string, kind uint32, n int) { field(name, 9); put(kind); put(uint64(n)) }
	field("general.architecture", 8)
	str("llama")
	for name, v := range map[string]uint32{
		"llama.context_length": context, "llama.embedding_length": width, "llama.block_count": 1, "llama.feed_forward_length": feed, "llama.attention.head_count": heads,
		"llama.attention.head_count_kv": heads, "llama.rope.dimension_count": width / heads, "llama.vocab_size": uint32(size), "general.file_type": 0,
	} {
		number(name, v)
	}
	field("llama.attention.layer_norm_rms_epsilon", 6)
	put(float32(1e-5))
	field("tokenizer.ggml.model", 8)
	str("gpt2")
	field("tokenizer.ggml.pre", 8)
	str(split)
	list("tokenizer.ggml.tokens", 8, size)
	for _, n := range names {
		str(n)
	}
	list("tokenizer.ggml.token_type", 5, size)
	put(types)
	list("tokenizer.ggml.merges", 8, len(merges))
	for _, m := range merges {
		str(m)
	}
	for i, n := range names {
		switch n {
		case "<|begin_of_text|>", "<｜begin▁of▁sentence｜>":
			number("tokenizer.ggml.bos_token_id", uint32(i))
		case "<|eot_id|>", "<|im_end|>", "<｜end▁of▁sentence｜>":
			number("tokenizer.ggml.eos_token_id", uint32(i))
		}
	}
	field("tokenizer.ggml.add_bos_token", 7)
	put(false)
	field("tokenizer.chat_template", 8)
	str(config.Template)

	type tensor struct {
		name string
		dims []uint64
	}
	tensors := []tensor{{"token_embd.weight", []uint64{width, uint64(size)}}, {"output_norm.weight", []uint64{width}}}
	for name, dims := range map[string][]uint64{
		"attn_norm": {width}, "attn_q": {width, width}, "attn_k": {width, width}, "attn_v": {width, width}, "attn_output": {width, width},
		"ffn_norm": {width}, "ffn_gate": {width, feed}, "ffn_up": {width, feed}, "ffn_down": {feed, width},
	} {
		tensors = append(tensors, tensor{"blk.0." + name + ".weight", dims})
	}
	body := kv.Bytes()
	kv = bytes.Buffer{}
	length := uint64(0)
	for _, x := range tensors {
		str(x.name)
		put(uint32(len(x.dims)))
		put(x.dims)
		put(uint32(0))
		put(length)
		n := uint64(4)
		for _, d := range x.dims {
			n *= d
		}
		length += (n + 31) / 32 * 32
	}
	info := kv.Bytes()
	path := filepath.Join(t.TempDir(), "model.gguf")
	f, err := os.Create(path)
	require.NoError(t, err)
	w := bufio.NewWriter(f)
	head := append([]byte("GGUF"), binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64([]byte{3, 0, 0, 0}, uint64(len(tensors))), uint64(fields))...)
	for _, b := range [][]byte{head, body, info} {
		_, err = w.Write(b)
		require.NoError(t, err)
	}
	written := len(head) + len(body) + len(info)
	_, err = w.Write(make([]byte, (written+31)/32*32-written+int(length)))
	require.NoError(t, err)
	require.NoError(t, w.Flush())
	require.NoError(t, f.Close())
	return path
}
