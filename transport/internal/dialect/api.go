package dialect

import (
	"net/http"
	"strings"
)

// An api is what is particular to one API. Each has a file of its own, and a line in the
// table apis.
type api struct {
	// paths are the ends of its requests' paths; a gateway may have put a prefix
	// before them. The longest match counts.
	paths []string

	// A request: parts says which members of its object hold which part of the prompt, and
	// prompt reads these, or returns false if there is none: such a request is passed on
	// uninterpreted, as all are if it is nil.
	parts  map[string]part
	prompt func(p *promptReader) bool
	// idle says that the engine computes no prompt.
	idle bool
	// asksUsage says that stream_options asks for usage in a stream.
	asksUsage bool
	// resumes are the engines that can continue a stream that has broken off; see resume.go.
	resumes []string
	// single says that there is one response, whatever the request's n.
	single bool

	// A response: event turns the data of a server-sent event into events. Nil: there are
	// no streams, and responses have no tokens of their own.
	event func(to *response, data []byte)
	// whole turns a response that did not stream into the events that matter to the
	// conversation. Nil: responses are not part of one.
	whole func(to *response, body []byte)
	// lines says that streams are lines of JSON, and the default.
	lines bool
	// endsEach says that each of several responses ends the stream with usage of its own.
	endsEach bool
	// hasBlocks says that messages consist of content blocks: clients send back reasoning
	// before the calls of tools, and arguments are objects.
	hasBlocks bool
	// output reads the response in the last event as the engine's output, which clients
	// send back. Nil: that is what the events said.
	output func(p *promptReader, response []byte) bool
	// stores says that the engine stores responses under an id.
	stores bool

	// errors is the form of errors; empty: that of OpenAI's API.
	errors string
}

// part is a part of a request that is remembered as it is in the body.
type part uint8

const (
	toolsPart    part = iota // definitions of tools
	systemPart               // instructions, or what else precedes the conversation
	messagesPart             // the conversation
	promptPart               // a text, token ids, or several of them
	suffixPart               // a text that follows after a gap, or pictures
	paramsPart               // an object with parameters of sampling

	modelPart // of any API
	streamPart
	optionsPart
	numberPart // of responses
	limitPart  // of tokens
	saltPart   // what else cached prompts are apart by: the latter two are SGLang's
	cacheKeyPart
	metadataPart
	userPart
	previousPart // the id of the response that is continued, or token ids of all before
	storePart    // whether the response is stored
	actsPart     // what makes the engine do more than compute a response
	numParts
)

// commonParts are members of the requests of all APIs.
var commonParts = map[string]part{
	"model": modelPart, "stream": streamPart, "stream_options": optionsPart, "n": numberPart, "n_cmpl": numberPart,
	"max_tokens": limitPart, "max_completion_tokens": limitPart, "max_output_tokens": limitPart, "n_predict": limitPart,
	"cache_salt": saltPart, "extra_key": saltPart, "lora_path": saltPart,
	"prompt_cache_key": cacheKeyPart, "metadata": metadataPart, "user": userPart, "store": storePart,
	"background": actsPart, "conversation": actsPart, "container": actsPart, "mcp_servers": actsPart,
}

// other is an API that is not known: its requests are passed on uninterpreted.
var other = new(api)

// apis are the known APIs.
var apis = [...]*api{
	chat, chatCount, completion, messages, messageCount, responses, responseCount, embedding, ranking,
	transcription, generation, tokenization, native, infill,
	ollamaChat, ollamaGenerate, ollamaEmbed, ollamaShow,
}

// apiOf returns the API of a method and path.
func apiOf(method, path string) *api {
	if method != http.MethodPost {
		return other
	}
	found, longest := other, 0
	for _, a := range apis {
		for _, end := range a.paths {
			if len(end) > longest && strings.HasSuffix(path, end) {
				found, longest = a, len(end)
			}
		}
	}
	return found
}

// counting is the API that counts the tokens of the prompts of another one, which will be sent
// to the same endpoint.
func counting(of *api, path string) *api {
	return &api{paths: []string{path}, parts: of.parts, prompt: of.prompt, idle: true, errors: of.errors}
}
