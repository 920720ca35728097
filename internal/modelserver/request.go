package modelserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/endpick/endpick/internal/engine"
)

// params are the fields that both kinds of request have.
type params struct {
	Model               string `json:"model"`
	MaxTokens           *int   `json:"max_tokens"`
	MaxCompletionTokens *int   `json:"max_completion_tokens"`
	N                   *int   `json:"n"`
	Stream              bool   `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	CacheSalt string `json:"cache_salt"`
}

type chatRequest struct {
	params
	Messages []message       `json:"messages"`
	Tools    json.RawMessage `json:"tools"`
}

type message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

type contentPart struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL struct {
		URL string `json:"url"`
	} `json:"image_url"`
}

type completionRequest struct {
	params
	Prompt json.RawMessage `json:"prompt"`
}

// apiError is an error in the form of OpenAI's API.
type apiError struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

func invalid(param, format string, args ...any) *apiError {
	e := &apiError{status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...), Type: "invalid_request_error"}
	if param != "" {
		e.Param = &param
	}
	return e
}

func (e *apiError) withCode(code string) *apiError {
	e.Code = &code
	return e
}

// readBody reads a request whole.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *apiError) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		e := invalid("", "the body is larger than %d bytes", tooLarge.Limit)
		e.status = http.StatusRequestEntityTooLarge
		return nil, e
	case err != nil:
		return nil, invalid("", "the body could not be read: %v", err)
	}
	return body, nil
}

// parseChat returns the parameters and the prompt.
func parseChat(body []byte, blockTokens int) (*params, []tokens, *apiError) {
	var req chatRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, nil, invalid("", "the body is not valid: %v", err)
	}
	if len(req.Messages) == 0 {
		return nil, nil, invalid("messages", "messages is missing or empty")
	}
	t := newTokens(blockTokens, req.CacheSalt)
	if given(req.Tools) {
		t.add(startOfTools)
		t.addText(string(req.Tools))
		t.add(endOfMessage)
	}
	for i, m := range req.Messages {
		t.addHeader(m.Role)
		if err := t.addContent(m.Content); err != nil {
			return nil, nil, invalid(fmt.Sprintf("messages[%d].content", i), "messages[%d].content %v", i, err)
		}
		if given(m.ToolCalls) {
			t.addText(string(m.ToolCalls))
		}
		t.add(endOfMessage)
	}
	t.addHeader("assistant")
	return &req.params, []tokens{t}, nil
}

func given(v json.RawMessage) bool { return len(v) > 0 && !bytes.Equal(v, []byte("null")) }

func (t *tokens) addHeader(role string) {
	t.add(startOfHeader)
	t.addText(role)
	t.add(endOfHeader)
}

func (t *tokens) addContent(v json.RawMessage) error {
	if !given(v) {
		return nil // an assistant that only calls tools
	}
	var text string
	if json.Unmarshal(v, &text) == nil {
		t.addText(text)
		return nil
	}
	var parts []contentPart
	if json.Unmarshal(v, &parts) != nil {
		return errors.New("is neither a string nor a list of parts")
	}
	for i, p := range parts {
		switch p.Type {
		case "text":
			t.addText(p.Text)
		case "image_url":
			t.addImage(p.ImageURL.URL)
		default:
			return fmt.Errorf("has a part %d of unknown type %q", i, p.Type)
		}
	}
	return nil
}

// parseCompletion returns the parameters and the prompts.
func parseCompletion(body []byte, blockTokens int) (*params, []tokens, *apiError) {
	var req completionRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, nil, invalid("", "the body is not valid: %v", err)
	}
	texts, ids, ok := readPrompts(req.Prompt)
	if !ok {
		return nil, nil, invalid("prompt", "prompt is missing, or not a string, a list of token ids, or a list of those")
	}
	prompts := make([]tokens, 0, len(texts)+len(ids))
	for _, s := range texts {
		t := newTokens(blockTokens, req.CacheSalt)
		t.addText(s)
		prompts = append(prompts, t)
	}
	for _, prompt := range ids {
		t := newTokens(blockTokens, req.CacheSalt)
		for _, id := range prompt {
			t.add(callersToken | token(id))
		}
		prompts = append(prompts, t)
	}
	for _, t := range prompts {
		if t.length == 0 {
			return nil, nil, invalid("prompt", "a prompt is empty")
		}
	}
	return &req.params, prompts, nil
}

// readPrompts reads the four forms of a prompt.
func readPrompts(v json.RawMessage) (texts []string, ids [][]uint32, ok bool) {
	if !given(v) {
		return nil, nil, false
	}
	var one string
	if json.Unmarshal(v, &one) == nil {
		return []string{one}, nil, true
	}
	var oneIDs []uint32
	if json.Unmarshal(v, &oneIDs) == nil {
		return nil, [][]uint32{oneIDs}, true
	}
	if json.Unmarshal(v, &texts) == nil {
		return texts, nil, true
	}
	return nil, ids, json.Unmarshal(v, &ids) == nil
}

// newGeneration says what to generate for the prompts.
func (s *Server) newGeneration(p *params, prompts []tokens) (*generation, *apiError) {
	if p.Model != s.config.Model {
		e := invalid("model", "the model %q does not exist", p.Model).withCode("model_not_found")
		e.status = http.StatusNotFound
		return nil, e
	}
	expected := DefaultOutputTokens
	for name, v := range map[string]*int{"max_tokens": p.MaxTokens, "max_completion_tokens": p.MaxCompletionTokens} {
		if v != nil && *v < 1 {
			return nil, invalid(name, "%s is %d, below 1", name, *v)
		}
	}
	if v := p.maxTokens(); v != nil {
		expected = *v
	}
	choices := 1
	if p.N != nil {
		choices = *p.N
	}
	if choices < 1 || choices > MaxSequences/max(len(prompts), 1) {
		return nil, invalid("n", "n is %d: %d prompts leave room for 1 to %d choices", choices, len(prompts), MaxSequences/max(len(prompts), 1))
	}
	g := &generation{changed: make(chan struct{}, 1)}
	for i := range prompts {
		if int64(prompts[i].length)+int64(expected)-1 > int64(s.limit) {
			return nil, s.tooLong(prompts[i].length, expected)
		}
		for choice := range choices {
			g.sequences = append(g.sequences, newSequence(&prompts[i], choice, expected))
		}
	}
	return g, nil
}

func newSequence(prompt *tokens, choice, expected int) *sequence {
	text := outputFor(prompt, choice)
	whole := *prompt
	whole.blocks = slices.Clone(whole.blocks)
	whole.addText(string(text.appendText(nil, 0, expected)))
	return &sequence{prompt: prompt.length, blocks: whole.blocks, output: text, expected: expected}
}

// maxTokens is the newer name's value, else the older one's, else nil.
func (p *params) maxTokens() *int {
	if p.MaxCompletionTokens != nil {
		return p.MaxCompletionTokens
	}
	return p.MaxTokens
}

func (s *Server) tooLong(prompt, output int) *apiError {
	return invalid("", "this model's maximum context length is %d tokens; the prompt has %d and %d were asked for",
		s.limit, prompt, output).withCode("context_length_exceeded")
}

// submitError is the answer to a request that the engine refused.
func submitError(err error) *apiError {
	if errors.Is(err, errStopped) {
		return &apiError{status: http.StatusServiceUnavailable, Message: err.Error(), Type: "service_unavailable"}
	}
	var request *engine.RequestError
	if errors.As(err, &request) {
		return invalid("", "%v", err)
	}
	return &apiError{status: http.StatusInternalServerError, Message: err.Error(), Type: "server_error"}
}

func writeError(w http.ResponseWriter, e *apiError) {
	writeJSON(w, e.status, map[string]*apiError{"error": e})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone, or not
}
