package dialect

import (
	"net/http"
	"strings"
)

// A dialect is what is particular to one API. Each has a file of its own, and a
// line in the table of dialects.
type dialect struct {
	// paths are the ends of its requests' paths; a gateway may have put a prefix
	// before them. The longest match counts.
	paths []string
	// place returns where to store a member of the request's object that only some
	// dialects have; nil: it is ignored.
	place func(c *call, key []byte) *[]byte
	// hasPrompt reports whether the members that were found may be a prompt. A
	// request without one is passed on uninterpreted.
	hasPrompt func(c *call) bool
	// prompt reads the prompt, or returns false if it is none.
	prompt func(p *promptReader) bool
	// options says that stream_options asks for usage in a stream.
	options bool
	// event reads the data of a stream's event. Nil: there are no streams, and
	// responses have no tokens of their own.
	event func(data []byte) chunk
	// usage reads a usage object, which is the member inUsage of a response that
	// does not stream.
	usage   func(u *usage, v []byte)
	inUsage string
	// endsEach says that each of several responses ends with usage of its own, and
	// that there is none for all together.
	endsEach bool
	// single says that there is one response, whatever the request's n.
	single bool
	// collect adds an event to the answer; delta is that of the event's chunk.
	// answered adds a response that did not stream. Nil: answers are not
	// collected.
	collect  func(a *answer, data, delta []byte)
	answered func(p *promptReader, body []byte) bool
	// keepsThought says that clients send back reasoning before tool calls.
	keepsThought bool
	// stores says that the engine stores responses under an id.
	stores bool
	// idle says that the engine computes no prompt.
	idle bool
	// errors is the format of errors; nil: that of OpenAI's API.
	errors func(Problem) any
}

// api is a known API.
type api uint8

const (
	other api = iota // passed on uninterpreted
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

// apiOf returns the API of a method and path.
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
