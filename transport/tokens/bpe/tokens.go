package bpe

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/exec"

	"github.com/endpick/endpick/transport/tokens"
)

// refused is the error of a request whose ids can't be computed here. It
// matches [tokens.ErrNoPrompt]: other requests may be fine.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", tokens.ErrNoPrompt, fmt.Sprintf(format, args...))
}

// Tokens implements [tokens.Tokenizer]: the ids of the prompt of a chat
// (/v1/chat/completions) or a completion (/v1/completions), as vLLM makes them with the
// model's own template. Pictures, templates in the request, and whatever else needs more
// than the model's files are refused with an error that matches [tokens.ErrNoPrompt].
func (m *Model) Tokens(ctx context.Context, path string, body []byte) ([]uint32, error) {
	switch "/" + strings.Trim(path, "/") {
	case "/v1/chat/completions":
		text, err := m.Chat(body)
		if err != nil {
			return nil, err
		}
		return m.Encode(ctx, text)
	case "/v1/completions":
		var c completion
		if err := json.Unmarshal(body, &c); err != nil {
			return nil, refused("%v", err)
		}
		if c.Truncate != nil {
			return nil, refused("truncate_prompt_tokens")
		}
		ids, err := m.Encode(ctx, c.Prompt)
		if err != nil || c.AddSpecialTokens != nil && !*c.AddSpecialTokens {
			return ids, err
		}
		return append(append(append([]uint32(nil), m.before...), ids...), m.after...), nil
	}
	return nil, refused("path %q", path)
}

type completion struct {
	Prompt           string          `json:"prompt"`
	AddSpecialTokens *bool           `json:"add_special_tokens"`
	Truncate         json.RawMessage `json:"truncate_prompt_tokens"`
}

// chat is the part of a chat request that the prompt depends on.
type chat struct {
	Messages            []json.RawMessage          `json:"messages"`
	Tools               []json.RawMessage          `json:"tools"`
	ToolChoice          json.RawMessage            `json:"tool_choice"`
	AddGenerationPrompt *bool                      `json:"add_generation_prompt"`
	Arguments           map[string]json.RawMessage `json:"chat_template_kwargs"`

	// Not supported here.
	Template             json.RawMessage `json:"chat_template"`
	Documents            json.RawMessage `json:"documents"`
	Functions            json.RawMessage `json:"functions"`
	ReasoningEffort      json.RawMessage `json:"reasoning_effort"`
	ContinueFinalMessage bool            `json:"continue_final_message"`
	AddSpecialTokens     bool            `json:"add_special_tokens"`
	Truncate             json.RawMessage `json:"truncate_prompt_tokens"`
}

func (c *chat) unknown() string {
	for name, v := range map[string]json.RawMessage{
		"chat_template": c.Template, "documents": c.Documents, "functions": c.Functions, "reasoning_effort": c.ReasoningEffort, "truncate_prompt_tokens": c.Truncate,
	} {
		if len(v) > 0 && string(v) != "null" {
			return name
		}
	}
	switch {
	case c.ContinueFinalMessage:
		return "continue_final_message"
	case c.AddSpecialTokens:
		return "add_special_tokens"
	case len(c.ToolChoice) > 0 && string(c.ToolChoice) != `"auto"` && string(c.ToolChoice) != "null":
		return "tool_choice"
	}
	return ""
}

// Chat returns the text of a chat's prompt, with special tokens by name. Its errors
// are like those of Tokens.
func (m *Model) Chat(body []byte) (string, error) {
	if m.chat == nil {
		return "", refused("the model has no chat template")
	}
	var c chat
	if err := json.Unmarshal(body, &c); err != nil {
		return "", refused("%v", err)
	}
	if len(c.Messages) == 0 {
		return "", refused("the request has no messages")
	}
	if what := c.unknown(); what != "" {
		return "", refused("%s", what)
	}
	variables := map[string]any{"add_generation_prompt": c.AddGenerationPrompt == nil || *c.AddGenerationPrompt}
	for name, text := range c.Arguments {
		v, err := parseValue(text)
		if err != nil {
			return "", refused("%v", err)
		}
		variables[name] = v
	}
	messages := make([]any, len(c.Messages))
	for i, text := range c.Messages {
		message, err := m.message(text)
		if err != nil {
			return "", err
		}
		messages[i] = message
	}
	variables["messages"] = messages
	if len(c.Tools) > 0 {
		tools := make([]any, len(c.Tools))
		for i, text := range c.Tools {
			tool, err := tool(text)
			if err != nil {
				return "", err
			}
			tools[i] = tool
		}
		variables["tools"] = tools
	}
	now := time.Now
	if m.Clock != nil {
		now = m.Clock
	}
	text, err := m.chat.render(variables, now().UTC())
	if err != nil {
		return "", refused("%v", err)
	}
	return text, nil
}

