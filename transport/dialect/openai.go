package dialect

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// This file is what is particular to OpenAI's API: its paths, and where in a
// request the prompt is.

// mediaTokens is what an image, or another part that is no text, is taken to
// cost: about an image of 900 × 900 pixels in patches of 28 × 28.
const mediaTokens = 1024

// api is what kind of request it is.
type api uint8

const (
	other api = iota // passed on without being understood
	chat
	completion
)

// apiOf tells from method and path; a gateway may have put something before
// the path.
func apiOf(method, path string) api {
	switch {
	case method != http.MethodPost:
		return other
	case strings.HasSuffix(path, "/chat/completions"):
		return chat
	case strings.HasSuffix(path, "/completions"):
		return completion
	}
	return other
}

// readPrompt fills in the length and the blocks of the prompt, as far as the host
// has not done so, and returns the bytes of text from which the length was
// guessed: 0 if it is exact, or includes more than text. A body that turns out to
// have no prompt becomes one of another API. The error is that of ctx, or an
// [endpick.RequestError].
func (c *call) readPrompt(ctx context.Context, req *endpick.Request, scope prefix.Scope, learned rates) (int, error) {
	p := promptReader{ctx: ctx, call: c, known: req.InputTokens > 0 || len(req.Blocks) > 0, seed: scope.Seed()}
	switch {
	case c.api == chat && !p.known:
		p.readChat()
	case c.api == completion:
		if !p.readCompletion() {
			c.api, c.stream = other, false
		}
	}
	if c.failed == malformed {
		c.failed = noFault // read as far as it goes; the engine will refuse it
	}
	if err := c.refused(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if req.ExpectedOutputTokens == 0 {
		req.ExpectedOutputTokens = c.expectedOutput(learned)
	}
	perByte := learned.prompt()
	switch {
	case p.known:
		return 0, nil
	case c.api == other:
		// Without blocks no endpoint looks nearer than another; a length keeps
		// policies that weigh tokens from taking the request for free.
		req.InputTokens = max(toTokens(len(c.body), perByte), 1)
		return 0, nil
	case p.tokens > 0:
		req.InputTokens, req.Blocks, req.BlockTokens = p.tokens, p.blocks, prefix.BlockTokens
		return 0, nil
	}
	req.InputTokens = max(toTokens(p.size, perByte)+p.media*mediaTokens, 1)
	req.Blocks, req.BlockTokens = p.blocks, prefix.BlockBytes*perByte
	if p.media > 0 {
		return 0, nil
	}
	return p.size, nil
}

// promptReader hashes a prompt while it reads it: never more than one message of
// it is in memory.
type promptReader struct {
	ctx context.Context
	*call
	known bool // to the host: nothing needs hashing
	seed  prefix.Seed

	blocks []uint64
	size   int // bytes of text
	tokens int // where the client gives token ids
	media  int // parts that are no text
}

// goOn reports whether there is still somebody to read for.
func (p *promptReader) goOn() bool { return p.ctx.Err() == nil }

func (p *promptReader) readChat() {
	var h prefix.Hasher
	const room = 1 << 10
	h.Reset(p.seed, make([]uint64, 0, min(len(p.messages)/prefix.BlockBytes+1, room)))
	if c := p.cursor(p.tools); c.open('[') {
		for c.element() && p.goOn() {
			v := c.value()
			if isString(v) {
				v = stringBytes(v)
			}
			h.WriteTool(viewString(v))
		}
	}
	c := p.cursor(p.messages)
	c.open('[')
	var m prefix.Message
	for c.element() && p.goOn() {
		p.readMessage(&c, &m)
		h.WriteMessage(&m)
	}
	p.blocks, p.size = h.Blocks(), h.Len()
}

func (p *promptReader) readMessage(c *cursor, m *prefix.Message) {
	*m = prefix.Message{Parts: m.Parts[:0], ToolCalls: m.ToolCalls[:0]}
	if !c.open('{') {
		c.value()
		return
	}
	for c.member() {
		switch string(c.key) {
		case "role":
			m.Role = c.text()
		case "name":
			m.Name = c.text()
		case "tool_call_id":
			m.ToolCallID = c.text()
		case "content":
			m.Parts = readParts(c, m.Parts[:0])
		case "tool_calls":
			m.ToolCalls = readToolCalls(c, m.ToolCalls[:0])
		default:
			c.value()
		}
	}
	for i := range m.Parts {
		if m.Parts[i].Type != "" {
			p.media++
		}
	}
}

func readParts(c *cursor, parts []prefix.Part) []prefix.Part {
	if !c.open('[') {
		if v := c.value(); isString(v) {
			parts = append(parts, prefix.Part{Content: text(v)})
		}
		return parts
	}
	for c.element() {
		parts = append(parts, readPart(c))
	}
	return parts
}

// readPart reads {"type":"text","text":"…"}, or a part that is no text:
// {"type":"image_url","image_url":{"url":"…"}}, where the content is what stands
// under the name of the type.
func readPart(c *cursor) prefix.Part {
	c.i = skipSpace(c.b, c.i)
	start := c.i
	if !c.open('{') {
		c.value()
		return prefix.Part{}
	}
	var kind string
	var words, content []byte
	for c.member() {
		switch {
		case string(c.key) == "type":
			kind, content = c.text(), nil
		case string(c.key) == "text":
			words = c.value()
		case string(c.key) == kind:
			content = c.value()
		default:
			c.value()
		}
	}
	if kind == "" || kind == "text" {
		return prefix.Part{Content: text(words)}
	}
	if content == nil { // it stands before its type
		content = c.field(c.b[start:c.i], kind)
	}
	if url := c.field(content, "url"); isString(url) {
		content = url
	}
	if isString(content) {
		content = stringBytes(content)
	}
	return prefix.Part{Type: kind, Content: viewString(content)}
}

func readToolCalls(c *cursor, calls []prefix.ToolCall) []prefix.ToolCall {
	if !c.open('[') {
		c.value()
		return calls
	}
	for c.element() {
		calls = append(calls, readToolCall(c))
	}
	return calls
}

func readToolCall(c *cursor) (t prefix.ToolCall) {
	if !c.open('{') {
		c.value()
		return t
	}
	for c.member() {
		switch string(c.key) {
		case "id":
			t.ID = c.text()
		case "function":
			t.Name, t.Arguments = "", ""
			if !c.open('{') {
				c.value()
				continue
			}
			for c.member() {
				switch string(c.key) {
				case "name":
					t.Name = c.text()
				case "arguments":
					t.Arguments = c.text()
				default:
					c.value()
				}
			}
		default:
			c.value()
		}
	}
	return t
}

// readCompletion takes a string, a list of strings, a list of token ids or a list
// of such lists. Blocks are those of the first.
func (p *promptReader) readCompletion() bool {
	if isString(p.prompt) {
		p.readText(p.prompt, true)
		return true
	}
	c := p.cursor(p.prompt)
	c.open('[')
	switch p.prompt[skipSpace(p.prompt, c.i)] {
	case '"':
		for p.prompts = 0; c.element() && p.goOn(); p.prompts++ {
			p.readText(c.value(), p.prompts == 0)
		}
	case '[':
		for p.prompts = 0; c.element() && p.goOn(); p.prompts++ {
			if !p.readTokens(c.value(), p.prompts == 0) {
				return false
			}
		}
	default:
		return p.readTokens(p.prompt, true)
	}
	return p.failed == noFault
}

func (p *promptReader) readText(v []byte, first bool) {
	if p.known || !first {
		p.size += stringLen(v)
		return
	}
	s := text(v)
	p.blocks = prefix.AppendText(nil, p.seed, s)
	p.size = len(s)
}

func (p *promptReader) readTokens(v []byte, first bool) bool {
	ids, n, ok := tokenIDs(v, first && !p.known)
	p.blocks = prefix.AppendTokens(p.blocks, p.seed, ids)
	p.tokens += n
	return ok
}

// maxHashedTokens is the length of the longest head of a prompt that is hashed:
// above any context.
const maxHashedTokens = 1 << 22

// tokenIDs reads an array of token ids, the first maxHashedTokens of them, or only
// counts them. There must be one.
func tokenIDs(v []byte, keep bool) (ids []uint32, n int, ok bool) {
	if len(v) == 0 || v[0] != '[' {
		return nil, 0, false
	}
	if keep {
		ids = make([]uint32, 0, min(bytes.Count(v, comma)+1, len(v)/2, maxHashedTokens))
	}
	for i := skipSpace(v, 1); i < len(v); {
		if v[i] == ']' {
			return ids, n, n > 0
		}
		start, id := i, 0
		for i < len(v) && i < start+9 && v[i]-'0' < 10 {
			id = 10*id + int(v[i]-'0')
			i++
		}
		if i == start || i < len(v) && !isDelimiter(v[i]) { // long, a float, or no id
			if i = skipValue(v, start); i < 0 {
				return nil, 0, false
			}
			if id, ok = count(v[start:i]); !ok {
				return nil, 0, false
			}
		}
		n++
		if keep && n <= maxHashedTokens {
			ids = append(ids, uint32(id))
		}
		if i+1 < len(v) && v[i] == ',' && v[i+1] > ' ' { // nearly always
			i++
			continue
		}
		if i = skipSpace(v, i); i < len(v) && v[i] == ',' {
			i = skipSpace(v, i+1)
		}
	}
	return nil, 0, false
}
