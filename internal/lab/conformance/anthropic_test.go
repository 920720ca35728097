package conformance

import (
	"net/http"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

func newAnthropic(s *session, retries int) anthropic.Client {
	return anthropic.NewClient(option.WithBaseURL(s.url), option.WithAPIKey("key"), option.WithMaxRetries(retries),
		option.WithHTTPClient(&http.Client{Transport: &http.Transport{}}))
}

func messageParams(q string) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{
		Model: model, MaxTokens: maxTokens, Temperature: anthropic.Float(0), System: []anthropic.TextBlockParam{{Text: "Be brief."}},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(q))},
	}
}

func messageTools() anthropic.MessageNewParams {
	p := messageParams(askForCall)
	p.MaxTokens = 64
	p.Tools = []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(anthropic.ToolInputSchemaParam{
		Properties: weatherSchema["properties"], Required: []string{"city"},
	}, "weather")}
	return p
}

func messageWhole(s *session, p anthropic.MessageNewParams, retries int) *anthropic.Message {
	client := newAnthropic(s, retries)
	r, err := client.Messages.New(s.ctx, p)
	return whole(s, r, err)
}

func messageStream(s *session, p anthropic.MessageNewParams) *anthropic.Message {
	client := newAnthropic(s, 0)
	var all anthropic.Message
	read(s, client.Messages.NewStreaming(s.ctx, p), func(e anthropic.MessageStreamEventUnion) {
		if err := all.Accumulate(e); err != nil {
			s.add("error: %v", err)
		}
	})
	return &all
}

// turn appends the message with an answer to its tool call, or the next question.
func turn(p *anthropic.MessageNewParams, r *anthropic.Message) bool {
	if r == nil || len(r.Content) == 0 {
		return false
	}
	next := anthropic.NewTextBlock(second)
	for _, block := range r.Content {
		if block.Type == "tool_use" {
			next = anthropic.NewToolResultBlock(block.ID, result, false)
		}
	}
	p.Messages = append(p.Messages, r.ToParam(), anthropic.NewUserMessage(next))
	return true
}

func thinkingParams() anthropic.MessageNewParams {
	p := messageParams(question)
	p.Thinking = anthropic.ThinkingConfigParamOfEnabled(1024)
	return p
}

var anthropicMessages = withErrors(
	func(s *session, q string, retries int) { messageWhole(s, messageParams(q), retries) },
	func(s *session, q string) { messageStream(s, messageParams(q)) },
	map[string]do{
		"stream": func(s *session) { messageStream(s, messageParams(question)) },
		"tools": func(s *session) {
			p := messageTools()
			if turn(&p, messageWhole(s, p, 0)) {
				messageWhole(s, p, 0)
			}
		},
		"tools, stream": func(s *session) {
			p := messageTools()
			p.Thinking = anthropic.ThinkingConfigParamOfEnabled(1024)
			if turn(&p, messageStream(s, p)) {
				messageStream(s, p)
			}
		},
		"thinking":         func(s *session) { messageWhole(s, thinkingParams(), 0) },
		"thinking, stream": func(s *session) { messageStream(s, thinkingParams()) },
		"two turns": func(s *session) {
			p := messageParams(question)
			if turn(&p, messageWhole(s, p, 0)) {
				messageWhole(s, p, 0)
			}
		},
		"count tokens": func(s *session) {
			client := newAnthropic(s, 0)
			r, err := client.Messages.CountTokens(s.ctx, anthropic.MessageCountTokensParams{
				Model: model, Messages: messageParams(question).Messages,
			})
			whole(s, r, err)
		},
		"abort": func(s *session) {
			p := messageParams(question)
			p.MaxTokens = longest
			client := newAnthropic(s, 0)
			leave(s, client.Messages.NewStreaming(s.ctx, p), func(e anthropic.MessageStreamEventUnion) string { return e.Delta.Text })
		},
		"unknown model": func(s *session) {
			p := messageParams(question)
			p.Model = "nobody-has-it"
			messageWhole(s, p, 0)
		},
	},
)
