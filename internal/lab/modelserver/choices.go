package modelserver

// response is a whole response of OpenAI's older APIs, or a chunk of a stream.
type response struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

type choice struct {
	Index        int     `json:"index"`
	Text         *string `json:"text,omitempty"`
	Message      *said   `json:"message,omitempty"`
	Delta        *said   `json:"delta,omitempty"`
	FinishReason *string `json:"finish_reason"`
}

type said struct {
	Role             string     `json:"role,omitempty"`
	Content          *string    `json:"content,omitempty"`
	ReasoningContent string     `json:"reasoning_content,omitempty"`
	ToolCalls        []toolCall `json:"tool_calls,omitempty"`
}

type usage struct {
	PromptTokens     int               `json:"prompt_tokens"`
	CompletionTokens int               `json:"completion_tokens"`
	TotalTokens      int               `json:"total_tokens"`
	Details          promptDetails     `json:"prompt_tokens_details"`
	Completion       completionDetails `json:"completion_tokens_details,omitzero"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

type completionDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// usage counts the tokens of a response.
func (o *responder) usage() *usage {
	// Choices share their prompt.
	u := usage{PromptTokens: o.question.prompt.length, Details: promptDetails{o.now[0].cached}}
	for i, p := range o.now {
		u.CompletionTokens += p.produced
		u.Completion.ReasoningTokens += min(p.produced, o.generation.sequences[i].thinking)
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return &u
}

// choiceWriter writes chat and completions.
type choiceWriter struct {
	*responder
	api        api
	usageAsked bool
	called     []bool // by choice: the call's name has been sent
}

func (w *choiceWriter) head(object string) response {
	return response{
		ID: w.api.idPrefix + w.id, Object: object, Created: w.created, Model: w.server.config.Model,
		Choices: []choice{}, // never null
	}
}

func (w *choiceWriter) finish(i int) *string {
	reason := w.responder.finish(i)
	if reason == "call" {
		reason = "tool_calls"
	}
	return &reason
}

func (w *choiceWriter) whole(answers []answer) any {
	r := w.head(w.api.object)
	for i, a := range answers {
		c := choice{Index: i, FinishReason: w.finish(i)}
		if w.api.chat {
			c.Message = &said{Role: "assistant", ReasoningContent: a.thinking}
			if a.call == nil {
				c.Message.Content = &a.text
			} else {
				c.Message.ToolCalls = []toolCall{{
					ID: w.callID("call_", i), Type: "function", Function: function{a.call.name, a.call.arguments},
				}}
			}
		} else {
			c.Text = &a.text
		}
		r.Choices = append(r.Choices, c)
	}
	r.Usage = w.usage()
	return r
}

func (w *choiceWriter) begin() {
	w.called = make([]bool, len(w.now))
	if w.api.chat {
		for i := range w.now {
			w.chunk(choice{Index: i, Delta: &said{Role: "assistant", Content: new(string)}})
		}
	}
}

func (w *choiceWriter) token(i int, kind pieceKind, text string) {
	c := choice{Index: i}
	switch {
	case !w.api.chat:
		c.Text = &text
	case kind == thinkingPiece:
		c.Delta = &said{ReasoningContent: text}
	case kind == textPiece:
		c.Delta = &said{Content: &text}
	default:
		part := toolCall{Index: new(int), Function: function{Arguments: text}}
		if !w.called[i] {
			w.called[i] = true
			part.ID, part.Type = w.callID("call_", i), "function"
			part.Function.Name = w.generation.sequences[i].call.name
		}
		c.Delta = &said{ToolCalls: []toolCall{part}}
	}
	w.chunk(c)
}

func (w *choiceWriter) end(i int) {
	c := choice{Index: i, FinishReason: w.finish(i)}
	if w.api.chat {
		c.Delta = &said{}
	} else {
		c.Text = new(string)
	}
	w.chunk(c)
}

func (w *choiceWriter) done() {
	if w.usageAsked {
		r := w.head(w.api.partObject)
		r.Usage = w.usage()
		w.event("", r)
	}
	_, _ = w.w.Write([]byte("data: [DONE]\n\n"))
}

func (w *choiceWriter) chunk(c choice) {
	r := w.head(w.api.partObject)
	r.Choices = append(r.Choices, c)
	w.event("", r)
}
