package dialect

// The engines' own APIs: SGLang's and TGI's /generate, vLLM's
// /inference/v1/generate.
var generation = &api{
	paths: []string{"/generate", "/generate_stream"},
	parts: map[string]part{
		"text": promptPart, "input_ids": promptPart, "prompt": promptPart, "inputs": promptPart, "token_ids": promptPart,
		"sampling_params": paramsPart, "parameters": paramsPart,
	},
	prompt: readPrompts,
	event:  readGenerationEvent,
}

// readGenerationEvent reads SGLang's events, which repeat the text from its
// beginning, TGI's, which have a token each, and vLLM's, which are chunks of token ids.
func readGenerationEvent(to *response, data []byte) {
	readChunk(to, data)
	var words, token, meta, generated, index []byte
	pick(data, into{"text", &words}, into{"token", &token}, into{"meta_info", &meta}, into{"generated_text", &generated}, into{"index", &index})
	choice, _ := count(index)
	if words != nil {
		to.on(event{kind: text, choice: choice, text: words, repeated: true})
	}
	if token != nil {
		to.on(event{kind: text, choice: choice, text: field(token, "text")})
	}
	if meta != nil {
		to.on(event{kind: begins, choice: none})
		to.on(event{kind: reports, value: meta, own: to.data.said})
	}
	reason := field(meta, "finish_reason")
	if string(field(reason, "type")) == `"abort"` {
		to.on(event{kind: fails})
	}
	if present(reason) || present(generated) {
		to.on(event{kind: ends, choice: choice})
	}
}
