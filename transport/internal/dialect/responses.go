package dialect

import "bytes"

// OpenAI's responses.
var (
	responses = &api{
		paths:  []string{"/responses"},
		parts:  map[string]part{"instructions": systemPart, "input": messagesPart, "tools": toolsPart, "previous_response_id": previousPart},
		prompt: readConversation,
		event:  readResponsesEvent,
		whole:  readResponsesBody,
		output: readOutput,
		stores: true,
		single: true,
	}
	responseCount = counting(responses, "/responses/input_tokens")
)

var (
	responseEvent = []byte("response.")
	deltaEvent    = []byte(".delta")
)

// readResponsesEvent reads an event such as {"type":"response.output_text.delta","delta":"…"}. The
// last one repeats everything.
func readResponsesEvent(to *response, data []byte) {
	var kind, delta, item, response, id, usage, number, status, background []byte
	pick(data, into{"type", &kind}, into{"delta", &delta}, into{"item", &item}, into{"response", &response}, into{"sequence_number", &number})
	if n, ok := count(number); ok {
		to.sequence = n + 1
	}
	kind = stringBytes(kind)
	rest, ok := bytes.CutPrefix(kind, responseEvent)
	switch {
	case string(kind) == "error":
		to.on(event{kind: fails})
		return
	case !ok:
		readChunk(to, data)
		return
	case response != nil:
		pick(response, into{"id", &id}, into{"usage", &usage}, into{"status", &status}, into{"background", &background})
	}
	switch string(rest) {
	case "output_item.added":
		to.on(event{kind: tool, name: field(item, "name")})
	case "completed", "incomplete", "cancelled", "failed":
		e := event{kind: ends, all: true, id: id, value: response}
		if string(rest) == "failed" {
			e.value = nil
			to.on(event{kind: fails})
		}
		to.on(e)
		to.on(event{kind: reports, value: usage})
	case "audio.delta": // not text
		to.on(event{kind: begins, choice: none, odd: true})
	default:
		// Whoever has the id of a background response can come back to it.
		e := event{kind: begins, choice: none, id: id, odd: isTrue(background) || string(status) == `"queued"`}
		if bytes.HasSuffix(rest, deltaEvent) {
			e = event{kind: text, text: delta}
		}
		to.on(e)
	}
}

func readResponsesBody(to *response, body []byte) {
	to.on(event{kind: ends, all: true, id: field(body, "id"), value: body})
}

func readOutput(p *promptReader, response []byte) bool {
	output := field(response, "output")
	thought, calls := false, false
	for c := elementsOf(output); c.element(); {
		switch string(stringBytes(field(c.value(), "type"))) {
		case "reasoning":
			thought = true
		case "function_call", "custom_tool_call":
			calls = true
		}
	}
	if !hasElements(output) || thought && !calls {
		return false
	}
	p.readMessages(output)
	return true
}
