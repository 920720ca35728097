package dialect

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// naive reads a request as the reader does, but builds all of it with
// encoding/json.
type naive struct {
	api     *api
	model   string
	stream  bool
	refused bool

	h       prefix.Hasher // of a conversation
	media   int
	prompts []naivePrompt
}

// naivePrompt is a text, or a list of token ids.
type naivePrompt struct {
	text   string
	ids    []uint32
	isText bool
}

func naively(kind *api, body []byte) (n naive) {
	n.api = other
	n.h.Reset(promptSeed, nil)
	top, ok := object(body)
	if !ok {
		return n
	}
	if v := top["model"]; present(v) {
		if n.model, ok = str(v); !ok || len(n.model) > maxName {
			return naive{refused: true}
		}
	}
	switch kind {
	case chat, messages, responses:
		list := top["messages"]
		system := top["system"]
		if kind == responses {
			list, system = top["input"], top["instructions"]
		}
		n.tools(top["tools"])
		if present(system) && kind != chat {
			n.content(prefix.Message{Role: "system"}, system)
		}
		_, isText := str(list)
		if isText {
			n.content(prefix.Message{Role: "user"}, list)
		}
		all, _ := array(list)
		for _, m := range all {
			n.message(m)
		}
		ok = isText || len(all) > 0
	case completion, native:
		ok = n.prompt(top["prompt"])
	}
	if ok && kind != other {
		n.api = kind
		n.stream = string(top["stream"]) == "true"
	}
	return n
}

// message reads a message, or an item.
func (n *naive) message(v json.RawMessage) {
	f, ok := object(v)
	if !ok {
		return
	}
	id, _ := str(f["call_id"])
	switch kind, _ := str(f["type"]); kind {
	case "", "message":
		var m prefix.Message
		m.Role, _ = str(f["role"])
		m.Name, _ = str(f["name"])
		m.ToolCallID, _ = str(f["tool_call_id"])
		m.ToolCallID = cmp.Or(m.ToolCallID, id)
		calls, _ := array(f["tool_calls"])
		for _, c := range calls {
			call, _ := object(c)
			function, _ := object(call["function"])
			m.ToolCalls = append(m.ToolCalls, toolCall(call["id"], function["name"], function["arguments"]))
		}
		content, ok := f["content"]
		if !ok {
			content = f["text"]
		}
		n.content(m, content)
	case "function_call":
		n.add(prefix.Message{Role: "assistant", ToolCalls: []prefix.ToolCall{toolCall(f["call_id"], f["name"], f["arguments"])}})
	case "function_call_output":
		n.content(prefix.Message{Role: "tool", ToolCallID: id}, f["output"])
	case "reasoning":
	default:
		n.add(prefix.Message{Role: kind, Parts: []prefix.Part{{Content: string(v)}}})
	}
}

func toolCall(id, name, arguments json.RawMessage) (t prefix.ToolCall) {
	t.ID, _ = str(id)
	t.Name, _ = str(name)
	var ok bool
	if t.Arguments, ok = str(arguments); !ok {
		t.Arguments = string(arguments)
	}
	return t
}

// content adds a message with this content, in which there may be calls of tools, and results.
func (n *naive) content(m prefix.Message, content json.RawMessage) {
	if s, ok := str(content); ok {
		m.Parts = []prefix.Part{{Content: written(s)}}
	}
	list, _ := array(content)
	results := false
	for _, v := range list {
		b, _ := object(v)
		switch kind, _ := str(b["type"]); kind {
		case "tool_use":
			m.ToolCalls = append(m.ToolCalls, toolCall(b["id"], b["name"], b["input"]))
		case "tool_result":
			if len(m.Parts)+len(m.ToolCalls) > 0 {
				n.add(m)
				m.Parts, m.ToolCalls = nil, nil
			}
			id, _ := str(b["tool_use_id"])
			n.content(prefix.Message{Role: "tool", ToolCallID: id}, b["content"])
			results = true
		case "thinking":
		default:
			m.Parts = append(m.Parts, onePart(v))
		}
	}
	if !results || len(m.Parts)+len(m.ToolCalls) > 0 {
		n.add(m)
	}
}

