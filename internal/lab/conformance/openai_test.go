package conformance

import (
	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func newOpenAI(s *session) *openai.Client {
	c := openai.NewClient(option.WithBaseURL(s.url+"/v1"), option.WithAPIKey("key"), option.WithMaxRetries(s.retries),
		option.WithHTTPClient(s.client()))
	return &c
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

func chatWhole(s *session, p openai.ChatCompletionNewParams) *openai.ChatCompletion {
	r, err := newOpenAI(s).Chat.Completions.New(s.ctx, p)
	return whole(s, r, err)
}

func chatStream(s *session, p openai.ChatCompletionNewParams) *openai.ChatCompletion {
	var all openai.ChatCompletionAccumulator
	read(s, newOpenAI(s).Chat.Completions.NewStreaming(s.ctx, p), func(c openai.ChatCompletionChunk) { all.AddChunk(c) })
	return &all.ChatCompletion
}

// loop appends the answer, and the result of its tool call or the next question.
func loop(p *openai.ChatCompletionNewParams, r *openai.ChatCompletion) bool {
	if r == nil || len(r.Choices) == 0 {
		return false
	}
	m := r.Choices[0].Message
	next := openai.UserMessage(second)
	if len(m.ToolCalls) > 0 {
		next = openai.ToolMessage(result, m.ToolCalls[0].ID)
	}
	p.Messages = append(p.Messages, m.ToParam(), next)
	return true
}

var (
	chatAPI    = api[openai.ChatCompletionNewParams, *openai.ChatCompletion]{chatParams, chatWhole, chatStream}
	openaiChat = chatAPI.scenarios(map[string]func(*openai.ChatCompletionNewParams){
		"n = 2":    func(p *openai.ChatCompletionNewParams) { p.N = openai.Int(2) },
		"thinking": func(p *openai.ChatCompletionNewParams) { p.ReasoningEffort = shared.ReasoningEffortLow },
	}, map[string]do{
		"stream": func(s *session) {
			p := chatParams(question)
			chatStream(s, p)
			p.StreamOptions.IncludeUsage = openai.Bool(true)
			chatStream(s, p)
		},
		"tools":         twice(toolParams, chatWhole, loop),
		"tools, stream": twice(toolParams, chatStream, loop),
		"two turns":     twice(func() openai.ChatCompletionNewParams { return chatParams(question) }, chatWhole, loop),
		"abort": func(s *session) {
			p := chatParams(question)
			p.MaxTokens = openai.Int(longest)
			leave(s, newOpenAI(s).Chat.Completions.NewStreaming(s.ctx, p), func(c openai.ChatCompletionChunk) string {
				if len(c.Choices) == 0 {
					return ""
				}
				return c.Choices[0].Delta.Content
			})
		},
		"unknown model": chatAPI.changed(func(p *openai.ChatCompletionNewParams) { p.Model = nobodys }, chatWhole),
	})
)

func responseParams(q string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: model, MaxOutputTokens: openai.Int(maxTokens), Temperature: openai.Float(0), Instructions: openai.String("Be brief."),
		Input: responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
			responses.ResponseInputItemParamOfMessage(q, responses.EasyInputMessageRoleUser),
		}},
	}
}

func responseWhole(s *session, p responses.ResponseNewParams) *responses.Response {
	r, err := newOpenAI(s).Responses.New(s.ctx, p)
	return whole(s, r, err)
}

