package bpe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport/tokens"
	"github.com/endpick/endpick/transport/tokens/bpe"
)

var _ tokens.Tokenizer = (*bpe.Model)(nil)

// spelled returns the way that byte-level vocabularies write a byte.
func spelled(b byte) string {
	r := rune(b)
	switch {
	case b <= ' ':
		r = 0x100 + rune(b)
	case b >= 0x7F && b <= 0xA0:
		r = 0x100 + 0x21 + rune(b-0x7F)
	case b == 0xAD:
		r = 0x143
	}
	return string(r)
}

// small is a tokenizer.json, changed by edit, with a token for each byte, numbered by
// its value, and these merges, whose results are numbered from 256 on.
func small(t testing.TB, edit func(map[string]any), merges ...string) []byte {
	vocabulary := map[string]int{}
	for b := range 256 {
		vocabulary[spelled(byte(b))] = b
	}
	list := []any{}
	for i, m := range merges {
		left, right, _ := strings.Cut(m, " ")
		vocabulary[left+right] = 256 + i
		if i%2 == 0 {
			list = append(list, m) // both existing forms
		} else {
			list = append(list, []string{left, right})
		}
	}
	f := map[string]any{
		"added_tokens": []any{
			map[string]any{"id": 1000, "content": "<|s|>", "special": true},
			map[string]any{"id": 1001, "content": "<|s|>>"},
			map[string]any{"id": 1002, "content": "<|r|>", "rstrip": true, "lstrip": true},
			map[string]any{"id": 1003, "content": "<|left|>", "lstrip": true},
			map[string]any{"id": 1004, "content": "<|right|>", "rstrip": true},
			map[string]any{"id": 1005, "content": "|s|>"}, // part of another
			map[string]any{"id": 1006, "content": "|a|"},  // ends where the next begins
			map[string]any{"id": 1007, "content": "|b"},
		},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
		"model":         map[string]any{"type": "BPE", "vocab": vocabulary, "merges": list},
	}
	if edit != nil {
		edit(f)
	}
	b, err := json.Marshal(f)
	require.NoError(t, err)
	return b
}

func bytesOf(s string) (ids []uint32) {
	for _, b := range []byte(s) {
		ids = append(ids, uint32(b))
	}
	return ids
}

