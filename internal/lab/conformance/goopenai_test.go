package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"

	gopenai "github.com/sashabaranov/go-openai"
)

// The client of OpenAI's API that Go programs used before there was an official one.

func newGoOpenAI(url string) *gopenai.Client {
	c := gopenai.DefaultConfig("key")
	c.BaseURL, c.HTTPClient = url+"/v1", &http.Client{Transport: &http.Transport{}}
	return gopenai.NewClientWithConfig(c)
}

func goOpenAIRequest(q string) gopenai.ChatCompletionRequest {
	return gopenai.ChatCompletionRequest{
		Model: model, MaxTokens: maxTokens, Temperature: math.SmallestNonzeroFloat32, // it omits a zero
		Messages: []gopenai.ChatCompletionMessage{
			{Role: gopenai.ChatMessageRoleSystem, Content: "Be brief."}, {Role: gopenai.ChatMessageRoleUser, Content: q},
		},
	}
}

// say adds a value as JSON, or an error with what the client knows of it.
func (l *lines) say(v any, err error) {
	var refused *gopenai.APIError
	switch {
	case errors.As(err, &refused):
		l.add("error %T: %d %s %v %s", err, refused.HTTPStatusCode, refused.Type, refused.Code, refused.Message)
	case err != nil:
		l.add("error %T: %v", err, err)
	default:
		text, err := json.Marshal(v)
		l.add("%s %v", text, err)
	}
}

func goOpenAIWhole(ctx context.Context, url string, told *lines, r gopenai.ChatCompletionRequest) *gopenai.ChatCompletionMessage {
	answer, err := newGoOpenAI(url).CreateChatCompletion(ctx, r)
	told.say(answer, err)
	if err != nil || len(answer.Choices) == 0 {
		return nil
	}
	return &answer.Choices[0].Message
}

// goOpenAIStream reads a stream to its end, or until n events with text have come, if
// n is not zero.
func goOpenAIStream(ctx context.Context, url string, told *lines, r gopenai.ChatCompletionRequest, most int) {
	s, err := newGoOpenAI(url).CreateChatCompletionStream(ctx, r)
	if err != nil {
		told.say(nil, err)
		return
	}
	defer s.Close()
	for n := 0; ; {
		e, err := s.Recv()
		if err != nil {
			if err == io.EOF {
				told.add("end: <nil>")
			} else {
				told.add("end: %v", err)
			}
			return
		}
		told.say(e, nil)
		if len(e.Choices) > 0 && e.Choices[0].Delta.Content != "" {
			if n++; n == most {
				told.add("left")
				return
			}
		}
	}
}

var goOpenAIChat = map[string]do{
	"whole": func(ctx context.Context, url string, told *lines) {
		goOpenAIWhole(ctx, url, told, goOpenAIRequest(question))
	},
	"stream": func(ctx context.Context, url string, told *lines) {
		r := goOpenAIRequest(question)
		goOpenAIStream(ctx, url, told, r, 0)
		r.StreamOptions = &gopenai.StreamOptions{IncludeUsage: true}
		goOpenAIStream(ctx, url, told, r, 0)
	},
	"tools": func(ctx context.Context, url string, told *lines) {
		r := goOpenAIRequest(askForCall)
		r.MaxTokens = 0
		r.Tools = []gopenai.Tool{{Type: gopenai.ToolTypeFunction, Function: &gopenai.FunctionDefinition{Name: "weather", Parameters: weatherSchema}}}
		if m := goOpenAIWhole(ctx, url, told, r); m != nil && len(m.ToolCalls) > 0 {
			r.Messages = append(r.Messages, *m, gopenai.ChatCompletionMessage{
				Role: gopenai.ChatMessageRoleTool, Content: result, ToolCallID: m.ToolCalls[0].ID,
			})
			goOpenAIWhole(ctx, url, told, r)
		}
	},
	"two turns": func(ctx context.Context, url string, told *lines) {
		r := goOpenAIRequest(question)
		if m := goOpenAIWhole(ctx, url, told, r); m != nil {
			r.Messages = append(r.Messages, *m, gopenai.ChatCompletionMessage{Role: gopenai.ChatMessageRoleUser, Content: second})
			goOpenAIWhole(ctx, url, told, r)
		}
	},
	"abort": func(ctx context.Context, url string, told *lines) {
		r := goOpenAIRequest(question)
		r.MaxTokens = longest
		goOpenAIStream(ctx, url, told, r, heard)
	},
	"errors": func(ctx context.Context, url string, told *lines) {
		for _, status := range statuses {
			goOpenAIWhole(ctx, url, told, goOpenAIRequest(askForError(status)))
			goOpenAIStream(ctx, url, told, goOpenAIRequest(askForError(status)), 0)
		}
	},
	"unknown model": func(ctx context.Context, url string, told *lines) {
		r := goOpenAIRequest(question)
		r.Model = "nobody-has-it"
		goOpenAIWhole(ctx, url, told, r)
	},
	"cut": func(ctx context.Context, url string, told *lines) {
		goOpenAIStream(ctx, url, told, goOpenAIRequest(askForCut), 0)
		goOpenAIWhole(ctx, url, told, goOpenAIRequest(askForCut))
	},
}