func onePart(v json.RawMessage) prefix.Part {
	if s, ok := str(v); ok {
		return prefix.Part{Content: written(s)}
	}
	b, _ := object(v)
	kind, _ := str(b["type"])
	s, _ := str(b["text"])
	if _, isText := b["text"]; kind == "" || kind == "text" || isText {
		return prefix.Part{Content: written(s)}
	}
	i := slices.IndexFunc([]string{kind, "source", "image_url"}, func(key string) bool { return present(b[key]) })
	if i < 0 {
		return prefix.Part{Content: string(v)}
	}
	data := b[[]string{kind, "source", "image_url"}[i]]
	fields, _ := object(data)
	for _, v := range []json.RawMessage{fields["data"], fields["url"], fields["file_id"], data} {
		if s, ok := str(v); ok {
			return prefix.Part{Type: kind, Content: s}
		}
	}
	return prefix.Part{Type: kind, Content: string(data)}
}

func (n *naive) add(m prefix.Message) {
	if len(m.ToolCalls) > 0 && len(m.Parts) == 1 && m.Parts[0] == (prefix.Part{}) {
		m.Parts = nil
	}
	for _, p := range m.Parts {
		if p.Type != "" {
			n.media++
		}
	}
	n.h.WriteMessage(&m)
}

func (n *naive) tools(v json.RawMessage) {
	tools, _ := array(v)
	for _, tool := range tools {
		n.h.WriteTool(string(tool))
	}
}

func (n *naive) prompt(v json.RawMessage) bool {
	list, _ := array(v)
	if len(list) == 0 || isNumber(list[0][0]) {
		list = []json.RawMessage{v}
	}
	if slices.ContainsFunc(list, func(v json.RawMessage) bool { return !n.onePrompt(v) }) {
		return false
	}
	texts, ids := 0, 0
	for _, p := range n.prompts {
		texts, ids = texts+len(p.text), ids+len(p.ids)
	}
	return texts == 0 || ids == 0
}

func (n *naive) onePrompt(v json.RawMessage) (ok bool) {
	var p naivePrompt
	text := v
	if o, ok := object(v); ok {
		media, _ := array(o["multimodal_data"])
		n.media += len(media)
		text = o["prompt_string"]
	}
	if p.text, p.isText = str(text); p.isText {
		p.text = written(p.text)
	} else {
		elements, _ := array(v)
		for _, e := range elements {
			id, ok := count(e)
			if !ok {
				return false
			}
			p.ids = append(p.ids, uint32(id))
		}
		if len(elements) == 0 {
			return false
		}
	}
	n.prompts = append(n.prompts, p)
	return true
}

func object(v []byte) (fields map[string]json.RawMessage, ok bool) {
	return fields, json.Unmarshal(v, &fields) == nil && fields != nil
}

func array(v []byte) (elements []json.RawMessage, ok bool) {
	return elements, json.Unmarshal(v, &elements) == nil && elements != nil
}

func str(v []byte) (s string, ok bool) {
	var p *string
	if json.Unmarshal(v, &p) != nil || p == nil {
		return "", false
	}
	return *p, true
}

// written is a text as JSON writes it, with no more escapes than necessary.
var written = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\b", `\b`, "\f", `\f`, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace

