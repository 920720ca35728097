package conformance

import (
	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"
)

// Completions, the API before chats, which engines still have, and the list of
// models.

func completionParams(q string) openai.CompletionNewParams {
	return openai.CompletionNewParams{
		Model: model, MaxTokens: openai.Int(maxTokens), Temperature: openai.Float(0),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(q)},
	}
}

func completionWhole(s *session, p openai.CompletionNewParams, retries int) {
	client := newOpenAI(s, retries)
	r, err := client.Completions.New(s.ctx, p)
	whole(s, r, err)
}

func completionStream(s *session, p openai.CompletionNewParams) {
	client := newOpenAI(s, 0)
	read(s, client.Completions.NewStreaming(s.ctx, p), func(openai.Completion) {})
}

var openaiCompletions = withErrors(
	func(s *session, q string, retries int) { completionWhole(s, completionParams(q), retries) },
	func(s *session, q string) { completionStream(s, completionParams(q)) },
	map[string]do{
		"stream": func(s *session) {
			p := completionParams(question)
			completionStream(s, p)
			p.StreamOptions.IncludeUsage = openai.Bool(true)
			completionStream(s, p)
		},
		"n = 2": func(s *session) {
			p := completionParams(question)
			p.N = openai.Int(2)
			completionWhole(s, p, 0)
		},
		"n = 2, stream": func(s *session) {
			p := completionParams(question)
			p.N = openai.Int(2)
			completionStream(s, p)
		},
		"abort": func(s *session) {
			p := completionParams(question)
			p.MaxTokens = openai.Int(longest)
			client := newOpenAI(s, 0)
			leave(s, client.Completions.NewStreaming(s.ctx, p), func(c openai.Completion) string {
				if len(c.Choices) == 0 {
					return ""
				}
				return c.Choices[0].Text
			})
		},
		"unknown model": func(s *session) {
			p := completionParams(question)
			p.Model = "nobody-has-it"
			completionWhole(s, p, 0)
		},
	},
)

func oneModel(s *session, name string) {
	client := newOpenAI(s, 0)
	m, err := client.Models.Get(s.ctx, name)
	if err != nil {
		s.add("error %T: %v", err, err)
		return
	}
	s.add("%s %s", m.ID, m.Object)
}

var openaiModels = map[string]do{
	"list of models": func(s *session) {
		client := newOpenAI(s, 0)
		all := client.Models.ListAutoPaging(s.ctx)
		for all.Next() {
			s.add("%s %s", all.Current().ID, all.Current().Object)
		}
		s.add("end: %v", all.Err())
	},
	"one model":     func(s *session) { oneModel(s, model) },
	"unknown model": func(s *session) { oneModel(s, "nobody-has-it") },
}

var anthropicModels = map[string]do{
	"list of models": func(s *session) {
		client := newAnthropic(s, 0)
		all := client.Models.ListAutoPaging(s.ctx, anthropic.ModelListParams{})
		for all.Next() {
			s.add("%s", all.Current().ID)
		}
		s.add("end: %v", all.Err())
	},
	"one model": func(s *session) {
		client := newAnthropic(s, 0)
		m, err := client.Models.Get(s.ctx, model, anthropic.ModelGetParams{})
		if err != nil {
			s.add("error %T: %v", err, err)
			return
		}
		s.add("%s", m.ID)
	},
}
