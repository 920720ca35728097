package dialect

// OpenAI's chat completions.
var (
	chat = &api{
		paths:     []string{"/chat/completions"},
		parts:     map[string]part{"messages": messagesPart, "tools": toolsPart, "documents": systemPart},
		prompt:    readConversation,
		asksUsage: true,
		resumes:   []string{"vllm", "sglang", "llama.cpp", "ollama"},
		event:     readChunk,
		whole:     readChatBody,
	}
	chatCount = counting(chat, "/chat/completions/input_tokens")
)

// readChunk reads a chunk of a stream: {"choices":[{"index":0,"delta":{"content":"…"}}]} or
// {"choices":[],"usage":{…}}. Engines report errors like this in streams of any API.
func readChunk(to *response, data []byte) {
	var usage []byte
	for m := membersOf(data); m.member(); {
		switch string(m.key) {
		case "choices": // read in place, because this is most of the text
			if m.open('[') {
				to.on(event{kind: begins, choice: none})
				for m.element() {
					readChoice(to, &m)
				}
				continue
			}
		case "usage":
			usage = m.value()
			continue
		case "error":
			if v := m.value(); present(v) && string(v) != `""` {
				to.on(event{kind: fails})
			}
			continue
		case "object":
			if string(m.value()) == `"error"` {
				to.on(event{kind: fails})
			}
			continue
		}
		m.value()
	}
	if isObject(usage) {
		to.on(event{kind: reports, value: usage, own: to.data.said})
	}
}

func readChoice(to *response, c *cursor) {
	var index, delta, words, ids, reason, failure []byte
	c.pick(into{"index", &index}, into{"delta", &delta}, into{"text", &words}, into{"token_ids", &ids}, into{"finish_reason", &reason}, into{"error", &failure})
	choice, _ := count(index)
	to.on(event{kind: begins, choice: choice})
	if words != nil || ids != nil {
		to.on(event{kind: text, choice: choice, text: words, tokens: length(ids)})
	}
	readDelta(to, choice, 0, delta)
	// vLLM aborts what it runs when it shuts down, sleeps or shrinks.
	if stopped := string(reason) == `"error"` || string(reason) == `"abort"`; stopped || present(failure) {
		to.on(event{kind: fails, stopped: stopped})
	}
	if present(reason) && string(reason) != `""` && string(reason) != `"null"` && !to.data.stopped { // some engines say these instead of null
		to.on(event{kind: ends, choice: choice})
	}
}

// readDelta reads what a choice adds to its message, or a message that is whole.
func readDelta(to *response, choice, part int, delta []byte) {
	for m := membersOf(delta); m.member(); {
		v := m.value()
		if !present(v) || string(v) == `""` {
			continue
		}
		e := event{kind: text, choice: choice, part: part, text: v}
		switch string(m.key) {
		case "content", "text":
			e.odd, e.tokens = !isString(v), length(v) // Mistral's are lists of parts
		case "reasoning_content", "reasoning", "reasoning_text", "thinking":
			e.thought = true
		case "refusal":
			e.odd = true
		case "partial_json":
			e.kind = tool
		case "audio":
			e.text, e.odd = nil, true
		case "function_call":
			e.kind, e.odd = tool, true
			pick(v, into{"name", &e.name}, into{"arguments", &e.text})
		case "tool_calls":
			for calls := elementsOf(v); calls.element(); e.part++ {
				readCall(to, e, &calls)
			}
			continue
		default: // such as images: many proxies have parts of their own
			if e.text, e.tokens, e.thought = nil, 1, true; len(v) <= len("[]") || v[0] != '[' && v[0] != '{' {
				continue
			}
		}
		to.on(e)
	}
}

// readCall reads a part of a call, which has the index of e unless it says otherwise.
func readCall(to *response, e event, c *cursor) {
	var index, function []byte
	e.kind, e.text = tool, nil
	c.pick(into{"index", &index}, into{"id", &e.id}, into{"function", &function})
	pick(function, into{"name", &e.name}, into{"arguments", &e.text})
	e.raw = isObject(e.text)
	if at, ok := count(index); ok {
		e.part = at
	}
	to.on(e)
}

func readChatBody(to *response, body []byte) {
	if choices := elementsOf(field(body, "choices")); choices.element() {
		readDelta(to, 0, 0, field(choices.value(), "message"))
	}
}
