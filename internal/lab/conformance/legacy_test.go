package conformance

import (
	"context"

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

func completionWhole(ctx context.Context, url string, told *lines, p openai.CompletionNewParams, retries int) {
	client := newOpenAI(url, retries)
	r, err := client.Completions.New(ctx, p)
	if err != nil {
		told.add("error %T: %v", err, err)
		return
	}
	told.add("%s", r.RawJSON())
}

func completionStream(ctx context.Context, url string, told *lines, p openai.CompletionNewParams) {
	client := newOpenAI(url, 0)
	s := client.Completions.NewStreaming(ctx, p)
	defer s.Close()
	for s.Next() {
		told.add("%s", s.Current().RawJSON())
	}
	told.add("end: %v", s.Err())
}

var openaiCompletions = map[string]do{
	"whole": func(ctx context.Context, url string, told *lines) {
		completionWhole(ctx, url, told, completionParams(question), 0)
	},
	"stream": func(ctx context.Context, url string, told *lines) {
		p := completionParams(question)
		completionStream(ctx, url, told, p)
		p.StreamOptions.IncludeUsage = openai.Bool(true)
		completionStream(ctx, url, told, p)
	},
	"n = 2": func(ctx context.Context, url string, told *lines) {
		p := completionParams(question)
		p.N = openai.Int(2)
		completionWhole(ctx, url, told, p, 0)
	},
	"n = 2, stream": func(ctx context.Context, url string, told *lines) {
		p := completionParams(question)
		p.N = openai.Int(2)
		completionStream(ctx, url, told, p)
	},
	"abort": func(ctx context.Context, url string, told *lines) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		p := completionParams(question)
		p.MaxTokens = openai.Int(longest)
		client := newOpenAI(url, 0)
		s := client.Completions.NewStreaming(ctx, p)
		defer s.Close()
		for n := 0; n < heard && s.Next(); {
			c := s.Current()
			told.add("%s", c.RawJSON())
			if len(c.Choices) > 0 && c.Choices[0].Text != "" {
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
			completionWhole(ctx, url, told, completionParams(askForError(status)), 0)
			completionStream(ctx, url, told, completionParams(askForError(status)))
		}
	},
	"unknown model": func(ctx context.Context, url string, told *lines) {
		p := completionParams(question)
		p.Model = "nobody-has-it"
		completionWhole(ctx, url, told, p, 0)
	},
	"retries": func(ctx context.Context, url string, told *lines) {
		completionWhole(ctx, url, told, completionParams(askForRetry), 2)
	},
	"cut": func(ctx context.Context, url string, told *lines) {
		completionStream(ctx, url, told, completionParams(askForCut))
		completionWhole(ctx, url, told, completionParams(askForCut), 0)
	},
}

func oneModel(ctx context.Context, url string, told *lines, name string) {
	client := newOpenAI(url, 0)
	m, err := client.Models.Get(ctx, name)
	if err != nil {
		told.add("error %T: %v", err, err)
		return
	}
	told.add("%s %s", m.ID, m.Object)
}

var openaiModels = map[string]do{
	"list of models": func(ctx context.Context, url string, told *lines) {
		client := newOpenAI(url, 0)
		all := client.Models.ListAutoPaging(ctx)
		for all.Next() {
			told.add("%s %s", all.Current().ID, all.Current().Object)
		}
		told.add("end: %v", all.Err())
	},
	"one model":     func(ctx context.Context, url string, told *lines) { oneModel(ctx, url, told, model) },
	"unknown model": func(ctx context.Context, url string, told *lines) { oneModel(ctx, url, told, "nobody-has-it") },
}

var anthropicModels = map[string]do{
	"list of models": func(ctx context.Context, url string, told *lines) {
		client := newAnthropic(url, 0)
		all := client.Models.ListAutoPaging(ctx, anthropic.ModelListParams{})
		for all.Next() {
			told.add("%s", all.Current().ID)
		}
		told.add("end: %v", all.Err())
	},
	"one model": func(ctx context.Context, url string, told *lines) {
		client := newAnthropic(url, 0)
		m, err := client.Models.Get(ctx, model, anthropic.ModelGetParams{})
		if err != nil {
			told.add("error %T: %v", err, err)
			return
		}
		told.add("%s", m.ID)
	},
}
