package dialect

// What an engine does without its model: tokens of a text, the text of tokens, or
// the text of a conversation.
var tokenization = &api{
	paths: []string{"/tokenize", "/detokenize", "/apply-template"},
	parts: map[string]part{
		"prompt": promptPart, "content": promptPart, "tokens": promptPart, "text": promptPart, "messages": messagesPart,
	},
	prompt: func(p *promptReader) bool {
		p.tokens = 1 // almost no cost
		return present(p.parts[promptPart]) || hasElements(p.parts[messagesPart])
	},
	idle: true,
}
