package transport

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

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
func apiOf(req *http.Request) api {
	switch {
	case req.Method != http.MethodPost:
		return other
	case strings.HasSuffix(req.URL.Path, "/chat/completions"):
		return chat
	case strings.HasSuffix(req.URL.Path, "/completions"):
		return completion
	}
	return other
}

// call is a request as its body describes it.
type call struct {
	api   api // other if no prompt was found
	body  []byte
	model string

	stream bool
	// options is the member stream_options; top is where members start.
	options member
	top     int
	// asked says that the client wants usage in its stream.
	asked bool

	n         int // responses for each prompt
	maxTokens int // 0: not said
	salt      string

	conversation prefix.Conversation
	text         []string   // prompts of a completion
	tokens       [][]uint32 // or as token ids
	media        int        // parts that are no text
}

// parse reads what it can of a body; what it can't read is passed on as it is.
// The call refers to body, which must not change after.
func parse(kind api, body []byte) call {
	c := call{body: body, n: 1}
	m, ok := membersOf(body)
	if !ok {
		return c
	}
	c.top = m.i
	var prompt, messages []byte
	for {
		f, ok := m.next()
		if !ok {
			break
		}
		switch string(f.key) {
		case "model":
			c.model = strings.Clone(text(f.value)) // outlives the body
		case "prompt":
			prompt = f.value
		case "messages":
			messages = f.value
		case "tools":
			c.conversation.Tools = texts(f.value)
		case "stream":
			c.stream = isTrue(f.value)
		case "stream_options":
			c.options = f
		case "n":
			if n, ok := count(f.value); ok {
				c.n = max(n, 1)
			}
		case "max_tokens", "max_completion_tokens":
			if n, ok := count(f.value); ok {
				c.maxTokens = n
			}
		case "cache_salt":
			c.salt = text(f.value)
		}
	}
	c.asked = isTrue(field(c.options.value, "include_usage"))
	switch {
	case m.broken: // half a body: the engine will refuse it
	case kind == chat && c.readMessages(messages), kind == completion && c.readPrompt(prompt):
		c.api = kind
	}
	if c.api == other {
		c.stream = false // nothing is known of what comes back
	}
	return c
}

// text is the content of a string value; it shares memory with it.
func text(v []byte) string { return viewString(stringBytes(v)) }

// texts are the elements of an array, strings by their content.
func texts(v []byte) []string {
	var all []string
	e, _ := elementsOf(v)
	for {
		x, ok := e.next()
		if !ok {
			return all
		}
		if isString(x) {
			x = stringBytes(x)
		}
		all = append(all, viewString(x))
	}
}

// readPrompt takes a string, a list of strings, a list of token ids or a list
// of such lists.
func (c *call) readPrompt(v []byte) bool {
	if isString(v) {
		c.text = []string{text(v)}
		return true
	}
	e, _ := elementsOf(v)
	first, ok := e.next()
	switch {
	case !ok:
		return false
	case isString(first):
		c.text = texts(v)
		return true
	case first[0] != '[':
		ids, ok := tokenIDs(v)
		c.tokens = append(c.tokens, ids)
		return ok
	}
	for ; ok; first, ok = e.next() {
		ids, ok := tokenIDs(first)
		if !ok {
			return false
		}
		c.tokens = append(c.tokens, ids)
	}
	return true
}

func tokenIDs(v []byte) ([]uint32, bool) {
	e, ok := elementsOf(v)
	ids := make([]uint32, 0, bytes.Count(v, comma)+1)
	for ok {
		var x []byte
		if x, ok = e.next(); !ok {
			break
		}
		id, isCount := count(x)
		if !isCount {
			return nil, false
		}
		ids = append(ids, uint32(id))
	}
	return ids, len(ids) > 0
}

var comma = []byte{','}

func (c *call) readMessages(v []byte) bool {
	e, _ := elementsOf(v)
	for {
		x, ok := e.next()
		if !ok {
			return len(c.conversation.Messages) > 0
		}
		c.conversation.Messages = append(c.conversation.Messages, c.message(x))
	}
}

func (c *call) message(v []byte) prefix.Message {
	var msg prefix.Message
	m, _ := membersOf(v)
	for {
		f, ok := m.next()
		if !ok {
			return msg
		}
		switch string(f.key) {
		case "role":
			msg.Role = text(f.value)
		case "name":
			msg.Name = text(f.value)
		case "tool_call_id":
			msg.ToolCallID = text(f.value)
		case "content":
			msg.Parts = c.parts(f.value)
		case "tool_calls":
			e, _ := elementsOf(f.value)
			for {
				x, ok := e.next()
				if !ok {
					break
				}
				function := field(x, "function")
				msg.ToolCalls = append(msg.ToolCalls, prefix.ToolCall{
					ID:        text(field(x, "id")),
					Name:      text(field(function, "name")),
					Arguments: text(field(function, "arguments")),
				})
			}
		}
	}
}