func TestEncode(t *testing.T) {
	model := func(field string, v any) func(map[string]any) {
		return func(f map[string]any) { f["model"].(map[string]any)[field] = v }
	}
	split := func(v ...any) func(map[string]any) {
		return func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": append(v, map[string]any{"type": "ByteLevel", "use_regex": false})}
		}
	}
	for _, tc := range []struct {
		name   string
		edit   func(map[string]any)
		merges []string
		text   string
		want   []uint32
	}{
		{"bytes", nil, nil, "a é", []uint32{'a', ' ', 0xC3, 0xA9}},
		{"no UTF-8", nil, nil, "\xff\xc3", []uint32{0xFF, 0xC3}},
		{"nothing", nil, nil, "", nil},
		{"the earlier merge first", nil, []string{"b c", "a b"}, "abc", []uint32{'a', 256}},
		{"the leftmost first", nil, []string{"a a"}, "aaa", []uint32{256, 'a'}},
		{"of a pair that stands there twice the last counts", nil, []string{"a b", "b c", "a b"}, "abc", []uint32{'a', 257}},
		{"merges of merges", nil, []string{"a b", "ab ab"}, "ababab", []uint32{257, 256}},
		{"not across words", nil, []string{"a Ġ", "Ġ a"}, "a a", []uint32{'a', 257}},
		{"a space of several goes with the word", nil, []string{"Ġ Ġ", "Ġ a"}, "   a", []uint32{256, 257}},
		{"special tokens", nil, []string{"s |"}, "a<|s|>b<|s|>>", []uint32{'a', 1000, 'b', 1001}},
		{"one after the other", nil, nil, "<|s|><|s|><|s|>><|r|><|s|>", []uint32{1000, 1000, 1001, 1002, 1000}},
		{"that take white space", nil, nil, "a \n<|r|>\t b", []uint32{'a', 1002, 'b'}},
		{"of one side", nil, nil, " <|left|> <|right|> ", []uint32{1003, ' ', 1004}},
		{"and nothing else", nil, nil, "\u00a0<|r|>\u2003<|r|> ", []uint32{1002, 1002}},
		{"others that begin alike", nil, nil, "<|s|<|s|>|>", append(append(bytesOf("<|s|"), 1000), bytesOf("|>")...)},
		{"within others, and across their ends", nil, nil, "<|s|>|s|>|a|b|b", []uint32{1000, 1005, 1006, 'b', 1007}},
		{"an unknown token that is none", model("unk_token", "<unk>"), nil, "\xff", []uint32{0xFF}},
		{"a pattern", split(map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "b+"}, "behavior": "Isolated"}), []string{"a b", "b b"}, "abb", []uint32{'a', 257}},
		{"what is between goes", split(map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "b+"}, "behavior": "Removed", "invert": true}), nil, "abba", bytesOf("bb")},
		{"a text", split(map[string]any{"type": "Split", "pattern": map[string]any{"String": "."}, "behavior": "MergedWithPrevious"}), []string{"a .", ". a"}, "a.a", []uint32{256, 'a'}},
		{"digits", split(map[string]any{"type": "Digits", "individual_digits": true}), []string{"1 1"}, "11", bytesOf("11")},
		{"digits together", split(map[string]any{"type": "Digits"}), []string{"1 1", "a 1"}, "a11", []uint32{'a', 256}},
		{"whole pieces first", model("ignore_merges", true), []string{"b c", "a b", "ab c"}, "abc", []uint32{258}},
		{"if they are tokens", model("ignore_merges", true), []string{"b c", "a b", "ab c"}, "abcd", []uint32{'a', 256, 'd'}},
		{"and if the model says so", nil, []string{"b c", "a b", "ab c"}, "abc", []uint32{'a', 256}},
		{"a pattern, and bytes after it", split(map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "b+"}, "behavior": "Isolated"}), nil, "é b", []uint32{0xC3, 0xA9, ' ', 'b'}},
		{"tokens that no text is made of", func(f map[string]any) {
			for r := range 50 {
				f["model"].(map[string]any)["vocab"].(map[string]int)[string(rune('日'+r))] = 2000 + r
			}
		}, nil, "\x00日", append([]uint32{0}, bytesOf("日")...)},
		{"a type that is not named", func(f map[string]any) { delete(f["model"].(map[string]any), "type") }, []string{"a b"}, "ab", []uint32{256}},
		{"composed", func(f map[string]any) { f["normalizer"] = map[string]any{"type": "NFC"} }, nil, "e\u0301", bytesOf("é")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := bpe.Parse(small(t, tc.edit, tc.merges...), nil, nil)
			require.NoError(t, err)
			ids, err := m.Encode(t.Context(), tc.text)
			require.NoError(t, err)
			require.Equal(t, tc.want, append([]uint32(nil), ids...))
		})
	}
}

