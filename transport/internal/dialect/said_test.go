package dialect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Everything said in a conversation, in any API and any field, is in its blocks: two that differ in
// a word share no block from there on.
func TestWhatIsSaidIsHashed(t *testing.T) {
	tail := words("and so on")
	for _, tc := range []struct {
		kind   *api
		body   string // END marks what follows
		fields []string
	}{
		{chat, `{"messages":[ITEM,{"role":"user","content":"END"}]}`, []string{
			`{"role":"X","content":"a"}`, `{"role":"user","name":"X","content":"a"}`, `{"role":"user","content":"X"}`,
			`{"role":"user","content":[{"type":"text","text":"X"}]}`, `{"role":"user","content":[{"type":"image_url","image_url":{"url":"X"}}]}`,
			`{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"X","format":"wav"}}]}`,
			`{"role":"assistant","tool_calls":[{"id":"X","function":{"name":"f","arguments":"{}"}}]}`,
			`{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"X","arguments":"{}"}}]}`,
			`{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"a\":\"X\"}"}}]}`,
			`{"role":"tool","tool_call_id":"X","content":"a"}`,
		}},
		{chat, `{"tools":[ITEM],"messages":[{"role":"user","content":"END"}]}`, []string{`{"type":"function","function":{"name":"X"}}`, `"X"`}},
		{messages, `{"messages":[ITEM,{"role":"user","content":"END"}]}`, []string{
			`{"role":"X","content":"a"}`, `{"role":"user","content":"X"}`, `{"role":"user","content":[{"type":"text","text":"X"}]}`, `{"content":[{"text":"X"}],"role":"user"}`,
			`{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"X"}}]}`, `{"role":"user","content":[{"type":"image","source":{"type":"url","url":"X"}}]}`,
			`{"role":"user","content":[{"type":"image","source":{"type":"file","file_id":"X"}}]}`, `{"role":"user","content":[{"type":"document","source":{"content":"X"}}]}`,
			`{"role":"assistant","content":[{"type":"tool_use","id":"X","name":"f","input":{}}]}`, `{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"X","input":{}}]}`,
			`{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"a":"X"}}]}`,
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"X","content":"a"}]}`, `{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"X"}]}`,
			`{"role":"user","content":[{"content":[{"type":"text","text":"X"}],"type":"tool_result","tool_use_id":"a"}]}`,
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"X"}]},{"type":"text","text":"b"}]}`,
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"b"},{"type":"text","text":"X"}]}`, `{"role":"user","content":[{"type":"odd","thing":"X"}]}`,
		}},
		{messages, `{"system":ITEM,"messages":[{"role":"user","content":"END"}]}`, []string{`"X"`, `[{"type":"text","text":"X"}]`}},
		{messages, `{"tools":[ITEM],"messages":[{"role":"user","content":"END"}]}`, []string{`{"name":"X"}`, `{"name":"f","input_schema":{"a":"X"}}`}},
		{responses, `{"input":[ITEM,{"role":"user","content":"END"}]}`, []string{
			`{"role":"X","content":"a"}`, `{"role":"user","content":"X"}`, `{"type":"message","role":"user","content":[{"type":"input_text","text":"X"}]}`,
			`{"role":"user","content":[{"type":"input_image","image_url":"X"}]}`, `{"role":"user","content":[{"type":"input_file","file_id":"X"}]}`,
			`{"role":"user","content":[{"type":"input_file","file_data":"X"}]}`, `{"role":"assistant","content":[{"type":"refusal","refusal":"X"}]}`,
			`{"type":"function_call","call_id":"X","name":"f","arguments":"{}"}`, `{"type":"function_call","call_id":"a","name":"X","arguments":"{}"}`,
			`{"type":"function_call","call_id":"a","name":"f","arguments":"{\"a\":\"X\"}"}`, `{"type":"custom_tool_call","call_id":"a","name":"f","input":"X"}`,
			`{"type":"function_call_output","call_id":"X","output":"a"}`, `{"type":"function_call_output","call_id":"a","output":"X"}`,
			`{"type":"custom_tool_call_output","call_id":"a","output":[{"type":"input_text","text":"X"}]}`, `{"type":"odd_call","thing":"X"}`,
		}},
		{responses, `{"instructions":ITEM,"input":"END"}`, []string{`"X"`}},
		{responses, `{"tools":[ITEM],"input":[{"role":"user","content":"END"}]}`, []string{`{"type":"function","name":"X"}`}},
		{responses, `{"input":ITEM}`, []string{`"XEND"`}},
		{completion, `{"prompt":ITEM}`, []string{`"XEND"`, `["XEND"]`}},
		{infill, `{"input_extra":[{"filename":"f","text":ITEM}],"input_prefix":"a","input_suffix":"END"}`, []string{`"X"`}},
		{infill, `{"input_extra":[{"filename":ITEM,"text":"a"}],"input_prefix":"a","input_suffix":"END"}`, []string{`"X"`}},
		{infill, `{"input_prefix":ITEM,"prompt":"a","input_suffix":"END"}`, []string{`"X"`}},
		{infill, `{"input_prefix":"a","prompt":ITEM,"input_suffix":"END"}`, []string{`"X"`}},
	} {
		for _, field := range tc.fields {
			with := func(word string) []uint64 {
				return blocksOf(t, tc.kind, strings.ReplaceAll(strings.ReplaceAll(strings.Replace(tc.body, "ITEM", field, 1), "X", word), "END", tail))
			}
			one, other := with("this"), with("that")
			if assert.Greater(t, min(len(one), len(other)), 1, "%s in %s", field, tc.body) {
				assert.NotEqual(t, one[1], other[1], "%s in %s", field, tc.body)
				assert.Equal(t, one, with("this"))
			}
		}
	}
}
