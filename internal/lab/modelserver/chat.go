package modelserver

import (
	"encoding/json"
	"fmt"
)

// params are the fields that both of OpenAI's older kinds of request have.
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
	Messages        []message       `json:"messages"`
	Tools           json.RawMessage `json:"tools"`
	ReasoningEffort string          `json:"reasoning_effort"`
	Continue        bool            `json:"continue_final_message"`
}

type message struct {
	Role             string          `json:"role"`
	Content          json.RawMessage `json:"content"`
	ReasoningContent string          `json:"reasoning_content"`
	ToolCalls        []toolCall      `json:"tool_calls"`
}

type toolCall struct {
	Index    *int     `json:"index,omitempty"` // in streams
	ID       string   `json:"id,omitempty"`
	Type     string   `json:"type,omitempty"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// question converts params.
func (p *params) question(a api) *question {
	q := &question{
		model: p.Model, stream: p.Stream, choices: p.N,
		limits:    map[string]*int{"max_tokens": p.MaxTokens, "max_completion_tokens": p.MaxCompletionTokens},
		maxTokens: p.MaxTokens,
		writer: func(o *responder) writer {
			return &choiceWriter{responder: o, api: a, usageAsked: p.StreamOptions.IncludeUsage}
		},
	}
	if p.MaxCompletionTokens != nil { // the newer name
		q.maxTokens = p.MaxCompletionTokens
	}
	return q
}

func parseChat(s *Server, body []byte) (*question, *apiError) {
	var req chatRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, invalid("", "the body is not valid: %v", err)
	}
	if len(req.Messages) == 0 {
		return nil, invalid("messages", "messages is missing or empty")
	}
	c := conversation{salt: req.CacheSalt, tools: req.Tools, continues: req.Continue}
	for i, m := range req.Messages {
		parts, err := readContent(m.Content)
		if err != nil {
			return nil, invalid(fmt.Sprintf("messages[%d].content", i), "messages[%d].content %v", i, err)
		}
		if m.ReasoningContent != "" {
			parts = append([]part{{kind: thinkingPart, text: m.ReasoningContent}}, parts...)
		}
		for _, one := range m.ToolCalls {
			parts = append(parts, part{kind: callPart, name: one.Function.Name, text: one.Function.Arguments})
		}
		c.turns = append(c.turns, turn{m.Role, parts})
	}
	q := req.params.question(chatAPI)
	q.thinking = req.ReasoningEffort != "" && req.ReasoningEffort != "none"
	q.ask(&c, s.block)
	return q, nil
}

type completionRequest struct {
	params
	Prompt string `json:"prompt"`
}

func parseCompletion(s *Server, body []byte) (*question, *apiError) {
	var req completionRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, invalid("", "the body is not valid: %v", err)
	}
	if req.Prompt == "" {
		return nil, invalid("prompt", "prompt is missing or empty")
	}
	q := req.params.question(completionAPI)
	q.prompt = newTokens(s.block, req.CacheSalt)
	q.prompt.addText(req.Prompt)
	q.script = readScript(req.Prompt, false)
	return q, nil
}
