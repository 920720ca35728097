package rig

import (
	"bytes"
	"strings"
)

// Body is one of any length that is meant to cost a gateway more than its length suggests: Head, as many Items as there is room for, with
// Comma between them, and Tail.
type Body struct {
	Path string // of its API
	Head string
	// Each zero byte in Item is replaced by a letter that differs from one item to the
	// next, so that keys can differ, in any order.
	Item, Tail, Comma string
}

// Bytes returns one of at most size bytes, unless Head and Tail are longer.
func (s Body) Bytes(size int) []byte {
	n := max(size-len(s.Head)-len(s.Tail), 0) / max(len(s.Item)+len(s.Comma), 1)
	if strings.IndexByte(s.Item, 0) < 0 {
		return []byte(s.Head + strings.TrimSuffix(strings.Repeat(s.Item+s.Comma, n), s.Comma) + s.Tail)
	}
	b := append(make([]byte, 0, size), s.Head...)
	state := uint32(1)
	for i := range n {
		if i > 0 {
			b = append(b, s.Comma...)
		}
		from := len(b)
		b = append(b, s.Item...)
		for item := b[from:]; ; {
			at := bytes.IndexByte(item, 0)
			if at < 0 {
				break
			}
			state = state*1664525 + 1013904223
			item[at] = 'a' + byte(state>>24)%26
		}
	}
	return append(b, s.Tail...)
}

const (
	chat       = "/v1/chat/completions"
	messages   = "/v1/messages"
	responses  = "/v1/responses"
	ranking    = "/v1/rerank"
	completion = "/v1/completions"
	native     = "/completion"
	infill     = "/infill"

	chatHead = `{"model":"m","stream":true,"messages":`
	userHead = chatHead + `[{"role":"user","content":`
)

// Flat is what most bodies look like: one long text.
var Flat = Body{chat, userHead + `"`, "All work and no play makes Jack a dull boy. ", `"}]}`, ""}

// Bodies are the hand-written ones, by name.
func Bodies() map[string]Body {
	return map[string]Body{
		"messages that are none":    {chat, chatHead + `[`, `1`, `]}`, ","},
		"empty messages":            {chat, chatHead + `[`, `{}`, `]}`, ","},
		"short messages":            {chat, chatHead + `[`, `{"role":"user","content":"x"}`, `]}`, ","},
		"parts that are none":       {chat, userHead + `[`, `1`, `]}]}`, ","},
		"short parts":               {chat, userHead + `[`, `{"type":"text","text":"x"}`, `]}]}`, ","},
		"small pictures":            {chat, userHead + `[`, `{"p":{"url":"x"},"type":"p"}`, `]}]}`, ","},
		"one part of many members":  {chat, userHead + `[{`, `"type":"a","a":1`, `}]}]}`, ","},
		"tool calls":                {chat, chatHead + `[{"role":"assistant","tool_calls":[`, `{"function":{"arguments":"{}"}}`, `]}]}`, ","},
		"tools that are none":       {chat, userHead + `"x"}],"tools":[`, `1`, `]}`, ","},
		"small tools":               {chat, userHead + `"x"}],"tools":[`, `{"b":1,"a":2}`, `]}`, ","},
		"one tool of many members":  {chat, userHead + `"x"}],"tools":[{`, `"b":1,"a":2`, `}]}`, ","},
		"arguments of many members": {chat, chatHead + `[{"tool_calls":[{"function":{"arguments":"{`, `\"b\":1,\"a\":2`, `}"}}]}]}`, ","},
		"members":                   {chat, userHead + `"x"}],`, `"a":1`, `}`, ","},
		"escaped members":           {chat, userHead + `"x"}],`, `"\u0061":1`, `}`, ","},
		"messages again and again":  {chat, `{"model":"m",`, `"messages":[{}]`, `}`, ","},
		"one long key":              {chat, `{"model":"m","`, `\u0061`, `":1,"messages":[{}]}`, ""},
		"options":                   {chat, userHead + `"x"}],"stream_options":{`, `"a":1`, `}}`, ","},
		"open brackets":             {chat, chatHead, `[`, ``, ""},
		"brackets in a string":      {chat, userHead + `"`, `[{`, `"}]}`, ""},
		"lists in a list":           {chat, chatHead + `[`, `[]`, `]}`, ","},
		"white space":               {chat, chatHead, ` `, `[{"role":"user","content":"x"}]}`, ""},
		"escapes":                   {chat, userHead + `"`, `\n`, `"}]}`, ""},
		"escaped letters":           {chat, userHead + `"`, `\u0061`, `"}]}`, ""},
		"escaped halves of letters": {chat, userHead + `"`, `\ud83d`, `"}]}`, ""},
		"quotes":                    {chat, userHead + `"`, `x\"`, `"}]}`, ""},
		"bytes of no letter":        {chat, userHead + `"`, "\xff", `"}]}`, ""},
		"a string without end":      {chat, userHead + `"`, `\"`, ``, ""},
		"content blocks":            {messages, `{"messages":[{"role":"user","content":[`, `{"type":"text","text":"x"}`, `]}]}`, ","},
		"empty blocks":              {messages, `{"messages":[{"content":[`, `{}`, `]}]}`, ","},
		"results of tools":          {messages, `{"messages":[{"content":[`, `{"type":"tool_result","content":[{}]}`, `]}]}`, ","},
		"blocks in a result":        {messages, `{"messages":[{"content":[{"type":"tool_result","content":[`, `{"type":"image"}`, `]}]}]}`, ","},
		"results in results":        {messages, `{"messages":[{"content":[`, `{"type":"tool_result","content":[`, `]}]}`, ""},
		"marks of caching":          {messages, `{"messages":[{}],"tools":[{`, `"cache_control":1`, `}]}`, ","},
		"items":                     {responses, `{"input":[`, `{"role":"user","content":"x"}`, `]}`, ","},
		"empty items":               {responses, `{"input":[`, `{}`, `]}`, ","},
		"items of another kind":     {responses, `{"input":[`, `{"type":"x"}`, `]}`, ","},
		"parts of an item":          {responses, `{"input":[{"content":[`, `{"type":"x"}`, `]}]}`, ","},
		"documents":                 {ranking, `{"query":"x","documents":[`, `{"text":"x"}`, `]}`, ","},
		"documents of another kind": {ranking, `{"query":"x","documents":[`, `1`, `]}`, ","},
		"token ids":                 {completion, `{"prompt":[`, `1`, `]}`, ","},
		"lists of token ids":        {completion, `{"prompt":[`, `[1]`, `]}`, ","},
		"texts":                     {completion, `{"prompt":[`, `"x"`, `]}`, ","},
		"empty texts":               {completion, `{"prompt":[`, `""`, `]}`, ","},
		"texts that are none":       {completion, `{"prompt":["x",`, `1`, `]}`, ","},
		"ids and texts":             {native, `{"prompt":["x"`, `,1`, `]}`, ""},
		"mixed prompts":             {native, `{"prompt":[`, `["x",1]`, `]}`, ","},
		"prompts in objects":        {native, `{"prompt":[`, `{"prompt_string":"x"}`, `]}`, ","},
		"media":                     {native, `{"prompt":{"prompt_string":"x","multimodal_data":[`, `1`, `]}}`, ","},
		"files of code":             {infill, `{"input_prefix":"","input_suffix":"","input_extra":[`, `{"text":"x"}`, `]}`, ","},
		"commas":                    {completion, `{"prompt":[1`, `,`, `]}`, ""},
		"members of many names":     {chat, userHead + `"x"}],"tools":[{`, "\"\x00\x00\x00\x00\":1", `}]}`, ","},
	}
}
