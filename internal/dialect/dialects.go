package dialect

import (
	"net/http"
	"strings"
)

// A dialect is what is particular to one API. Each has a file of its own, and a
// line in the table of dialects.
type dialect struct {
	// paths are how the paths of its requests end; a gateway may have put
	// something before. Where several dialects match, the longest end counts.
	paths []string
	// place is where a member of the request's object is kept that only some
	// dialects have; nil: it is not looked at.
	place func(c *call, key []byte) *[]byte
	// hasPrompt reports whether the members that were found may be a prompt.
	// A request without one is passed on without being understood.
	hasPrompt func(c *call) bool
	// prompt reads the prompt, and returns false if it turns out to be none.
	prompt func(p *promptReader) bool
	// options says that usage in a stream is asked for by stream_options.
	options bool
	// event reads the data of an event of its streams. Nil: it has none, and a
	// response has no tokens of its own.
	event func(data []byte) chunk
	// usage takes the figures of a usage object, which is the member inUsage of
	// a response that comes at once.
	usage   func(u *usage, v []byte)
	inUsage string
	// endsEach says that each of several responses ends with its own usage, and
	// none with that of all, which is then not known.
	endsEach bool
	// collect takes what an event appends to the conversation; delta is that of
	// the chunk that event has made of it. answered
	// writes what a response at once does. Nil: it is not collected.
	collect  func(a *answer, data, delta []byte)
	answered func(p *promptReader, body []byte) bool
	// keepsThought says that reasoning before calls of tools is sent back.
	keepsThought bool
	// stores says that its responses are kept by the engine, under an id.
	stores bool
	// idle says that the engine computes no prompt.
	idle bool
	// errors is how its errors look; nil: as those of OpenAI's API.
	errors func(Problem) any
}

// api is one of the APIs that are understood.
type api uint8

const (
	other api = iota // passed on without being understood
	chat
	completion
	messages
	messageCount
	responses
	embedding
	ranking
	transcription
	generation
	tokenization
	native
	infill
	chatCount
	responseCount
)

var dialects = [...]dialect{
	chat:          chatDialect,
	completion:    completionDialect,
	messages:      messagesDialect,
	messageCount:  messageCountDialect,
	responses:     responsesDialect,
	embedding:     embeddingDialect,
	ranking:       rankingDialect,
	transcription: transcriptionDialect,
	generation:    generationDialect,
	tokenization:  tokenizationDialect,
	native:        nativeDialect,
	infill:        infillDialect,
	chatCount:     chatCountDialect,
	responseCount: responseCountDialect,
}

// apiOf tells from method and path.
func apiOf(method, path string) api {
	if method != http.MethodPost {
		return other
	}
	found, longest := other, 0
	for i := range dialects {
		for _, end := range dialects[i].paths {
			if len(end) > longest && strings.HasSuffix(path, end) {
				found, longest = api(i), len(end)
			}
		}
	}
	return found
}
