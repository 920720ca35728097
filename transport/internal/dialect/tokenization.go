package dialect

// What an engine does without its model: tokens of a text, the text of tokens, or
// the text of a conversation.
var tokenizationDialect = dialect{
	paths:     []string{"/tokenize", "/detokenize", "/apply-template"},
	place:     placeTokenization,
	hasPrompt: func(c *call) bool { return present(c.prompt) || hasElements(c.messages) },
	// No prompt is computed, so there are no blocks and almost no cost.
	prompt: func(p *promptReader) bool {
		p.tokens = 1
		return true
	},
	usage: func(*usage, []byte) {},
	idle:  true,
}

func placeTokenization(c *call, key []byte) *[]byte {
	switch string(key) {
	case "prompt", "content", "tokens", "text":
		return &c.prompt
	case "messages":
		return &c.messages
	}
	return nil
}
