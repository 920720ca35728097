package dialect

// OpenAI's transcriptions and translations of speech, which arrive in forms.
var transcriptionDialect = dialect{
	paths:     []string{"/audio/transcriptions", "/audio/translations"},
	hasPrompt: func(*call) bool { return false }, // a JSON body has none
	prompt:    readSpeech,
	event:     readTranscriptEvent,
	usage:     (*usage).read,
	inUsage:   "usage",
}

// speechBytes is roughly how much sound, at 128 kbit/s, becomes a token, at fifty
// tokens per second.
const speechBytes = 320

func readSpeech(p *promptReader) bool {
	p.tokens = max(len(p.body)/speechBytes, 1)
	return true
}

// readTranscriptEvent reads OpenAI's events, and the chunks that vLLM sends.
func readTranscriptEvent(data []byte) chunk {
	var kind, delta, usage []byte
	for m := membersOf(data); m.member(); {
		v := m.value()
		switch string(m.key) {
		case "type":
			kind = stringBytes(v)
		case "delta":
			delta = v
		case "usage":
			usage = v
		}
	}
	switch string(kind) {
	case "transcript.text.delta":
		return chunk{choices: true, any: true, content: stringLen(delta)}
	case "transcript.text.done":
		c := chunk{choices: true, finished: true, whole: true}
		if present(usage) {
			c.usage = usage
		}
		return c
	case "error":
		return chunk{failed: true}
	}
	return readChunk(data)
}