func (c *call) parts(v []byte) []prefix.Part {
	if isString(v) {
		return []prefix.Part{{Content: text(v)}}
	}
	var parts []prefix.Part
	e, _ := elementsOf(v)
	for {
		x, ok := e.next()
		if !ok {
			return parts
		}
		kind := text(field(x, "type"))
		if kind == "text" || kind == "" {
			parts = append(parts, prefix.Part{Content: text(field(x, "text"))})
			continue
		}
		// {"type":"image_url","image_url":{"url":"…"}}: the content is what
		// stands under the name of the type.
		content := field(x, kind)
		if url := field(content, "url"); isString(url) {
			content = url
		}
		if isString(content) {
			content = stringBytes(content)
		}
		parts = append(parts, prefix.Part{Type: kind, Content: viewString(content)})
		c.media++
	}
}

// prompt fills in the length and the blocks of the prompt, as far as the host
// has not done so, and returns the bytes of text from which the length was
// guessed: 0 if it is exact, or includes more than text.
func (c *call) prompt(req *endpick.Request, scope prefix.Scope, learned rates) int {
	if req.ExpectedOutputTokens == 0 {
		req.ExpectedOutputTokens = c.expectedOutput(learned)
	}
	if req.InputTokens > 0 || len(req.Blocks) > 0 {
		return 0
	}
	perByte := learned.prompt()
	seed := scope.Seed()
	size := 0
	switch {
	case c.api == other:
		// Without blocks no endpoint looks nearer than another; a length keeps
		// policies that weigh tokens from taking the request for free.
		req.InputTokens = max(toTokens(len(c.body), perByte), 1)
		return 0
	case len(c.tokens) > 0:
		for _, ids := range c.tokens {
			size += len(ids)
		}
		req.InputTokens = size
		req.Blocks = prefix.AppendTokens(make([]uint64, 0, len(c.tokens[0])/prefix.BlockTokens), seed, c.tokens[0])
		req.BlockTokens = prefix.BlockTokens
		return 0
	case c.api == completion:
		for _, s := range c.text {
			size += len(s)
		}
		req.Blocks = prefix.AppendText(make([]uint64, 0, len(c.text[0])/prefix.BlockBytes), seed, c.text[0])
	default:
		room := len(c.body)/prefix.BlockBytes + 1
		if c.media > 0 {
			room = 0 // pictures fill the body, not the blocks
		}
		req.Blocks, size = prefix.AppendChat(make([]uint64, 0, room), seed, &c.conversation)
	}
	req.InputTokens = max(toTokens(size, perByte)+c.media*mediaTokens, 1)
	req.BlockTokens = prefix.BlockBytes * perByte
	if c.media > 0 {
		return 0
	}
	return size
}

func toTokens(bytes int, perByte float64) int {
	return int(math.Round(float64(bytes) * perByte))
}

// responses is how many responses the client asks for.
func (c *call) responses() int {
	return max(c.n, 1) * max(len(c.text), len(c.tokens), 1)
}

// expectedOutput is the learned mean, or the client's limit where that is less.
func (c *call) expectedOutput(learned rates) int {
	if c.api == other {
		return 0
	}
	each := learned.meanOutput()
	if c.maxTokens > 0 && (each == 0 || float64(c.maxTokens) < each) {
		each = float64(c.maxTokens)
	}
	return int(min(math.Round(each*float64(c.responses())), math.MaxInt32))
}

// askForUsage makes the engine report usage in a stream whose client did not
// ask for it. It reports whether that usage must be kept from the client.
func (c *call) askForUsage() bool {
	if !c.stream || c.asked {
		return false
	}
	const want = `"include_usage":true`
	at, end := c.top, c.top
	insert := []byte(`"stream_options":{` + want + `},`)
	if v := c.options.value; v != nil {
		m, ok := membersOf(v)
		if !ok && !isNull(v) {
			return false // the engine will refuse it
		}
		at, end = c.options.end-len(v), c.options.end
		insert = []byte("{" + want)
		for f, ok := m.next(); ok; f, ok = m.next() {
			if string(f.key) != "include_usage" {
				insert = append(append(insert, ','), v[f.at:f.end]...)
			}
		}
		insert = append(insert, '}')
	}
	c.body = bytes.Join([][]byte{c.body[:at], insert, c.body[end:]}, nil)
	return true
}

// readBody reads the body once, and closes it.
func readBody(req *http.Request, limit int64) ([]byte, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	defer req.Body.Close()
	if req.ContentLength > limit {
		return nil, &BodyError{Limit: limit, Length: req.ContentLength}
	}
	var b bytes.Buffer
	// A client may say any length: believe the first megabyte.
	b.Grow(int(min(max(req.ContentLength, 0), 1<<20)) + bytes.MinRead)
	n, err := b.ReadFrom(io.LimitReader(req.Body, limit+1))
	switch {
	case err != nil:
		return nil, &ReadError{Err: err}
	case n > limit:
		return nil, &BodyError{Limit: limit, Length: -1}
	}
	return b.Bytes(), nil
}
