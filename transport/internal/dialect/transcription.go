package dialect

// OpenAI's transcriptions and translations of speech, which arrive in forms.
var transcription = &api{
	paths:  []string{"/audio/transcriptions", "/audio/translations"},
	prompt: readSpeech,
	event:  readTranscriptEvent,
}

// speechBytes is roughly how much sound, at 128 kbit/s, becomes a token, at fifty
// tokens per second.
const speechBytes = 320

func readSpeech(p *promptReader) bool {
	if !p.isForm {
		return false
	}
	p.tokens = max(len(p.body)/speechBytes, 1)
	return true
}

// readTranscriptEvent reads OpenAI's events, and the chunks that vLLM sends.
func readTranscriptEvent(to *response, data []byte) {
	switch string(stringBytes(field(data, "type"))) {
	case "transcript.text.delta":
		to.on(event{kind: text, text: field(data, "delta")})
	case "transcript.text.done":
		to.on(event{kind: ends, all: true})
		to.on(event{kind: reports, value: field(data, "usage")})
	case "error":
		to.on(event{kind: fails})
	default:
		readChunk(to, data)
	}
}
