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

// goOpenAIStream reads a stream to its end, or until n events with text have come, if
// n is not zero.
func goOpenAIStream(s *session, r gopenai.ChatCompletionRequest, most int) {
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

var goOpenAIChat = map[string]do{
	"whole": func(s *session) { goOpenAIWhole(s, goOpenAIRequest(question)) },
	"stream": func(s *session) {
		r := goOpenAIRequest(question)
		goOpenAIStream(s, r, 0)
		r.StreamOptions = &gopenai.StreamOptions{IncludeUsage: true}
		goOpenAIStream(s, r, 0)
	},
	"tools": func(s *session) {
		r := goOpenAIRequest(askForCall)
		r.MaxTokens = 0
		r.Tools = []gopenai.Tool{{Type: gopenai.ToolTypeFunction, Function: &gopenai.FunctionDefinition{Name: "weather", Parameters: weatherSchema}}}
		if m := goOpenAIWhole(s, r); m != nil && len(m.ToolCalls) > 0 {
			r.Messages = append(r.Messages, *m, gopenai.ChatCompletionMessage{
				Role: gopenai.ChatMessageRoleTool, Content: result, ToolCallID: m.ToolCalls[0].ID,
			})
			goOpenAIWhole(s, r)
		}
	},
	"two turns": func(s *session) {
		r := goOpenAIRequest(question)
		if m := goOpenAIWhole(s, r); m != nil {
			r.Messages = append(r.Messages, *m, gopenai.ChatCompletionMessage{Role: gopenai.ChatMessageRoleUser, Content: second})
			goOpenAIWhole(s, r)
		}
	},
	"abort": func(s *session) {
		r := goOpenAIRequest(question)
		r.MaxTokens = longest
		goOpenAIStream(s, r, heard)
	},
	"errors": func(s *session) {
		for _, status := range statuses {
			goOpenAIWhole(s, goOpenAIRequest(askForError(status)))
			goOpenAIStream(s, goOpenAIRequest(askForError(status)), 0)
		}
	},
	"unknown model": func(s *session) {
		r := goOpenAIRequest(question)
		r.Model = nobodys
		goOpenAIWhole(s, r)
	},
	"cut": func(s *session) {
		goOpenAIStream(s, goOpenAIRequest(askForCut), 0)
		goOpenAIWhole(s, goOpenAIRequest(askForCut))
	},
}
