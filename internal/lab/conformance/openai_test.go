package conformance

import (
	"context"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func newOpenAI(url string, retries int) openai.Client {
	return openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("key"), option.WithMaxRetries(retries),
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

func chatWhole(ctx context.Context, url string, told *lines, p openai.ChatCompletionNewParams, retries int) *openai.ChatCompletion {
	client := newOpenAI(url, retries)
	r, err := client.Chat.Completions.New(ctx, p)
	if err != nil {
		told.add("error %T: %v", err, err)
		return nil
	}
	told.add("%s", r.RawJSON())
	return r
}

func chatStream(ctx context.Context, url string, told *lines, p openai.ChatCompletionNewParams) *openai.ChatCompletion {
	client := newOpenAI(url, 0)
	s := client.Chat.Completions.NewStreaming(ctx, p)
	defer s.Close()
	var all openai.ChatCompletionAccumulator
	for s.Next() {
		told.add("%s", s.Current().RawJSON())
		all.AddChunk(s.Current())
	}
	told.add("end: %v", s.Err())
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

var openaiChat = map[string]do{
	"whole": func(ctx context.Context, url string, told *lines) {
		chatWhole(ctx, url, told, chatParams(question), 0)
	},
	"stream": func(ctx context.Context, url string, told *lines) {
		p := chatParams(question)
		chatStream(ctx, url, told, p)
		p.StreamOptions.IncludeUsage = openai.Bool(true)
		chatStream(ctx, url, told, p)
	},
	"n = 2": func(ctx context.Context, url string, told *lines) {
		p := chatParams(question)
		p.N = openai.Int(2)
		chatWhole(ctx, url, told, p, 0)
	},
	"n = 2, stream": func(ctx context.Context, url string, told *lines) {
		p := chatParams(question)
		p.N = openai.Int(2)
		chatStream(ctx, url, told, p)
	},
	"tools": func(ctx context.Context, url string, told *lines) {
		p := toolParams()
		if loop(&p, chatWhole(ctx, url, told, p, 0)) {
			chatWhole(ctx, url, told, p, 0)
		}
	},
	"tools, stream": func(ctx context.Context, url string, told *lines) {
		p := toolParams()
		if loop(&p, chatStream(ctx, url, told, p)) {
			chatStream(ctx, url, told, p)
		}
	},
	"thinking": func(ctx context.Context, url string, told *lines) {
		p := chatParams(question)
		p.ReasoningEffort = shared.ReasoningEffortLow
		chatWhole(ctx, url, told, p, 0)
	},
	"thinking, stream": func(ctx context.Context, url string, told *lines) {
		p := chatParams(question)
		p.ReasoningEffort = shared.ReasoningEffortLow
		chatStream(ctx, url, told, p)
	},
	"two turns": func(ctx context.Context, url string, told *lines) {
		p := chatParams(question)
		if r := chatWhole(ctx, url, told, p, 0); r != nil {
			p.Messages = append(p.Messages, r.Choices[0].Message.ToParam(), openai.UserMessage(second))
			chatWhole(ctx, url, told, p, 0)
		}
	},
	"abort": func(ctx context.Context, url string, told *lines) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		p := chatParams(question)
		p.MaxTokens = openai.Int(longest)
		client := newOpenAI(url, 0)
		s := client.Chat.Completions.NewStreaming(ctx, p)
		defer s.Close()
		for n := 0; n < heard && s.Next(); {
			c := s.Current()
			told.add("%s", c.RawJSON())
			if len(c.Choices) > 0 && c.Choices[0].Delta.Content != "" {
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
			chatWhole(ctx, url, told, chatParams(askForError(status)), 0)
			chatStream(ctx, url, told, chatParams(askForError(status)))
		}
	},
	"unknown model": func(ctx context.Context, url string, told *lines) {
		p := chatParams(question)
		p.Model = "nobody-has-it"
		chatWhole(ctx, url, told, p, 0)
	},
	"retries": func(ctx context.Context, url string, told *lines) {
		chatWhole(ctx, url, told, chatParams(askForRetry), 2)
	},
	"cut": func(ctx context.Context, url string, told *lines) {
		chatStream(ctx, url, told, chatParams(askForCut))
		chatWhole(ctx, url, told, chatParams(askForCut), 0)
	},
}

func responseParams(q string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: model, MaxOutputTokens: openai.Int(maxTokens), Temperature: openai.Float(0), Instructions: openai.String("Be brief."),
		Input: responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
			responses.ResponseInputItemParamOfMessage(q, responses.EasyInputMessageRoleUser),
		}},
	}
}

