package dialect

// Ollama's own API. Streams, which are the default, are lines of JSON.
var (
	ollamaChat = &api{
		paths:  []string{"/api/chat"},
		parts:  map[string]part{"messages": messagesPart, "tools": toolsPart, "options": paramsPart},
		prompt: readConversation,
		event:  readOllama,
		whole:  readOllama,
		lines:  true,
		errors: ollamaErrors,
	}
	ollamaGenerate = &api{
		paths:  []string{"/api/generate"},
		parts:  map[string]part{"prompt": messagesPart, "system": systemPart, "options": paramsPart},
		prompt: readConversation,
		event:  readOllama,
		lines:  true,
		errors: ollamaErrors,
	}
	ollamaEmbed = &api{
		paths:  []string{"/api/embed", "/api/embeddings"},
		parts:  map[string]part{"input": promptPart, "prompt": promptPart},
		prompt: readPrompts,
		errors: ollamaErrors,
	}
)

// readOllama reads a line of a stream, or a response that is one: {"message":{"content":"…"}} or
// {"response":"…"}, and the totals if it is done.
func readOllama(to *response, data []byte) {
	var message, words, thought, done, failure []byte
	pick(data, into{"message", &message}, into{"response", &words}, into{"thinking", &thought}, into{"done", &done}, into{"error", &failure})
	if present(failure) {
		to.on(event{kind: fails})
	}
	if message != nil || words != nil {
		to.on(event{kind: begins})
	}
	readDelta(to, 0, message)
	if stringLen(thought) > 0 {
		to.on(event{kind: text, text: thought, thought: true})
	}
	if stringLen(words) > 0 {
		to.on(event{kind: text, text: words})
	}
	if isTrue(done) {
		to.on(event{kind: ends, all: true})
		to.on(event{kind: reports, value: data})
	}
}
