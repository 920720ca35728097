package conformance

import (
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func newOpenAI(s *session, retries int) openai.Client {
	return openai.NewClient(option.WithBaseURL(s.url+"/v1"), option.WithAPIKey("key"), option.WithMaxRetries(retries),
		option.WithHTTPClient(&http.Client{Transport: &http.Transport{}}))
}

var weatherSchema = map[string]any{
	"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"},
}

func chatParams(q string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model, MaxTokens: openai.Int(maxTokens), Temperature: openai.Float(0),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage(q)},
	}
}

func toolParams() openai.ChatCompletionNewParams {
	p := chatParams(askForCall)
	p.MaxTokens = param.Opt[int64]{}
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(
		shared.FunctionDefinitionParam{Name: "weather", Parameters: weatherSchema})}
	return p
}

func chatWhole(s *session, p openai.ChatCompletionNewParams, retries int) *openai.ChatCompletion {
	client := newOpenAI(s, retries)
	r, err := client.Chat.Completions.New(s.ctx, p)
	return whole(s, r, err)
}

func chatStream(s *session, p openai.ChatCompletionNewParams) *openai.ChatCompletion {
	client := newOpenAI(s, 0)
	var all openai.ChatCompletionAccumulator
	read(s, client.Chat.Completions.NewStreaming(s.ctx, p), func(c openai.ChatCompletionChunk) { all.AddChunk(c) })
	return &all.ChatCompletion
}

// loop appends the result of a tool call.
func loop(p *openai.ChatCompletionNewParams, r *openai.ChatCompletion) bool {
	if r == nil || len(r.Choices) == 0 || len(r.Choices[0].Message.ToolCalls) == 0 {
		return false
	}
	m := r.Choices[0].Message
	p.Messages = append(p.Messages, m.ToParam(), openai.ToolMessage(result, m.ToolCalls[0].ID))
	return true
}

var openaiChat = withErrors(
	func(s *session, q string, retries int) { chatWhole(s, chatParams(q), retries) },
	func(s *session, q string) { chatStream(s, chatParams(q)) },
	map[string]do{
		"stream": func(s *session) {
			p := chatParams(question)
			chatStream(s, p)
			p.StreamOptions.IncludeUsage = openai.Bool(true)
			chatStream(s, p)
		},
		"n = 2": func(s *session) {
			p := chatParams(question)
			p.N = openai.Int(2)
			chatWhole(s, p, 0)
		},
		"n = 2, stream": func(s *session) {
			p := chatParams(question)
			p.N = openai.Int(2)
			chatStream(s, p)
		},
		"tools": func(s *session) {
			p := toolParams()
			if loop(&p, chatWhole(s, p, 0)) {
				chatWhole(s, p, 0)
			}
		},
		"tools, stream": func(s *session) {
			p := toolParams()
			if loop(&p, chatStream(s, p)) {
				chatStream(s, p)
			}
		},
		"thinking": func(s *session) {
			p := chatParams(question)
			p.ReasoningEffort = shared.ReasoningEffortLow
			chatWhole(s, p, 0)
		},
		"thinking, stream": func(s *session) {
			p := chatParams(question)
			p.ReasoningEffort = shared.ReasoningEffortLow
			chatStream(s, p)
		},
		"two turns": func(s *session) {
			p := chatParams(question)
			if r := chatWhole(s, p, 0); r != nil {
				p.Messages = append(p.Messages, r.Choices[0].Message.ToParam(), openai.UserMessage(second))
				chatWhole(s, p, 0)
			}
		},
		"abort": func(s *session) {
			p := chatParams(question)
			p.MaxTokens = openai.Int(longest)
			client := newOpenAI(s, 0)
			leave(s, client.Chat.Completions.NewStreaming(s.ctx, p), func(c openai.ChatCompletionChunk) string {
				if len(c.Choices) == 0 {
					return ""
				}
				return c.Choices[0].Delta.Content
			})
		},
		"unknown model": func(s *session) {
			p := chatParams(question)
			p.Model = "nobody-has-it"
			chatWhole(s, p, 0)
		},
	},
)

func responseParams(q string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: model, MaxOutputTokens: openai.Int(maxTokens), Temperature: openai.Float(0), Instructions: openai.String("Be brief."),
		Input: responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
			responses.ResponseInputItemParamOfMessage(q, responses.EasyInputMessageRoleUser),
		}},
	}
}

