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
	event:  readOwn,
}

// readOwn reads an event of an engine's own API, or a response that is one: llama.cpp's, a piece of text
// and its tokens; Ollama's, a line with a message or a text; SGLang's, which repeat the text from its
// beginning; TGI's, which have a token each; and vLLM's, which are chunks of token ids. The last one has
// the totals. (llama.cpp's repeats the prompt; if that is long, it is too long to be read.)
func readOwn(to *response, data []byte) {
	var index, content, words, answer, thought, message, ids, token, meta, generated, choices, stop, done, total, failure, all []byte
	pick(data, into{"index", &index}, into{"content", &content}, into{"tokens", &ids}, into{"tokens_predicted", &total}, into{"stop", &stop},
		into{"message", &message}, into{"response", &answer}, into{"thinking", &thought}, into{"done", &done},
		into{"text", &words}, into{"meta_info", &meta}, into{"token", &token}, into{"generated_text", &generated},
		into{"choices", &choices}, into{"error", &failure}, into{"output_ids", &all})
	if choices != nil || present(failure) {
		readChunk(to, data)
	}
	choice, _ := count(index)
	predicted, _ := count(total)
	whole := isTrue(stop) || isTrue(done)
	if whole || predicted == 0 { // there are totals, or the progress of the prompt
		ids = nil
	}
	if message != nil || len(thought) > len(`""`) {
		to.on(event{kind: begins})
		readDelta(to, 0, 0, message)
		to.on(event{kind: text, text: thought, thought: len(thought) > len(`""`)})
	}
	e := event{kind: text, choice: choice, tokens: length(ids)}
	for _, e.text = range [...][]byte{content, answer, field(token, "text")} {
		if e.text != nil {
			to.on(e)
		}
	}
	if words != nil || hasElements(all) { // SGLang without its tokenizer says no words
		to.on(event{kind: text, choice: choice, text: words, repeated: true, tokens: min(length(all), 1)})
	}
	reason := field(meta, "finish_reason")
	switch {
	case whole:
		to.on(event{kind: ends, choice: choice, all: true})
		to.on(event{kind: reports, value: data, own: to.api.endsEach})
	case meta != nil:
		to.on(event{kind: begins, choice: none})
		to.on(event{kind: reports, value: meta, own: to.data.said})
	}
	if string(field(reason, "type")) == `"abort"` {
		to.on(event{kind: fails})
	}
	if present(reason) || present(generated) {
		to.on(event{kind: ends, choice: choice})
	}
}