func responseWhole(ctx context.Context, url string, told *lines, p responses.ResponseNewParams, retries int) *responses.Response {
	client := newOpenAI(url, retries)
	r, err := client.Responses.New(ctx, p)
	if err != nil {
		told.add("error %T: %v", err, err)
		return nil
	}
	told.add("%s", r.RawJSON())
	return r
}

func responseStream(ctx context.Context, url string, told *lines, p responses.ResponseNewParams) (last *responses.Response) {
	client := newOpenAI(url, 0)
	s := client.Responses.NewStreaming(ctx, p)
	defer s.Close()
	for s.Next() {
		told.add("%s", s.Current().RawJSON())
		if s.Current().Response.Usage.TotalTokens > 0 {
			r := s.Current().Response
			last = &r
		}
	}
	told.add("end: %v", s.Err())
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

var openaiResponses = map[string]do{
	"whole": func(ctx context.Context, url string, told *lines) {
		responseWhole(ctx, url, told, responseParams(question), 0)
	},
	"stream": func(ctx context.Context, url string, told *lines) {
		responseStream(ctx, url, told, responseParams(question))
	},
	"tools": func(ctx context.Context, url string, told *lines) {
		p := responseTools()
		if call, output := returned(responseWhole(ctx, url, told, p, 0)); output != nil {
			p.Input.OfInputItemList = append(append(p.Input.OfInputItemList, call...), output...)
			responseWhole(ctx, url, told, p, 0)
		}
	},
	"tools, stream": func(ctx context.Context, url string, told *lines) {
		p := responseTools()
		if call, output := returned(responseStream(ctx, url, told, p)); output != nil {
			p.Input.OfInputItemList = append(append(p.Input.OfInputItemList, call...), output...)
			responseStream(ctx, url, told, p)
		}
	},
	"thinking": func(ctx context.Context, url string, told *lines) {
		p := responseParams(question)
		p.Reasoning = shared.ReasoningParam{Effort: shared.ReasoningEffortLow}
		responseWhole(ctx, url, told, p, 0)
	},
	"thinking, stream": func(ctx context.Context, url string, told *lines) {
		p := responseParams(question)
		p.Reasoning = shared.ReasoningParam{Effort: shared.ReasoningEffortLow}
		responseStream(ctx, url, told, p)
	},
	"previous response": func(ctx context.Context, url string, told *lines) {
		p := responseTools()
		for range 3 {
			r := responseStream(ctx, url, told, p)
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
	"abort": func(ctx context.Context, url string, told *lines) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		p := responseParams(question)
		p.MaxOutputTokens = openai.Int(longest)
		client := newOpenAI(url, 0)
		s := client.Responses.NewStreaming(ctx, p)
		defer s.Close()
		for n := 0; n < heard && s.Next(); {
			told.add("%s", s.Current().RawJSON())
			if s.Current().Type == "response.output_text.delta" {
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
			responseWhole(ctx, url, told, responseParams(askForError(status)), 0)
			responseStream(ctx, url, told, responseParams(askForError(status)))
		}
	},
	"unknown model": func(ctx context.Context, url string, told *lines) {
		p := responseParams(question)
		p.Model = "nobody-has-it"
		responseWhole(ctx, url, told, p, 0)
	},
	"retries": func(ctx context.Context, url string, told *lines) {
		responseWhole(ctx, url, told, responseParams(askForRetry), 2)
	},
	"cut": func(ctx context.Context, url string, told *lines) {
		responseStream(ctx, url, told, responseParams(askForCut))
		responseWhole(ctx, url, told, responseParams(askForCut), 0)
	},
	"WebSocket": func(ctx context.Context, url string, told *lines) {
		client := newOpenAI(url, 0)
		c, err := client.Responses.Connect(ctx, responses.ResponseConnectionOptions{})
		if err != nil {
			told.add("error: %v", err)
			return
		}
		for _, text := range []string{`{"type":"response.create"}`, `{"n":2}`} {
			if err := c.SendRaw(ctx, []byte(text)); err != nil {
				told.add("error: %v", err)
			}
			data, err := c.RecvRaw(ctx)
			told.add("%s %v", data, err)
		}
		told.add("end: %v", c.Close())
	},
}
