package traffic

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// API is an API of model servers.
type API struct {
	Path string
	// Body is a request for the next answer of a conversation, with so many tokens.
	Body func(messages []Message, output int) map[string]any
	// read reads an event of a stream, or a whole response.
	read func(data []byte, r *reply) error
	// usage says that streams only report usage on request.
	usage bool
}

// reply is what was received of a response so far.
type reply struct {
	text                     string // of the latest event
	prompt, cached, produced int    // tokens, as reported by the server
	ended                    bool
}

// APIs are all of them, by name.
var APIs = map[string]API{
	"chat":        {"/v1/chat/completions", chatBody, readOpenAI, true},
	"completions": {"/v1/completions", completionBody, readOpenAI, true},
	"messages":    {"/v1/messages", messagesBody, readMessages, false},
	"responses":   {"/v1/responses", responsesBody, readResponses, false},
}

// APINames lists their names.
func APINames() string { return strings.Join(slices.Sorted(maps.Keys(APIs)), ", ") }

// Message is a message of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func chatBody(messages []Message, output int) map[string]any {
	return map[string]any{"messages": messages, "max_tokens": output}
}

// completionBody puts the conversation into one prompt, like clients with a
// template of their own.
func completionBody(messages []Message, output int) map[string]any {
	var prompt strings.Builder
	for _, m := range messages {
		prompt.WriteString(m.Role + ": " + m.Content + "\n")
	}
	return map[string]any{"prompt": prompt.String() + "assistant:", "max_tokens": output}
}

// headed splits off the system prompt of a conversation.
func headed(messages []Message) (system string, rest []Message) {
	if len(messages) > 0 && messages[0].Role == "system" {
		return messages[0].Content, messages[1:]
	}
	return "", messages
}

func messagesBody(messages []Message, output int) map[string]any {
	system, rest := headed(messages)
	body := map[string]any{"messages": rest, "max_tokens": output}
	if system != "" {
		body["system"] = system
	}
	return body
}

func responsesBody(messages []Message, output int) map[string]any {
	system, rest := headed(messages)
	items := []map[string]any{}
	for _, m := range rest {
		kind := "input_text"
		if m.Role == "assistant" {
			kind = "output_text"
		}
		items = append(items, map[string]any{
			"type": "message", "role": m.Role, "content": []map[string]string{{"type": kind, "text": m.Content}},
		})
	}
	body := map[string]any{"input": items, "max_output_tokens": output, "store": false}
	if system != "" {
		body["instructions"] = system
	}
	return body
}

func readOpenAI(data []byte, r *reply) error {
	if string(data) == "[DONE]" {
		r.ended = true
		return nil
	}
	var e struct {
		Choices []struct {
			Text           string
			Delta, Message struct{ Content string }
		}
		Usage *struct {
			PromptTokens     int `json:"prompt_tokens"`
			CompletionTokens int `json:"completion_tokens"`
			Details          struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	if len(e.Choices) > 0 {
		c := e.Choices[0]
		r.text = c.Text + c.Delta.Content + c.Message.Content // only one is set
	}
	if e.Usage != nil {
		r.prompt, r.produced, r.cached = e.Usage.PromptTokens, e.Usage.CompletionTokens, e.Usage.Details.CachedTokens
	}
	return nil
}

// readMessages adds up the prompt: in this API, input_tokens does not include
// the cached part.
func readMessages(data []byte, r *reply) error {
	type usage struct {
		Input   int `json:"input_tokens"`
		Read    int `json:"cache_read_input_tokens"`
		Written int `json:"cache_creation_input_tokens"`
		Output  int `json:"output_tokens"`
	}
	var e struct {
		Type    string
		Delta   struct{ Text string }
		Message struct{ Usage usage }
		Content []struct{ Text string }
		Usage   usage
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	u := e.Usage
	switch e.Type {
	case "message_start":
		u = e.Message.Usage
	case "content_block_delta":
		r.text = e.Delta.Text
	case "message": // not streamed
		for _, c := range e.Content {
			r.text += c.Text
		}
	case "message_stop":
		r.ended = true
	}
	if prompt := u.Input + u.Read + u.Written; prompt > 0 {
		r.prompt, r.cached = prompt, u.Read
	}
	r.produced = max(r.produced, u.Output)
	return nil
}

func readResponses(data []byte, r *reply) error {
	type response struct {
		Output []struct{ Content []struct{ Text string } }
		Usage  struct {
			Input   int `json:"input_tokens"`
			Output  int `json:"output_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"input_tokens_details"`
		}
	}
	var e struct {
		Type, Delta, Object string
		Response            response
	}
	var whole response
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	switch {
	case e.Type == "response.output_text.delta":
		r.text = e.Delta
	case e.Type == "response.completed", e.Type == "response.incomplete":
		whole = e.Response
		r.ended = true
	case e.Object == "response": // not streamed
		if err := json.Unmarshal(data, &whole); err != nil {
			return err
		}
		for _, o := range whole.Output {
			for _, c := range o.Content {
				r.text += c.Text
			}
		}
	}
	if u := whole.Usage; u.Input > 0 {
		r.prompt, r.cached, r.produced = u.Input, u.Details.Cached, u.Output
	}
	return nil
}