func responseStream(s *session, p responses.ResponseNewParams) (last *responses.Response) {
	read(s, newOpenAI(s).Responses.NewStreaming(s.ctx, p), func(e responses.ResponseStreamEventUnion) {
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

// respond appends the calls in a response and what they returned, if there are any.
func respond(p *responses.ResponseNewParams, r *responses.Response) bool {
	call, output := returned(r)
	p.Input.OfInputItemList = append(append(p.Input.OfInputItemList, call...), output...)
	return output != nil
}

func responseTools() responses.ResponseNewParams {
	p := responseParams(askForCall)
	p.MaxOutputTokens = param.Opt[int64]{}
	p.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("weather", weatherSchema, false)}
	return p
}

var (
	responsesAPI    = api[responses.ResponseNewParams, *responses.Response]{responseParams, responseWhole, responseStream}
	openaiResponses = responsesAPI.scenarios(map[string]func(*responses.ResponseNewParams){
		"thinking": func(p *responses.ResponseNewParams) {
			p.Reasoning = shared.ReasoningParam{Effort: shared.ReasoningEffortLow}
		},
	}, map[string]do{
		"tools":         twice(responseTools, responseWhole, respond),
		"tools, stream": twice(responseTools, responseStream, respond),
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
			leave(s, newOpenAI(s).Responses.NewStreaming(s.ctx, p), func(e responses.ResponseStreamEventUnion) string {
				if e.Type != "response.output_text.delta" {
					return ""
				}
				return e.Type
			})
		},
		"unknown model": responsesAPI.changed(func(p *responses.ResponseNewParams) { p.Model = nobodys }, responseWhole),
		"WebSocket": func(s *session) {
			c, err := newOpenAI(s).Responses.Connect(s.ctx, responses.ResponseConnectionOptions{})
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
	})
)

// Completions, the API before chats, which engines still have, and the list of models.

func completionParams(q string) openai.CompletionNewParams {
	return openai.CompletionNewParams{
		Model: model, MaxTokens: openai.Int(maxTokens), Temperature: openai.Float(0),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(q)},
	}
}

func completionWhole(s *session, p openai.CompletionNewParams) *openai.Completion {
	r, err := newOpenAI(s).Completions.New(s.ctx, p)
	return whole(s, r, err)
}

func completionStream(s *session, p openai.CompletionNewParams) *openai.Completion {
	read(s, newOpenAI(s).Completions.NewStreaming(s.ctx, p), func(openai.Completion) {})
	return nil
}

var (
	completionsAPI    = api[openai.CompletionNewParams, *openai.Completion]{completionParams, completionWhole, completionStream}
	openaiCompletions = completionsAPI.scenarios(map[string]func(*openai.CompletionNewParams){
		"n = 2": func(p *openai.CompletionNewParams) { p.N = openai.Int(2) },
	}, map[string]do{
		"stream": func(s *session) {
			p := completionParams(question)
			completionStream(s, p)
			p.StreamOptions.IncludeUsage = openai.Bool(true)
			completionStream(s, p)
		},
		"abort": func(s *session) {
			p := completionParams(question)
			p.MaxTokens = openai.Int(longest)
			leave(s, newOpenAI(s).Completions.NewStreaming(s.ctx, p), func(c openai.Completion) string {
				if len(c.Choices) == 0 {
					return ""
				}
				return c.Choices[0].Text
			})
		},
		"unknown model": completionsAPI.changed(func(p *openai.CompletionNewParams) { p.Model = nobodys }, completionWhole),
	})
)

func oneModel(s *session, name string) {
	m, err := newOpenAI(s).Models.Get(s.ctx, name)
	if err != nil {
		s.add("error %T: %v", err, err)
		return
	}
	s.add("%s %s", m.ID, m.Object)
}

var openaiModels = map[string]do{
	"list of models": func(s *session) {
		all := newOpenAI(s).Models.ListAutoPaging(s.ctx)
		for all.Next() {
			s.add("%s %s", all.Current().ID, all.Current().Object)
		}
		s.add("end: %v", all.Err())
	},
	"one model":     func(s *session) { oneModel(s, model) },
	"unknown model": func(s *session) { oneModel(s, nobodys) },
}

var anthropicModels = map[string]do{
	"list of models": func(s *session) {
		all := newAnthropic(s).Models.ListAutoPaging(s.ctx, anthropic.ModelListParams{})
		for all.Next() {
			s.add("%s", all.Current().ID)
		}
		s.add("end: %v", all.Err())
	},
	"one model": func(s *session) {
		m, err := newAnthropic(s).Models.Get(s.ctx, model, anthropic.ModelGetParams{})
		if err != nil {
			s.add("error %T: %v", err, err)
			return
		}
		s.add("%s", m.ID)
	},
}
