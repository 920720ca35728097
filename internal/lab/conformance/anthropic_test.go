package conformance

import (
	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

func newAnthropic(s *session) *anthropic.Client {
	c := anthropic.NewClient(option.WithBaseURL(s.url), option.WithAPIKey("key"), option.WithMaxRetries(s.retries),
		option.WithHTTPClient(s.client()))
	return &c
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

func messageWhole(s *session, p anthropic.MessageNewParams) *anthropic.Message {
	r, err := newAnthropic(s).Messages.New(s.ctx, p)
	return whole(s, r, err)
}

func messageStream(s *session, p anthropic.MessageNewParams) *anthropic.Message {
	var all anthropic.Message
	read(s, newAnthropic(s).Messages.NewStreaming(s.ctx, p), func(e anthropic.MessageStreamEventUnion) {
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

func think(p *anthropic.MessageNewParams) { p.Thinking = anthropic.ThinkingConfigParamOfEnabled(1024) }

var (
	messagesAPI       = api[anthropic.MessageNewParams, *anthropic.Message]{messageParams, messageWhole, messageStream}
	anthropicMessages = messagesAPI.scenarios(map[string]func(*anthropic.MessageNewParams){"thinking": think}, map[string]do{
		"tools": twice(messageTools, messageWhole, turn),
		"tools, stream": twice(func() anthropic.MessageNewParams {
			p := messageTools()
			think(&p)
			return p
		}, messageStream, turn),
		"two turns": twice(func() anthropic.MessageNewParams { return messageParams(question) }, messageWhole, turn),
		"count tokens": func(s *session) {
			r, err := newAnthropic(s).Messages.CountTokens(s.ctx, anthropic.MessageCountTokensParams{
				Model: model, Messages: messageParams(question).Messages,
			})
			whole(s, r, err)
		},
		"abort": func(s *session) {
			p := messageParams(question)
			p.MaxTokens = longest
			leave(s, newAnthropic(s).Messages.NewStreaming(s.ctx, p), func(e anthropic.MessageStreamEventUnion) string { return e.Delta.Text })
		},
		"unknown model": messagesAPI.changed(func(p *anthropic.MessageNewParams) { p.Model = nobodys }, messageWhole),
	})
)
