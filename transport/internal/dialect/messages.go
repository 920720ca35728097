package dialect

// Anthropic's messages.
var (
	messages = &api{
		paths:     []string{"/v1/messages"},
		parts:     map[string]part{"system": systemPart, "messages": messagesPart, "tools": toolsPart},
		prompt:    readConversation,
		event:     readMessagesEvent,
		whole:     readMessagesBody,
		hasBlocks: true,
		single:    true,
		errors:    anthropicErrors,
	}
	messageCount = counting(messages, "/v1/messages/count_tokens")
)

// readMessagesEvent reads an event such as
// {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"…"}}.
func readMessagesEvent(to *response, data []byte) {
	var kind, index, message, delta, block, usage, failure []byte
	pick(data, into{"type", &kind}, into{"index", &index}, into{"message", &message}, into{"delta", &delta},
		into{"content_block", &block}, into{"usage", &usage}, into{"error", &failure})
	at, _ := count(index)
	switch string(stringBytes(kind)) {
	case "message_start":
		to.on(event{kind: begins, choice: none})
		to.on(event{kind: reports, value: field(message, "usage"), opening: true})
	case "content_block_start":
		c := cursor{b: block}
		readContentBlock(to, at, &c, false)
	case "content_block_delta":
		to.on(event{kind: begins})
		readDelta(to, 0, at, delta)
	case "message_delta":
		e := event{kind: begins, choice: none}
		if present(field(delta, "stop_reason")) {
			e = event{kind: ends}
		}
		to.on(e)
		to.on(event{kind: reports, value: usage})
	case "message_stop":
		to.on(event{kind: ends, choice: none, all: true})
	case "error":
		to.on(event{kind: fails})
	case "ping":
		to.on(event{})
	default:
		if present(failure) { // in the form of another API
			to.on(event{kind: fails})
		}
	}
}

// readContentBlock reads the beginning of a block, or one that is whole.
func readContentBlock(to *response, at int, c *cursor, whole bool) {
	b := nextItem(c)
	e := event{kind: text, part: at, text: b.text, name: b.name}
	switch b.kind {
	case "text":
	case "thinking", "redacted_thinking":
		e.text, e.thought = field(b.whole, "thinking"), true
	case "tool_use":
		e.kind, e.id, e.text = tool, b.id, nil
		if whole { // a beginning has an empty object
			e.text, e.raw = b.input, true
		}
	default:
		e.odd = true
	}
	to.on(e)
}

func readMessagesBody(to *response, body []byte) {
	at := 0
	for c := elementsOf(field(body, "content")); c.element(); at++ {
		readContentBlock(to, at, &c, true)
	}
}
