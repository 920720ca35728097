package dialect

// Ollama's own API. Streams, which are the default, are lines of JSON.
var (
	ollamaChat = &api{
		paths:   []string{"/api/chat"},
		parts:   map[string]part{"messages": messagesPart, "tools": toolsPart, "options": paramsPart},
		prompt:  readConversation,
		resumes: []string{"ollama"},
		event:   readOwn,
		whole:   readOwn,
		lines:   true,
		errors:  ollamaErrors,
	}
	ollamaGenerate = &api{
		paths:  []string{"/api/generate"},
		parts:  map[string]part{"prompt": messagesPart, "images": suffixPart, "system": systemPart, "context": previousPart, "options": paramsPart},
		prompt: readConversation,
		event:  readOwn,
		lines:  true,
		errors: ollamaErrors,
	}
	ollamaEmbed = &api{
		paths:  []string{"/api/embed", "/api/embeddings"},
		parts:  map[string]part{"input": promptPart, "prompt": promptPart},
		prompt: readPrompts,
		errors: ollamaErrors,
	}
	// What is known of a model: its name had another name once.
	ollamaShow = &api{paths: []string{"/api/show"}, parts: map[string]part{"name": modelPart}, prompt: tokenization.prompt, idle: true, errors: ollamaErrors}
)
