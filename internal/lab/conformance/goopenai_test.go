package conformance

import (
	"encoding/json"
	"errors"
	"io"
	"math"

	gopenai "github.com/sashabaranov/go-openai"
)

// The client of OpenAI's API that Go programs used before there was an official one.

func newGoOpenAI(s *session) *gopenai.Client {
	c := gopenai.DefaultConfig("key")
	c.BaseURL, c.HTTPClient = s.url+"/v1", s.client()
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
func (s *session) say(v any, err error) {
	var refused *gopenai.APIError
	switch {
	case errors.As(err, &refused):
		s.add("error %T: %d %s %v %s", err, refused.HTTPStatusCode, refused.Type, refused.Code, refused.Message)
	case err != nil:
		s.add("error %T: %v", err, err)
	default:
		text, err := json.Marshal(v)
		s.add("%s %v", text, err)
	}
}

func goOpenAIWhole(s *session, r gopenai.ChatCompletionRequest) *gopenai.ChatCompletionMessage {
	answer, err := newGoOpenAI(s).CreateChatCompletion(s.ctx, r)
	s.say(answer, err)
	if err != nil || len(answer.Choices) == 0 {
		return nil
	}
	return &answer.Choices[0].Message
}

func goOpenAIStream(s *session, r gopenai.ChatCompletionRequest) *gopenai.ChatCompletionMessage {
	goOpenAIRead(s, r, 0)
	return nil
}

// goOpenAIRead reads a stream to its end, or until n events with text have come, if n is not zero.
func goOpenAIRead(s *session, r gopenai.ChatCompletionRequest, most int) {
	in, err := newGoOpenAI(s).CreateChatCompletionStream(s.ctx, r)
	if err != nil {
		s.say(nil, err)
		return
	}
	defer in.Close()
	for n := 0; ; {
		e, err := in.Recv()
		if err != nil {
			if err == io.EOF {
				s.add("end: <nil>")
			} else {
				s.add("end: %v", err)
			}
			return
		}
		s.say(e, nil)
		if len(e.Choices) > 0 && e.Choices[0].Delta.Content != "" {
			if n++; n == most {
				s.add("left")
				return
			}
		}
	}
}

func goOpenAITools() gopenai.ChatCompletionRequest {
	r := goOpenAIRequest(askForCall)
	r.MaxTokens = 0
	r.Tools = []gopenai.Tool{{Type: gopenai.ToolTypeFunction, Function: &gopenai.FunctionDefinition{Name: "weather", Parameters: weatherSchema}}}
	return r
}

// goOpenAINext appends the answer, and the result of its tool call or the next question.
func goOpenAINext(r *gopenai.ChatCompletionRequest, m *gopenai.ChatCompletionMessage) bool {
	if m == nil {
		return false
	}
	next := gopenai.ChatCompletionMessage{Role: gopenai.ChatMessageRoleUser, Content: second}
	if len(m.ToolCalls) > 0 {
		next = gopenai.ChatCompletionMessage{Role: gopenai.ChatMessageRoleTool, Content: result, ToolCallID: m.ToolCalls[0].ID}
	}
	r.Messages = append(r.Messages, *m, next)
	return true
}

var (
	goOpenAIAPI  = api[gopenai.ChatCompletionRequest, *gopenai.ChatCompletionMessage]{goOpenAIRequest, goOpenAIWhole, goOpenAIStream}
	goOpenAIChat = goOpenAIAPI.scenarios(nil, map[string]do{
		"stream": func(s *session) {
			r := goOpenAIRequest(question)
			goOpenAIStream(s, r)
			r.StreamOptions = &gopenai.StreamOptions{IncludeUsage: true}
			goOpenAIStream(s, r)
		},
		"retries":   nil, // it has none
		"tools":     twice(goOpenAITools, goOpenAIWhole, goOpenAINext),
		"two turns": twice(func() gopenai.ChatCompletionRequest { return goOpenAIRequest(question) }, goOpenAIWhole, goOpenAINext),
		"abort": func(s *session) {
			r := goOpenAIRequest(question)
			r.MaxTokens = longest
			goOpenAIRead(s, r, heard)
		},
		"unknown model": goOpenAIAPI.changed(func(r *gopenai.ChatCompletionRequest) { r.Model = nobodys }, goOpenAIWhole),
	})
)