func object(text []byte) (*exec.Dict, error) {
	v, err := parseValue(text)
	if err != nil {
		return nil, refused("%v", err)
	}
	o, ok := v.(*exec.Dict)
	if !ok {
		return nil, refused("no object")
	}
	return o, nil
}

// message converts a message to what engines pass to templates: content as one string
// unless the template iterates over its parts, and the arguments of calls as objects.
func (m *Model) message(text []byte) (*exec.Dict, error) {
	in, err := object(text)
	if err != nil {
		return nil, err
	}
	out := exec.NewDict()
	for _, p := range in.Pairs {
		v := p.Value.Interface()
		switch name := p.Key.String(); name {
		case "role", "name", "tool_call_id", "reasoning_content":
			if v != nil {
				set(out, name, v)
			}
		case "content":
			content, err := m.content(v)
			if err != nil {
				return nil, err
			}
			set(out, name, content)
		case "tool_calls":
			calls, ok := v.([]any)
			if !ok && v != nil {
				return nil, refused("tool_calls is not a list")
			}
			for _, c := range calls {
				if err := readArguments(c); err != nil {
					return nil, err
				}
			}
			if len(calls) > 0 {
				set(out, name, calls)
			}
		case "refusal", "audio", "annotations":
			if v != nil {
				return nil, refused("%s", name)
			}
		default:
			return nil, refused("a message has %q", name)
		}
	}
	if get(out, "content") == nil {
		set(out, "content", "")
	}
	return out, nil
}

func (m *Model) content(v any) (any, error) {
	if v == nil {
		return "", nil
	}
	if s, ok := v.(string); ok {
		if m.chat.parts {
			return parts([]string{s}), nil
		}
		return s, nil
	}
	list, ok := v.([]any)
	if !ok {
		return nil, refused("content is neither text nor parts")
	}
	var texts []string
	for _, part := range list {
		if s, ok := part.(string); ok {
			texts = append(texts, s)
			continue
		}
		o, ok := part.(*exec.Dict)
		if !ok || get(o, "type") != "text" {
			return nil, refused("a part is not text")
		}
		s, ok := get(o, "text").(string)
		if !ok {
			return nil, refused("a part is not text")
		}
		texts = append(texts, s)
	}
	if m.chat.parts {
		return parts(texts), nil
	}
	return strings.Join(texts, "\n"), nil
}

func parts(texts []string) []any {
	all := []any{}
	for _, s := range texts {
		o := exec.NewDict()
		set(o, "type", "text")
		set(o, "text", s)
		all = append(all, o)
	}
	return all
}

// readArguments replaces the arguments of a call, JSON in a string, by an object.
func readArguments(call any) error {
	o, ok := call.(*exec.Dict)
	if !ok {
		return refused("a call is not an object")
	}
	f, ok := get(o, "function").(*exec.Dict)
	if !ok {
		return refused("a call is not of a function")
	}
	switch a := get(f, "arguments").(type) {
	case string:
		if a == "" {
			a = "{}"
		}
		v, err := object([]byte(a))
		if err != nil {
			return err
		}
		set(f, "arguments", v)
	case nil:
		set(f, "arguments", exec.NewDict())
	}
	return nil
}

// tool converts a tool to what engines pass to templates: its members in their own
// order. It refuses tools that lack members which engines fill in differently.
func tool(text []byte) (*exec.Dict, error) {
	in, err := object(text)
	if err != nil {
		return nil, err
	}
	f, ok := get(in, "function").(*exec.Dict)
	if !ok || get(in, "type") != "function" || len(in.Pairs) != 2 {
		return nil, refused("a tool that is more or less than a function")
	}
	function := exec.NewDict()
	for _, name := range [...]string{"name", "description", "parameters"} {
		v := get(f, name)
		if v == nil {
			return nil, refused("a tool without %s", name)
		}
		set(function, name, v)
	}
	if len(f.Pairs) != len(function.Pairs) {
		return nil, refused("a tool with more than name, description and parameters")
	}
	out := exec.NewDict()
	set(out, "type", "function")
	set(out, "function", function)
	return out, nil
}