// A vocabulary of characters with bytes as the fallback, as in Llama 2.
func TestEncodeCharacters(t *testing.T) {
	vocabulary := map[string]int{"<unk>": 7, "<0xC3>": 1, "<0xA9>": 2, "▁": 3, "a": 4, "▁a": 5, "日": 6, "\uFFFD": 10}
	file := map[string]any{
		"normalizer": map[string]any{"type": "Sequence", "normalizers": []any{
			map[string]any{"type": "Prepend", "prepend": "▁"}, map[string]any{"type": "Replace", "pattern": map[string]any{"String": " "}, "content": "▁"},
		}},
		"post_processor": map[string]any{"type": "TemplateProcessing", "single": []any{
			map[string]any{"SpecialToken": map[string]any{"id": "<s>"}}, map[string]any{"Sequence": map[string]any{"id": "A"}}, map[string]any{"SpecialToken": map[string]any{"id": "</s>"}},
		}, "special_tokens": map[string]any{"<s>": map[string]any{"ids": []int{8}}, "</s>": map[string]any{"ids": []int{9}}}},
		"model": map[string]any{"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocabulary, "merges": []string{"▁ a"}},
	}
	load := func(fields map[string]any) (*bpe.Model, error) {
		for name, v := range fields {
			file["model"].(map[string]any)[name] = v
		}
		text, err := json.Marshal(file)
		require.NoError(t, err)
		return bpe.Parse(text, nil, nil)
	}
	m, err := load(nil)
	require.NoError(t, err)
	for _, tc := range []struct {
		name   string
		fields map[string]any // fields that differ from the case before
		want   map[string][]uint32
	}{
		{"as it is", nil, map[string][]uint32{
			"":          {},
			"a":         {5},
			"a a":       {5, 5},
			"é日":        {3, 1, 2, 6},
			"xy":        {3, 7}, // unknown ones become one
			"xay":       {3, 7, 4, 7},
			"xyé":       {3, 1, 2, 7}, // and are written when they end
			"xéya":      {3, 1, 2, 7, 4},
			"è":         {3, 7}, // not all of its bytes exist
			"\uFFFD":    {3, 10},
			"a\xc3":     {5, 1}, // half a character
			"\xff\xffa": {3, 7, 4},
		}},
		{"each unknown one for itself", map[string]any{"fuse_unk": false}, map[string][]uint32{"xy": {3, 7, 7}, "xay": {3, 7, 4, 7}, "xéya": {3, 1, 2, 7, 7, 4}}},
		{"without bytes", map[string]any{"byte_fallback": false}, map[string][]uint32{"éa": {3, 7, 4}, "éé": {3, 7, 7}}},
		{"nothing for what is unknown", map[string]any{"unk_token": ""}, map[string][]uint32{"xéa": {5}, "x": {3}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := load(tc.fields)
			require.NoError(t, err)
			for s, want := range tc.want {
				ids, err := m.Encode(t.Context(), s)
				require.NoError(t, err)
				require.Equal(t, want, ids, s)
			}
		})
	}
	_, err = load(map[string]any{"unk_token": "<none>"})
	require.EqualError(t, err, `bpe: tokenizer.json: model.unk_token is "<none>", which is not in the vocabulary`)
	for body, want := range map[string][]uint32{
		`{"prompt":"a"}`: {8, 5, 9},
		`{"prompt":"a","add_special_tokens":false}`: {5},
	} {
		ids, err := m.Tokens(t.Context(), "/v1/completions", []byte(body))
		require.NoError(t, err)
		require.Equal(t, want, ids, body)
	}
}

// An unknown part of a file is refused, with its location.
func TestFilesThatAreNotKnown(t *testing.T) {
	for want, edit := range map[string]func(map[string]any){
		`model.type is "Unigram"`:      func(f map[string]any) { f["model"].(map[string]any)["type"] = "Unigram" },
		`model.dropout is 0.1`:         func(f map[string]any) { f["model"].(map[string]any)["dropout"] = 0.1 },
		`model marks the parts`:        func(f map[string]any) { f["model"].(map[string]any)["continuing_subword_prefix"] = "##" },
		`model.type is ""`:             func(f map[string]any) { delete(f["model"].(map[string]any), "type") },
		`["a"] is not a pair`:          func(f map[string]any) { f["model"].(map[string]any)["merges"] = []any{[]string{"a"}} },
		`[1,2] is not a pair`:          func(f map[string]any) { f["model"].(map[string]any)["merges"] = []any{[]int{1, 2}} },
		`cannot unmarshal number into`: func(f map[string]any) { f["model"].(map[string]any)["merges"] = []any{7} },
		`normalizer is a "NFKC"`: func(f map[string]any) {
			f["normalizer"] = map[string]any{"type": "Sequence", "normalizers": []any{map[string]any{"type": "NFKC"}, map[string]any{"type": "NFC"}}}
		},
		`pre_tokenizer is a "Whitespace"`: func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{map[string]any{"type": "Whitespace"}, map[string]any{"type": "ByteLevel"}}}
		},
		`post_processor is a "RobertaProcessing"`: func(f map[string]any) {
			f["post_processor"] = map[string]any{"type": "Sequence", "processors": []any{map[string]any{"type": "RobertaProcessing"}, map[string]any{"type": "ByteLevel"}}}
		},
		`model marks the parts of words`:       func(f map[string]any) { f["model"].(map[string]any)["end_of_word_suffix"] = "</w>" },
		`model.vocab is empty`:                 func(f map[string]any) { f["model"].(map[string]any)["vocab"] = map[string]any{} },
		`model.vocab has no token for byte 97`: func(f map[string]any) { delete(f["model"].(map[string]any)["vocab"].(map[string]int), "a") },
		`model.merges[0] ["x" "yz"] is of`:     func(f map[string]any) { f["model"].(map[string]any)["merges"] = []string{"x yz"} },
		`"xy" is not a pair`:                   func(f map[string]any) { f["model"].(map[string]any)["merges"] = []string{"xy"} },
		`normalizer is a "Lowercase"`:          func(f map[string]any) { f["normalizer"] = map[string]any{"type": "Lowercase"} },
		`normalizer replaces a regular`: func(f map[string]any) {
			f["normalizer"] = map[string]any{"type": "Replace", "pattern": map[string]any{"Regex": "x"}}
		},
		`pre_tokenizer is a "Metaspace"`: func(f map[string]any) { f["pre_tokenizer"] = map[string]any{"type": "Metaspace"} },
		`pre_tokenizer.behavior is "Contig`: func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "x"}, "behavior": "Contiguous"}
		},
		`has a pattern that can't be read`: func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "("}, "behavior": "Isolated"}
		},
		`add_prefix_space is true`: func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "ByteLevel", "add_prefix_space": true}
		},
		`post_processor is a "BertProcessing"`: func(f map[string]any) { f["post_processor"] = map[string]any{"type": "BertProcessing"} },
		`added_tokens[0].single_word is true`:  func(f map[string]any) { f["added_tokens"] = []any{map[string]any{"content": "x", "single_word": true}} },
	} {
		_, err := bpe.Parse(small(t, edit), nil, nil)
		var e *bpe.Error
		if strings.Contains(want, "pair") {
			require.ErrorContains(t, err, want)
			continue
		}
		require.ErrorAs(t, err, &e, want)
		require.ErrorContains(t, err, "bpe: tokenizer.json: ")
		require.ErrorContains(t, err, want)
	}
	_, err := bpe.Parse(small(t, nil), []byte(`{"chat_template":[{"name":"a","template":""},{"name":"b","template":""}]}`), nil)
	require.EqualError(t, err, "bpe: tokenizer_config.json: chat_template has 2 templates; only one is supported")
	_, err = bpe.Parse(small(t, nil), nil, []byte(`{% if %}`))
	require.ErrorContains(t, err, "bpe: chat_template.jinja: ")
	_, err = bpe.Parse([]byte("{"), nil, nil)
	require.ErrorContains(t, err, "bpe: tokenizer.json: ")
}