func responseWhole(s *session, p responses.ResponseNewParams, retries int) *responses.Response {
	client := newOpenAI(s, retries)
	r, err := client.Responses.New(s.ctx, p)
	return whole(s, r, err)
}

func responseStream(s *session, p responses.ResponseNewParams) (last *responses.Response) {
	client := newOpenAI(s, 0)
	read(s, client.Responses.NewStreaming(s.ctx, p), func(e responses.ResponseStreamEventUnion) {
		if e.Response.Usage.TotalTokens > 0 {
			last = &e.Response
		}
	})
	return last
}

// returned answers the call in a response; nil if there is none.
func returned(r *responses.Response) (call, output []responses.ResponseInputItemUnionParam) {
	if r == nil {
		return nil, nil
	}
	for _, item := range r.Output {
		if item.Type == "function_call" {
			call = append(call, responses.ResponseInputItemParamOfFunctionCall(item.Arguments.OfString, item.CallID, item.Name))
			one := responses.ResponseInputItemParamOfFunctionCallOutput(result)
			one.OfFunctionCallOutput.CallID = openai.String(item.CallID)
			output = append(output, one)
		}
	}
	return call, output
}

func responseTools() responses.ResponseNewParams {
	p := responseParams(askForCall)
	p.MaxOutputTokens = param.Opt[int64]{}
	p.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("weather", weatherSchema, false)}
	return p
}

var openaiResponses = withErrors(
	func(s *session, q string, retries int) { responseWhole(s, responseParams(q), retries) },
	func(s *session, q string) { responseStream(s, responseParams(q)) },
	map[string]do{
		"stream": func(s *session) { responseStream(s, responseParams(question)) },
		"tools": func(s *session) {
			p := responseTools()
			if call, output := returned(responseWhole(s, p, 0)); output != nil {
				p.Input.OfInputItemList = append(append(p.Input.OfInputItemList, call...), output...)
				responseWhole(s, p, 0)
			}
		},
		"tools, stream": func(s *session) {
			p := responseTools()
			if call, output := returned(responseStream(s, p)); output != nil {
				p.Input.OfInputItemList = append(append(p.Input.OfInputItemList, call...), output...)
				responseStream(s, p)
			}
		},
		"thinking": func(s *session) {
			p := responseParams(question)
			p.Reasoning = shared.ReasoningParam{Effort: shared.ReasoningEffortLow}
			responseWhole(s, p, 0)
		},
		"thinking, stream": func(s *session) {
			p := responseParams(question)
			p.Reasoning = shared.ReasoningParam{Effort: shared.ReasoningEffortLow}
			responseStream(s, p)
		},
		"previous response": func(s *session) {
			p := responseTools()
			for range 3 {
				r := responseStream(s, p)
				if r == nil {
					return
				}
				p.PreviousResponseID = openai.String(r.ID)
				p.Input.OfInputItemList = responses.ResponseInputParam{
					responses.ResponseInputItemParamOfMessage(second, responses.EasyInputMessageRoleUser),
				}
				if _, output := returned(r); output != nil {
					p.Input.OfInputItemList = output
				}
			}
		},
		"abort": func(s *session) {
			p := responseParams(question)
			p.MaxOutputTokens = openai.Int(longest)
			client := newOpenAI(s, 0)
			leave(s, client.Responses.NewStreaming(s.ctx, p), func(e responses.ResponseStreamEventUnion) string {
				if e.Type != "response.output_text.delta" {
					return ""
				}
				return e.Type
			})
		},
		"unknown model": func(s *session) {
			p := responseParams(question)
			p.Model = "nobody-has-it"
			responseWhole(s, p, 0)
		},
		"WebSocket": func(s *session) {
			client := newOpenAI(s, 0)
			c, err := client.Responses.Connect(s.ctx, responses.ResponseConnectionOptions{})
			if err != nil {
				s.add("error: %v", err)
				return
			}
			for _, text := range []string{`{"type":"response.create"}`, `{"n":2}`} {
				if err := c.SendRaw(s.ctx, []byte(text)); err != nil {
					s.add("error: %v", err)
				}
				data, err := c.RecvRaw(s.ctx)
				s.add("%s %v", data, err)
			}
			s.add("end: %v", c.Close())
		},
	},
)