// agree checks the reader against the naive one.
func agree(t require.TestingT, kind *api, body []byte, u understood, err error) {
	n := naively(kind, body)
	if n.refused {
		require.ErrorAs(t, err, new(*endpick.RequestError))
		return
	}
	_, ok := object(body)
	if !ok && kind != other {
		require.Equal(t, ErrMalformed, err)
		return
	}
	require.NoError(t, err)
	require.Equal(t, []any{n.api, n.model, n.stream}, []any{u.api, u.model, u.stream})
	var want endpick.Request
	learn := 0
	switch {
	case n.api == other:
		want.InputTokens = max(toTokens(len(body), tokensPerByte), 1)
	case n.prompts == nil:
		want.Blocks, learn = n.h.Blocks(), n.h.Len()
		want.InputTokens = max(toTokens(learn, tokensPerByte)+n.media*mediaTokens, 1)
		want.BlockTokens = 16
	default:
		ids := 0
		for _, p := range n.prompts {
			learn, ids = learn+len(p.text), ids+len(p.ids)
		}
		want.InputTokens, want.BlockTokens = ids, 16
		if ids == 0 {
			want.InputTokens = max(toTokens(learn, tokensPerByte)+n.media*mediaTokens, 1)
		}
		if first := n.prompts[0]; first.isText {
			want.Blocks = prefix.AppendText(nil, promptSeed, first.text)
		} else {
			want.Blocks = prefix.AppendTokens(nil, promptSeed, first.ids)
		}
		require.Equal(t, len(n.prompts), u.prompts)
	}
	if n.media > 0 {
		learn = 0
	}
	require.Equal(t, append([]uint64{}, want.Blocks...), append([]uint64{}, u.req.Blocks...), "%s", body)
	require.Equal(t, []any{want.InputTokens, want.BlockTokens, learn}, []any{u.req.InputTokens, u.req.BlockTokens, u.learn}, "%s", body)
}

// filler is a last message that fills blocks of its own: only full blocks are
// hashed, so everything before it is in one.
var filler = `{"content":"` + strings.Repeat("x", 2*prefix.BlockBytes) + `"}`

// drawn writes JSON that is mostly, but not always, a valid request.
type drawn struct {
	*rapid.T
	b strings.Builder
}

func (d *drawn) one(of ...string) string { return rapid.SampledFrom(of).Draw(d.T, "") }

// often is true three times in four.
func (d *drawn) often() bool { return rapid.IntRange(0, 3).Draw(d.T, "") > 0 }

func (d *drawn) put(s string) { d.b.WriteString(s) }

func (d *drawn) space() { d.put(d.one("", "", "", " ", "\n\t ")) }

func (d *drawn) str() {
	d.put(`"`)
	for range rapid.IntRange(0, 4).Draw(d.T, "") {
		d.put(d.one("a", "é", `\n`, `\"`, `\\`, `\u0061`, `\ud83d\ude00`, `\ud83d`, `\/`, "{", "]", `\u0000`, strings.Repeat("long text ", 9), strings.Repeat(`\t`, 40)))
	}
	d.put(`"`)
}

func (d *drawn) list(element func()) {
	d.put("[")
	for i := range rapid.IntRange(0, 3).Draw(d.T, "") {
		if i > 0 {
			d.put(",")
		}
		d.space()
		element()
		d.space()
	}
	d.put("]")
}

// object writes some of the members, in any order and perhaps twice; a nil value
// is a string.
func (d *drawn) object(values map[string]func(), names ...string) {
	d.put("{")
	for i := range rapid.IntRange(0, 5).Draw(d.T, "") {
		if i > 0 {
			d.put(",")
		}
		d.space()
		name := d.one(names...)
		key := name
		if !d.often() {
			key = strings.NewReplacer("e", `\u0065`, "t", `\u0074`).Replace(name)
		}
		d.put(`"` + key + `"`)
		d.space()
		d.put(":")
		d.space()
		switch value := values[name]; {
		case !d.often():
			d.anything(2)
		case value == nil:
			d.str()
		default:
			value()
		}
		d.space()
	}
	d.put("}")
}

func (d *drawn) anything(depth int) {
	kinds := 5
	if depth == 0 {
		kinds = 4
	}
	switch rapid.IntRange(0, kinds).Draw(d.T, "") {
	case 0:
		d.str()
	case 1:
		d.put(d.one("0", "1", "17", "-1", "1.0", "1.5", "1e3", "2147483648"))
	case 2, 3:
		d.put(d.one("null", "true", "false"))
	case 4:
		d.list(func() { d.anything(depth - 1) })
	case 5:
		d.object(nil, "type", "text", "url", "a", "")
	}
}

func (d *drawn) ids() {
	d.list(func() { d.put(d.one("1", "1", "1", "1", "1", "1", "2.0", "70000", "0", "-1")) })
}

