package conformance

import (
	"context"
	"net/http"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

func newAnthropic(url string, retries int) anthropic.Client {
	return anthropic.NewClient(option.WithBaseURL(url), option.WithAPIKey("key"), option.WithMaxRetries(retries),
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

func messageWhole(ctx context.Context, url string, told *lines, p anthropic.MessageNewParams, retries int) *anthropic.Message {
	client := newAnthropic(url, retries)
	r, err := client.Messages.New(ctx, p)
	if err != nil {
		told.add("error %T: %v", err, err)
		return nil
	}
	told.add("%s", r.RawJSON())
	return r
}

func messageStream(ctx context.Context, url string, told *lines, p anthropic.MessageNewParams) *anthropic.Message {
	client := newAnthropic(url, 0)
	s := client.Messages.NewStreaming(ctx, p)
	defer s.Close()
	var all anthropic.Message
	for s.Next() {
		told.add("%s", s.Current().RawJSON())
		if err := all.Accumulate(s.Current()); err != nil {
			told.add("error: %v", err)
		}
	}
	told.add("end: %v", s.Err())
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

var anthropicMessages = map[string]do{
	"whole": func(ctx context.Context, url string, told *lines) {
		messageWhole(ctx, url, told, messageParams(question), 0)
	},
	"stream": func(ctx context.Context, url string, told *lines) {
		messageStream(ctx, url, told, messageParams(question))
	},
	"tools": func(ctx context.Context, url string, told *lines) {
		p := messageTools()
		if turn(&p, messageWhole(ctx, url, told, p, 0)) {
			messageWhole(ctx, url, told, p, 0)
		}
	},
	"tools, stream": func(ctx context.Context, url string, told *lines) {
		p := messageTools()
		p.Thinking = anthropic.ThinkingConfigParamOfEnabled(1024)
		if turn(&p, messageStream(ctx, url, told, p)) {
			messageStream(ctx, url, told, p)
		}
	},
	"thinking": func(ctx context.Context, url string, told *lines) {
		messageWhole(ctx, url, told, thinkingParams(), 0)
	},
	"thinking, stream": func(ctx context.Context, url string, told *lines) {
		messageStream(ctx, url, told, thinkingParams())
	},
	"two turns": func(ctx context.Context, url string, told *lines) {
		p := messageParams(question)
		if turn(&p, messageWhole(ctx, url, told, p, 0)) {
			messageWhole(ctx, url, told, p, 0)
		}
	},
	"count tokens": func(ctx context.Context, url string, told *lines) {
		client := newAnthropic(url, 0)
		r, err := client.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{
			Model: model, Messages: messageParams(question).Messages,
		})
		if err != nil {
			told.add("error: %v", err)
			return
		}
		told.add("%s", r.RawJSON())
	},
	"abort": func(ctx context.Context, url string, told *lines) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		p := messageParams(question)
		p.MaxTokens = longest
		client := newAnthropic(url, 0)
		s := client.Messages.NewStreaming(ctx, p)
		defer s.Close()
		for n := 0; n < heard && s.Next(); {
			told.add("%s", s.Current().RawJSON())
			if s.Current().Delta.Text != "" {
				n++
			}
		}
		cancel()
		for s.Next() {
		}
		told.add("end: %v", s.Err())
	},
	"errors": func(ctx context.Context, url string, told *lines) {
		for _, status := range statuses {
			messageWhole(ctx, url, told, messageParams(askForError(status)), 0)
			messageStream(ctx, url, told, messageParams(askForError(status)))
		}
	},
	"unknown model": func(ctx context.Context, url string, told *lines) {
		p := messageParams(question)
		p.Model = "nobody-has-it"
		messageWhole(ctx, url, told, p, 0)
	},
	"retries": func(ctx context.Context, url string, told *lines) {
		messageWhole(ctx, url, told, messageParams(askForRetry), 2)
	},
	"cut": func(ctx context.Context, url string, told *lines) {
		messageStream(ctx, url, told, messageParams(askForCut))
		messageWhole(ctx, url, told, messageParams(askForCut), 0)
	},
}
