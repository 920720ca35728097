package modelserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// api is one of the two ways to ask for text.
type api struct {
	idPrefix           string
	object, partObject string
	parse              func(body []byte, blockTokens int) (*params, []tokens, *apiError)
	chat               bool
}

var (
	chatAPI       = api{"chatcmpl-", "chat.completion", "chat.completion.chunk", parseChat, true}
	completionAPI = api{"cmpl-", "text_completion", "text_completion", parseCompletion, false}
)

// response is a whole response or one chunk of a stream.
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
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type usage struct {
	PromptTokens     int           `json:"prompt_tokens"`
	CompletionTokens int           `json:"completion_tokens"`
	TotalTokens      int           `json:"total_tokens"`
	Details          promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// complete answers requests of one API.
func (s *Server) complete(a api) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, e := readBody(w, r)
		if e != nil {
			writeError(w, e)
			return
		}
		p, prompts, e := a.parse(body, s.block)
		if e != nil {
			writeError(w, e)
			return
		}
		g, e := s.newGeneration(p, prompts)
		if e != nil {
			writeError(w, e)
			return
		}
		if err := s.driver.submit(g); err != nil {
			writeError(w, submitError(err))
			return
		}
		defer s.driver.abort(g) // whatever has not ended when the client is gone
		out := &responder{
			server: s, api: a, request: r, w: w, generation: g, sent: make([]int, len(g.sequences)),
			prompts: prompts, finish: p.finishReason(),
			response: response{
				ID:     fmt.Sprintf("%s%08x", a.idPrefix, g.sequences[0].id),
				Object: a.object, Created: time.Now().Unix(), Model: s.config.Model,
			},
		}
		if p.Stream {
			out.stream(p.StreamOptions.IncludeUsage)
		} else {
			out.whole()
		}
	}
}

// finishReason says why the output ends where it does.
func (p *params) finishReason() string {
	if p.maxTokens() == nil {
		return "stop"
	}
	return "length"
}

// responder writes one response.
type responder struct {
	server     *Server
	api        api
	request    *http.Request
	w          http.ResponseWriter
	generation *generation
	prompts    []tokens
	finish     string
	response   response
	sent       []int // tokens written of each choice
	now        []progress
}

// wait returns when some choice has got further; false when the client is gone.
// It breaks the connection when the server has crashed.
func (o *responder) wait() bool {
	select {
	case <-o.request.Context().Done():
		return false
	case <-o.generation.changed:
	}
	o.now = o.server.driver.read(o.generation, o.now[:0])
	for _, p := range o.now {
		if p.lost {
			panic(http.ErrAbortHandler)
		}
	}
	return true
}

func (o *responder) done() bool {
	for _, p := range o.now {
		if !p.done {
			return false
		}
	}
	return true
}

// text is what was generated for a choice and not yet written.
func (o *responder) text(i int) *string {
	s := o.generation.sequences[i]
	text := string(s.output.appendText(nil, o.sent[i], o.now[i].produced))
	o.sent[i] = o.now[i].produced
	return &text
}

func (o *responder) whole() {
	for o.now == nil || !o.done() {
		if !o.wait() {
			return
		}
	}
	for i := range o.now {
		c := choice{Index: i, FinishReason: &o.finish}
		if o.api.chat {
			c.Message = &said{Role: "assistant", Content: o.text(i)}
		} else {
			c.Text = o.text(i)
		}
		o.response.Choices = append(o.response.Choices, c)
	}
	o.response.Usage = o.usage()
	writeJSON(o.w, http.StatusOK, o.response)
}

func (o *responder) usage() *usage {
	var u usage
	perPrompt := len(o.now) / len(o.prompts)
	for i, p := range o.now {
		u.CompletionTokens += p.produced
		if i%perPrompt == 0 { // choices share their prompt
			u.PromptTokens += o.prompts[i/perPrompt].length
			u.Details.CachedTokens += p.cached
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return &u
}

// stream writes a chunk for each choice that has got further: one token, or
// several if the client reads slowly.
func (o *responder) stream(includeUsage bool) {
	h := o.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	o.response.Object = o.api.partObject
	// Like vLLM: the status is out before the first token is.
	o.w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(o.w)
	_ = flush.Flush() // nothing to do about a writer that can't

	ended := make([]bool, len(o.sent))
	for o.now == nil || !o.done() {
		if !o.wait() {
			return
		}
		for i, p := range o.now {
			if o.api.chat && o.sent[i] == 0 && p.produced > 0 {
				o.chunk(choice{Index: i, Delta: &said{Role: "assistant", Content: new(string)}})
			}
			if p.produced > o.sent[i] {
				o.chunk(o.part(i, o.text(i), nil))
			}
			if p.done && !ended[i] {
				ended[i] = true
				o.chunk(o.part(i, nil, &o.finish))
			}
		}
		_ = flush.Flush()
	}
	if includeUsage {
		o.response.Usage = o.usage()
		o.chunk()
	}
	_, _ = o.w.Write([]byte("data: [DONE]\n\n"))
}

// part is a choice in a chunk.
func (o *responder) part(i int, text, finish *string) choice {
	if o.api.chat {
		return choice{Index: i, Delta: &said{Content: text}, FinishReason: finish}
	}
	if text == nil {
		text = new(string)
	}
	return choice{Index: i, Text: text, FinishReason: finish}
}

// chunk writes one event. An error shows in the request's context too.
func (o *responder) chunk(choices ...choice) {
	o.response.Choices = append([]choice{}, choices...) // never null
	data, err := json.Marshal(&o.response)
	if err != nil {
		panic(err) // strings and numbers
	}
	event := append(append([]byte("data: "), data...), "\n\n"...)
	_, _ = o.w.Write(event)
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"object": "list",
		"data": []map[string]any{{
			"id": s.config.Model, "object": "model", "created": s.started.Unix(),
			"owned_by": "endpick", "max_model_len": s.limit,
		}},
	})
}