func (d *drawn) call() {
	d.object(map[string]func(){
		"function": func() {
			d.object(map[string]func(){"arguments": func() { d.put(`"{\"b\":1,\"a\":[ 2]}"`) }}, "name", "arguments", "x")
		},
	}, "id", "type", "function")
}

func (d *drawn) message() {
	d.object(map[string]func(){
		"content":    func() { d.list(d.block) },
		"tool_calls": func() { d.list(d.call) },
	}, "role", "name", "content", "content", "tool_calls", "tool_call_id", "x")
}

// shaped is an object with its type and most of its members; a nil value is a
// string.
func (d *drawn) shaped(kind string, names []string, values ...func()) {
	d.put(`{"type":"` + kind + `"`)
	for i, name := range rapid.Permutation(names).Draw(d.T, "") {
		if !d.often() {
			continue
		}
		d.put(`,"` + name + `":`)
		if i = slices.Index(names, name); i < len(values) && values[i] != nil {
			values[i]()
		} else {
			d.str()
		}
	}
	d.put("}")
}

func (d *drawn) block() {
	source := func() { d.shaped("base64", []string{"data", "url", "file_id"}) }
	switch rapid.IntRange(0, 6).Draw(d.T, "") {
	case 0:
		d.object(map[string]func(){"source": source, "content": func() { d.list(d.block) }}, "type", "text", "source", "input", "content", "id", "name", "tool_use_id")
	case 1:
		address := func() { d.object(nil, "url", "detail") }
		d.shaped(d.one("image", "image_url", "b"), []string{"source", "image_url", "b", "text"}, source, address)
	case 2:
		d.shaped("tool_use", []string{"input", "id", "name"}, func() { d.anything(2) })
	case 3:
		d.shaped("tool_result", []string{"content", "tool_use_id"}, func() { d.list(d.block) })
	case 4:
		d.shaped("thinking", []string{"thinking", "text"})
	default:
		d.shaped("text", []string{"text"})
	}
}

func (d *drawn) item() {
	parts := func() {
		d.list(func() {
			d.shaped(d.one("input_text", "output_text", "input_image"), []string{d.one("text", "image_url"), "x"})
		})
	}
	switch rapid.IntRange(0, 5).Draw(d.T, "") {
	case 0:
		d.object(map[string]func(){"content": parts, "output": parts}, "type", "role", "content", "content", "name", "call_id", "arguments", "output")
	case 1:
		d.shaped("function_call", []string{"call_id", "name", "arguments", "id"})
	case 2:
		d.shaped("function_call_output", []string{"output", "call_id"}, d.variant(parts, d.str))
	case 3:
		d.shaped(d.one("reasoning", "web_search_call"), []string{"id", "content"})
	default:
		d.shaped("message", []string{"content", "role"}, d.variant(parts, d.str))
	}
}

func (d *drawn) variant(of ...func()) func() { return rapid.SampledFrom(of).Draw(d.T, "") }

func (d *drawn) request(kind *api) []byte {
	prompts := []func(){d.str, d.ids, func() { d.list(d.ids) }, func() { d.list(d.str) }}
	names := []string{"model", "messages", "messages", "messages", "stream", "tools", "x"}
	message := d.message
	switch kind {
	case messages:
		names = []string{"model", "messages", "messages", "messages", "messages", "messages", "system", "stream", "tools"}
		message = func() { d.shaped("", []string{"content", "role"}, d.variant(func() { d.list(d.block) }, d.str)) }
	case responses:
		names = []string{"model", "input", "input", "input", "input", "input", "instructions", "stream", "tools"}
		message = d.item
	case completion:
		names = []string{"model", "prompt", "prompt", "stream", "n", "x"}
	}
	filled := func() {
		d.list(message)
		if s := d.b.String(); strings.HasSuffix(s, "}]") {
			d.b.Reset()
			d.put(s[:len(s)-1] + "," + filler + "]")
		}
	}
	d.space()
	d.object(map[string]func(){
		"stream":   func() { d.put(d.one("true", "false")) },
		"messages": filled, "input": filled,
		"system": func() { d.list(d.block) }, "instructions": d.str,
		"tools":  func() { d.list(func() { d.anything(2) }) },
		"prompt": func() { rapid.SampledFrom(prompts).Draw(d.T, "")() },
		"n":      func() { d.put("2") },
	}, names...)
	d.space()
	return []byte(d.b.String())
}