// chatTemplate has what most templates share, and what libraries get wrong.
const chatTemplate = `{{- bos_token }}
{%- if tools is defined and tools %}
    {{- '<|system|>\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\n' }}
        {%- for name, value in tool.function.parameters.properties.items() %}
            {{- name ~ '=' ~ value.type ~ ';' }}
        {%- endfor %}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(last='') %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('no such role') }}
    {%- endif %}
    {{- '<|' + message['role'] + '|>' + message['content'] | trim + '\n' }}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- call.function.name ~ call.function.arguments | tojson }}
        {%- endfor %}
    {%- endif %}
    {%- set ns.last = message.role %}
{%- endfor %}
{%- if date is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}
{%- if add_generation_prompt and ns.last != 'assistant' %}
    {{- '<|assistant|>' }}
{%- endif %}`

func TestChat(t *testing.T) {
	m, err := bpe.Parse(small(t, nil), []byte(`{"bos_token":{"content":"<|s|>"},"eos_token":null,"chat_template":"not this one"}`), []byte(chatTemplate))
	require.NoError(t, err)
	m.Clock = func() time.Time { return time.Date(2026, 2, 3, 23, 30, 0, 0, time.FixedZone("", -3600)) }
	tool := `{"function":{"parameters":{"type":"object","properties":{"z":{"type":"number"},"a":{"type":"string"}},"n":[1,2.0,1e-7,null,true,"<é'\"\u0001>"]},"name":"w","description":"d"},"type":"function"}`
	for _, tc := range []struct{ name, body, want string }{
		{"messages", `{"messages":[{"role":"system","content":" Be brief. "},{"role":"user","content":"Hi"}]}`, "<|s|><|system|>Be brief.\n<|user|>Hi\n<|assistant|>"},
		{"no prompt for the answer", `{"messages":[{"role":"user","content":"Hi"}],"add_generation_prompt":false}`, "<|s|><|user|>Hi\n"},
		{"parts", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, "<|s|><|user|>a\nb\n<|assistant|>"},
		{"no content", `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"w","arguments":"{\"z\":1, \"a\":[]}"}},{"function":{"name":"v","arguments":""}}]},{"role":"tool","content":"x","tool_call_id":"1"}]}`,
			"<|s|><|assistant|>\n" + `w{"z": 1, "a": []}v{}` + "<|tool|>x\n<|assistant|>"},
		{"tools in their own order", `{"messages":[{"role":"user","content":"Hi"}],"tools":[` + tool + `]}`,
			"<|s|><|system|>\n" + `{"type": "function", "function": {"name": "w", "description": "d", "parameters": {"type": "object", "properties": {"z": {"type": "number"}, "a": {"type": "string"}}, "n": [1, 2.0, 1e-07, null, true, "<é'\"\u0001>"]}}}` + "\nz=number;a=string;<|user|>Hi\n<|assistant|>"},
		{"arguments, and the date", `{"messages":[{"role":"assistant","content":"Hi"}],"chat_template_kwargs":{"date":1}}`, "<|s|><|assistant|>Hi\n04 Feb 2026"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text, err := m.Chat([]byte(tc.body))
			require.NoError(t, err)
			require.Equal(t, tc.want, text)
			ids, err := m.Tokens(t.Context(), "/v1/chat/completions", []byte(tc.body))
			require.NoError(t, err)
			require.Equal(t, append([]uint32{1000}, bytesOf(strings.TrimPrefix(tc.want, "<|s|>"))...), ids)
		})
	}
}

