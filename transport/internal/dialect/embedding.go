package dialect

// APIs that read a prompt and answer with numbers: embeddings, pooling,
// classification.
var embeddingDialect = dialect{
	paths: []string{"/embeddings", "/embedding", "/pooling", "/classify"},
	place: placeEmbedding,
	hasPrompt: func(c *call) bool {
		return isString(c.prompt) || hasElements(c.prompt) || isObject(c.prompt) || hasElements(c.messages)
	},
	prompt: func(p *promptReader) bool {
		if present(p.prompt) {
			return readPrompts(p)
		}
		return readChat(p)
	},
	usage:   (*usage).read,
	inUsage: "usage",
}

// placeEmbedding also accepts a conversation, as vLLM does, and content, as
// llama.cpp does.
func placeEmbedding(c *call, key []byte) *[]byte {
	switch string(key) {
	case "input", "content":
		return &c.prompt
	case "messages":
		return &c.messages
	}
	return nil
}