var readKinds = []*api{chat, completion, messages, responses, other}

func readsAsOthersDo(kind *api) func(*rapid.T) {
	return func(t *rapid.T) {
		body := (&drawn{T: t}).request(kind)
		u, err := tryToUnderstand(kind, body, manyItems)
		agree(t, kind, body, u, err)
	}
}

func TestReaderReadsAsOthersDo(t *testing.T) {
	for _, kind := range readKinds {
		rapid.Check(t, readsAsOthersDo(kind))
		rapid.Check(t, readsAsOthersDo(kind))
	}
}

func FuzzReaderReadsAsOthersDo(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { readsAsOthersDo(rapid.SampledFrom(readKinds).Draw(t, "kind"))(t) }))
}

// For every valid body of a chat or completion, the reader finds what the naive one finds, and the body
// sent instead differs in stream_options only. No body of any API causes a panic, or figures that can't be.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","prompt":"x","stream":true}`, `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":false,"x":1}}`,
		`{"prompt":[1,2,3],"n":2,"max_tokens":7}`, `{"prompt":[[1],[2]]}`, `{"prompt":["a","b"]}`, `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"u"}}]}]}`,
		`{"mod\u0065l":"\ud83d\ude00","prompt":""}`, `{"model":"a","model":"b"`, `[]`, ``, `{"messages":[{"tool_calls":[{"function":{}}],"role":7}],"tools":[{}]}`,
		aMessage, `{"system":[{"type":"text","text":"a","cache_control":{}}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"image","source":{"data":"x"}}]}]}]}`,
		`{"input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"x"},{"content":[{"type":"input_image","image_url":"u"}]}],"instructions":"a"}`,
		`{"input":["a","b"]}`, `{"query":"q","documents":["a",{"text":"b"}]}`, `{"input_ids":[[1],[2]],"sampling_params":{"n":2}}`, `{"messages":[{}],"tools":[{"cache_control":1}]}`,
		`{"input":[],"messages":[[]]}`, `{"input":[ `, `{"text_1":[],"text_2":7}`,
		`{"messages":[{"content":[{"b":1,"type":"b"},{"type":"a","a":1,"type":"b","b":"x"}]}]}`, `{"prompt":["",""]}`, `{"prompt":[1,"a"]}`, `{"prompt":[["a",1],"b"]}`, `{"prompt":[{"prompt_string":"a","multimodal_data":["x"]}]}`, `{"prompt":[[],[1]]}`, `{"model":7}`,
	} {
		for kind := range apis {
			f.Add(uint8(kind), []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		kind := apis[int(which)%len(apis)]
		u, err := tryToUnderstand(kind, b, manyItems)
		if err != nil {
			require.ErrorAs(t, err, new(*endpick.RequestError))
		} else if u.req.InputTokens < 1 || u.learn < 0 || u.req.ExpectedOutputTokens < 0 || len(u.req.Blocks) > len(b) {
			t.Fatalf("%q: %+v", b, u.req)
		}
		if !json.Valid(b) || !utf8.Valid(b) || u.failed != nil {
			return
		}
		if kind == chat || kind == completion {
			agree(t, kind, b, u, err)
		}
		if err != nil {
			return
		}
		pieces, hide := u.askForUsage()
		if !hide {
			require.Equal(t, string(b), joined(pieces))
			return
		}
		twin, _ := object(b)
		sent, ok := object([]byte(joined(pieces)))
		require.True(t, ok, "%s", joined(pieces))
		var options map[string]any
		require.NoError(t, json.Unmarshal(sent["stream_options"], &options))
		require.Equal(t, true, options["include_usage"])
		delete(sent, "stream_options")
		delete(twin, "stream_options")
		require.Equal(t, twin, sent)
	})
}