// A template that loops over parts gets parts, even for a plain string.
func TestChatWithParts(t *testing.T) {
	m, err := bpe.Parse(small(t, nil), nil, []byte(`{% for m in messages %}{% for p in m['content'] %}({{ p.text }}){% endfor %}{% endfor %}`))
	require.NoError(t, err)
	text, err := m.Chat([]byte(`{"messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}]}`))
	require.NoError(t, err)
	require.Equal(t, "(a)(b)(c)", text)
}

// A request is refused if it needs more than the files contain, or if engines treat it
// differently.
func TestRequestsThatAreRefused(t *testing.T) {
	m, err := bpe.Parse(small(t, nil), nil, []byte(chatTemplate))
	require.NoError(t, err)
	hi := `"messages":[{"role":"user","content":"Hi"}]`
	for _, body := range []string{
		``, `{`, `[]`, `{}`, `{"messages":[]}`, `{"messages":[7]}`, `{"messages":[{"role":"boss","content":"x"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, `{"messages":[{"role":"user","content":{}}]}`, `{"messages":[{"role":"user","content":"x","audio":{}}]}`,
		`{"messages":[{"role":"user","content":"x","mood":"good"}]}`, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"w","arguments":"no JSON"}}]}]}`,
		`{"messages":[{"role":"assistant","tool_calls":{}}]}`, `{"messages":[{"role":"assistant","tool_calls":[7]}]}`,
		`{` + hi + `,"chat_template":"x"}`, `{` + hi + `,"documents":[1]}`, `{` + hi + `,"functions":[1]}`, `{` + hi + `,"reasoning_effort":"low"}`, `{` + hi + `,"continue_final_message":true}`,
		`{` + hi + `,"add_special_tokens":true}`, `{` + hi + `,"tool_choice":"none"}`, `{` + hi + `,"truncate_prompt_tokens":5}`, `{` + hi + `,"tools":[{"type":"function","function":{"name":"w"}}]}`,
		`{` + hi + `,"tools":[{"type":"function","function":{"name":"w","description":"d","parameters":{},"strict":true}}]}`, `{` + hi + `,"tools":[7]}`, `{` + hi + `,"chat_template_kwargs":{"x":123456789012345678901234567890}}`,
	} {
		_, err := m.Tokens(t.Context(), "/v1/chat/completions", []byte(body))
		require.ErrorIs(t, err, tokens.ErrNoPrompt, body)
	}
	for path, body := range map[string]string{"/v1/embeddings": `{"input":"x"}`, "/v1/completions": `{"prompt":["a","b"]}`} {
		_, err := m.Tokens(t.Context(), path, []byte(body))
		require.ErrorIs(t, err, tokens.ErrNoPrompt, path)
	}
	without, err := bpe.Parse(small(t, nil), nil, nil)
	require.NoError(t, err)
	_, err = without.Tokens(t.Context(), "/v1/chat/completions", []byte(`{`+hi+`}`))
	require.ErrorIs(t, err, tokens.ErrNoPrompt)

	// Merging takes longest for one long word.
	_, err = m.Encode(t.Context(), strings.Repeat("a", 1<<20))
	require.ErrorIs(t, err, tokens.ErrNoPrompt)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = m.Encode(gone, "a")
	require.ErrorIs(t, err, context.Canceled)
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	_, err := bpe.Load(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	write := func(name string, text []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	write("tokenizer.json", small(t, nil))
	_, err = bpe.Load(dir)
	require.NoError(t, err)
	write("tokenizer_config.json", []byte(`{"chat_template":"A"}`))
	chat := func() string {
		m, err := bpe.Load(dir)
		require.NoError(t, err)
		text, err := m.Chat([]byte(`{"messages":[{"role":"user","content":"Hi"}]}`))
		require.NoError(t, err)
		return text
	}
	require.Equal(t, "A", chat())
	write("tokenizer_config.json", []byte(`{"chat_template":[{"name":"default","template":"B"}]}`))
	require.Equal(t, "B", chat())
	write("chat_template.jinja", []byte("C"))
	require.Equal(t, "C", chat())
}

// Any request yields ids or an error.
func FuzzTokens(f *testing.F) {
	text, err := os.ReadFile("testdata/tokenizer.json")
	require.NoError(f, err)
	m, err := bpe.Parse(text, nil, []byte(chatTemplate))
	require.NoError(f, err)
	for _, s := range []string{`{"messages":[{"role":"user","content":"Hi"}]}`, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"w","arguments":"{}"}}]}],"tools":[{"type":"function","function":{"name":"w","description":"d","parameters":{}}}]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		ids, err := m.Tokens(t.Context(), "/v1/chat/completions", []byte(body))
		if err != nil {
			require.ErrorIs(t, err, tokens.ErrNoPrompt)
		}
		for _, id := range ids {
			require.True(t, id < 256 || id >= 1000 && id <= 1002)
		}
	})
}

func fromFiles() (*tokens.Client, error) {
	model, err := bpe.Load("/models/Qwen3-32B") // tokenizer.json, tokenizer_config.json, chat_template.jinja
	if err != nil {
		return nil, err
	}
	return tokens.New(tokens.Config{Tokenizer: model})
}

var _ = fromFiles // in docs/kvevents.md

func Example() {
	model, err := bpe.Load("testdata") // a directory with a model's files
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := tokens.New(tokens.Config{Tokenizer: model, Within: time.Minute})
	if err != nil {
		panic(err)
	}
	ids, _ := client.Tokens(context.Background(), "/v1/chat/completions", []byte(`{"messages":[{"role":"user","content":"Hi"}]}`))
	fmt.Println(ids)
	// Output: [1000 72 105]
}
