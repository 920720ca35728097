package dialect

// The engines' own APIs: SGLang's and TGI's /generate, vLLM's
// /inference/v1/generate.
var generationDialect = dialect{
	paths:     []string{"/generate", "/generate_stream"},
	place:     placeGeneration,
	hasPrompt: func(c *call) bool { return isString(c.prompt) || hasElements(c.prompt) },
	prompt:    readCompletion,
	event:     readGenerationEvent,
	usage:     (*usage).readMetaInfo,
	inUsage:   "meta_info",
}

func placeGeneration(c *call, key []byte) *[]byte {
	switch string(key) {
	case "text", "input_ids", "prompt", "inputs", "token_ids":
		return &c.prompt
	case "sampling_params", "parameters":
		return &c.params
	}
	return nil
}

// readGenerationEvent reads SGLang's events, which repeat the text from its
// beginning, TGI's, which have a token each, and vLLM's, which have token ids.
func readGenerationEvent(data []byte) chunk {
	c := readChunk(data)
	for m := membersOf(data); m.member(); {
		v := m.value()
		switch string(m.key) {
		case "text":
			c.any, c.choices, c.cumulative = true, true, true
			c.content = stringLen(v)
		case "meta_info":
			c.choices = true
			c.usage = v
			c.finished = c.finished || present(field(v, "finish_reason"))
		case "token":
			c.any, c.choices = true, true
			c.content = stringLen(field(v, "text"))
		case "generated_text":
			c.finished = c.finished || present(v)
		case "choices":
			for e := elementsOf(v); e.element(); {
				c.tokens += length(field(e.value(), "token_ids"))
			}
		}
	}
	return c
}

// readMetaInfo reads SGLang's meta_info, or vLLM's usage.
func (u *usage) readMetaInfo(v []byte) {
	u.read(v)
	u.cached, u.hasCached = merge(u.cached, u.hasCached, field(v, "cached_tokens"))
}
