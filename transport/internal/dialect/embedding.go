package dialect

// APIs that read a prompt and answer with numbers: embeddings, pooling, classification. vLLM also
// accepts a conversation.
var embedding = &api{
	paths: []string{"/embeddings", "/embedding", "/pooling", "/classify"},
	parts: map[string]part{"input": promptPart, "content": promptPart, "messages": messagesPart},
	prompt: func(p *promptReader) bool {
		if present(p.parts[promptPart]) {
			return readPrompts(p)
		}
		return readConversation(p)
	},
}
