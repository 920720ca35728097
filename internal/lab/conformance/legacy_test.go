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
