package dialect

// The engines' own APIs: SGLang's and TGI's /generate, vLLM's
// /inference/v1/generate.
var generation = &api{
	paths: []string{"/generate", "/generate_stream"},
	parts: map[string]part{
		"text": promptPart, "input_ids": promptPart, "prompt": promptPart, "inputs": promptPart, "token_ids": promptPart,
		"sampling_params": paramsPart, "parameters": paramsPart,
	},
	prompt:  readCompletion,
	event:   readGenerationEvent,
	usage:   (*usage).readMetaInfo,
	usageIn: "meta_info",
}

// readGenerationEvent reads SGLang's events, which repeat the text from its
// beginning, TGI's, which have a token each, and vLLM's, which are chunks of token ids.
func readGenerationEvent(to *response, data []byte) {
	readChunk(to, data)
	var words, token, meta, generated []byte
	index := 0
	for m := membersOf(data); m.member(); {
		v := m.value()
		switch string(m.key) {
		case "text":
			words = v
		case "token":
			token = field(v, "text")
		case "meta_info":
			meta = v
		case "generated_text":
			generated = v
		case "index":
			index, _ = count(v)
		}
	}
	if words != nil {
		to.on(event{kind: text, choice: index, text: words, repeated: true})
	}
	if token != nil {
		to.on(event{kind: text, choice: index, text: token})
	}
	if meta != nil {
		to.on(event{kind: begins, choice: none})
		to.on(event{kind: reports, value: meta, own: to.data.said})
	}
	if present(field(meta, "finish_reason")) || present(generated) {
		to.on(event{kind: ends, choice: index})
	}
}

// readMetaInfo reads SGLang's meta_info, or vLLM's usage.
func (u *usage) readMetaInfo(v []byte) {
	u.read(v)
	u.cached, u.hasCached = merge(u.cached, u.hasCached, field(v, "cached_tokens"))
}
