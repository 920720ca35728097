package modelserver

import (
	"errors"
	"io"
	"net/http"
	"slices"
)

// question is a request, independent of the API.
type question struct {
	model     string
	limits    map[string]*int // limits of the output, by field
	maxTokens *int            // the effective one; nil: none
	choices   *int
	stream    bool
	thinking  bool
	prompt    tokens
	script    script
	// writer writes the response.
	writer func(*responder) writer
}

// readBody reads the whole body of a request.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *apiError) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, failure(http.StatusRequestEntityTooLarge, "", "the body is larger than %d bytes", tooLarge.Limit)
	case err != nil:
		return nil, invalid("", "the body could not be read: %v", err)
	}
	return body, nil
}

// ask makes a conversation the prompt.
func (q *question) ask(c *conversation, blockTokens int) {
	q.prompt = c.render(blockTokens)
	q.script = readScript(c.question(), given(c.tools))
}

// newGeneration prepares the sequences for the prompt.
func (s *Server) newGeneration(q *question) (*generation, *apiError) {
	if e := s.knows(q.model); e != nil {
		return nil, e
	}
	for name, v := range q.limits {
		if v != nil && *v < 1 {
			return nil, invalid(name, "%s is %d, below 1", name, *v)
		}
	}
	limit := DefaultOutputTokens
	if q.maxTokens != nil {
		limit = *q.maxTokens
	}
	choices := 1
	if q.choices != nil {
		choices = *q.choices
	}
	if choices < 1 || choices > MaxSequences {
		return nil, invalid("n", "n is %d, not within 1 to %d", choices, MaxSequences)
	}
	if int64(q.prompt.length)+int64(limit)-1 > int64(s.limit) {
		return nil, invalid("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains %d, and you asked for %d.",
			s.limit, q.prompt.length, limit)
	}
	g := &generation{changed: make(chan struct{}, 1)}
	for choice := range choices {
		answer := spoken{output: outputFor(&q.prompt, choice), call: q.script.call}
		if q.thinking {
			answer.thinking = thinkingTokens
		}
		g.sequences = append(g.sequences, newSequence(&q.prompt, answer, answer.length(limit)))
	}
	return g, nil
}

// knows refuses models that the server does not serve.
func (s *Server) knows(model string) *apiError {
	if model == s.config.Model {
		return nil
	}
	return failure(http.StatusNotFound, "model", "The model `%s` does not exist.", model)
}

func newSequence(prompt *tokens, answer spoken, expected int) *sequence {
	whole := *prompt
	whole.blocks = slices.Clone(whole.blocks)
	for _, p := range answer.parts(expected) {
		whole.addPart(p)
	}
	// The special tokens between thoughts, text and calls are not generated here.
	blocks := whole.blocks[:min(len(whole.blocks), (prompt.length+expected)/prompt.blockTokens)]
	return &sequence{prompt: prompt.length, blocks: blocks, spoken: answer, expected: expected}
}
