package modelserver

import (
	"encoding/json"
	"net/http"
)

// responsesRequest is a request of OpenAI's Responses API.
type responsesRequest struct {
	Model           string          `json:"model"`
	Input           json.RawMessage `json:"input"`
	Instructions    string          `json:"instructions"`
	MaxOutputTokens *int            `json:"max_output_tokens"`
	Tools           json.RawMessage `json:"tools"`
	ToolChoice      json.RawMessage `json:"tool_choice"`
	Stream          bool            `json:"stream"`
	Reasoning       *struct {
		Effort string `json:"effort"`
	} `json:"reasoning"`
	PreviousResponseID string `json:"previous_response_id"`
	Store              *bool  `json:"store"`
	CacheSalt          string `json:"cache_salt"`
}

// inputItem is an item of the input.
type inputItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Summary   json.RawMessage `json:"summary"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

// addInput adds a text, or a list of items. Consecutive items of the assistant
// are one turn.
func (c *conversation) addInput(v json.RawMessage) *apiError {
	var s string
	if json.Unmarshal(v, &s) == nil && s != "" {
		c.turns = append(c.turns, turn{"user", []part{text(s)}})
		return nil
	}
	var items []inputItem
	if json.Unmarshal(v, &items) != nil || len(items) == 0 {
		return invalid("input", "input is missing, or neither a string nor a list of items")
	}
	for i, item := range items {
		role, content := "assistant", item.Content
		switch item.Type {
		case "", "message":
			role = item.Role
		case "reasoning":
			content = item.Summary
		case "function_call":
			content = nil
		case "function_call_output":
			role, content = "tool", item.Output
		default:
			return invalid("input", "input[%d] is of unknown type %q", i, item.Type)
		}
		parts, err := readContent(content)
		if err != nil {
			return invalid("input", "input[%d] %v", i, err)
		}
		switch item.Type {
		case "reasoning":
			for p := range parts {
				parts[p].kind = thinkingPart
			}
		case "function_call":
			parts = []part{{kind: callPart, name: item.Name, text: item.Arguments}}
		}
		c.add(role, parts)
	}
	return nil
}

func (c *conversation) add(role string, parts []part) {
	if last := len(c.turns) - 1; role == "assistant" && last >= 0 && c.turns[last].role == role {
		t := &c.turns[last]
		t.parts = append(t.parts[:len(t.parts):len(t.parts)], parts...) // copies, because a stored turn must not change
		return
	}
	c.turns = append(c.turns, turn{role, parts})
}

func parseResponses(s *Server, body []byte) (*question, *apiError) {
	var req responsesRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, invalid("", "the body is not valid: %v", err)
	}
	var turns []turn // without instructions, which each request repeats
	if id := req.PreviousResponseID; id != "" {
		s.mu.Lock()
		before, ok := s.stored[id]
		s.mu.Unlock()
		if !ok {
			return nil, failure(http.StatusNotFound, "response_id", "Response with id '%s' not found.", id)
		}
		turns = before
	}
	c := conversation{turns: turns[:len(turns):len(turns)]}
	if e := c.addInput(req.Input); e != nil {
		return nil, e
	}
	turns = c.turns
	c = conversation{salt: req.CacheSalt, tools: req.Tools}
	if req.Instructions != "" {
		c.turns = append(c.turns, turn{"system", []part{text(req.Instructions)}})
	}
	c.turns = append(c.turns, turns...)
	q := &question{
		model: req.Model, stream: req.Stream,
		thinking: req.Reasoning != nil && req.Reasoning.Effort != "" && req.Reasoning.Effort != "none",
		limits:   map[string]*int{"max_output_tokens": req.MaxOutputTokens}, maxTokens: req.MaxOutputTokens,
		writer: func(o *responder) writer { return &responseWriter{responder: o, request: &req, turns: turns} },
	}
	q.ask(&c, s.block)
	return q, nil
}

// responseWriter writes responses of OpenAI's Responses API.
type responseWriter struct {
	*responder
	request *responsesRequest
	turns   []turn // the conversation before the response

	number int // of the next event
	items  []object
	kind   pieceKind // of the open item
	text   string    // of the open item
}

func (w *responseWriter) response(status string, u *usage) object {
	req := w.request
	r := object{
		"id": "resp_" + w.id, "object": "response", "created_at": w.created, "status": status,
		"background": false, "error": nil, "incomplete_details": nil, "instructions": null(req.Instructions),
		"max_output_tokens": req.MaxOutputTokens, "metadata": object{}, "model": w.server.config.Model,
		"output": append([]object{}, w.items...), "parallel_tool_calls": true,
		"previous_response_id": null(req.PreviousResponseID), "reasoning": object{"effort": nil, "summary": nil},
		"service_tier": "default", "store": w.stores(), "temperature": 1.0, "text": object{"format": object{"type": "text"}},
		"tool_choice": "auto", "tools": []any{}, "top_p": 1.0, "truncation": "disabled", "usage": nil,
	}
	if given(req.ToolChoice) {
		r["tool_choice"] = req.ToolChoice
	}
	if given(req.Tools) {
		r["tools"] = req.Tools
	}
	if req.Reasoning != nil {
		r["reasoning"] = object{"effort": null(req.Reasoning.Effort), "summary": "auto"}
	}
	if status == "incomplete" {
		r["incomplete_details"] = object{"reason": "max_output_tokens"}
	}
	if u != nil {
		r["usage"] = object{
			"input_tokens": u.PromptTokens, "input_tokens_details": u.Details,
			"output_tokens": u.CompletionTokens, "output_tokens_details": u.Completion, "total_tokens": u.TotalTokens,
		}
	}
	return r
}

func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (w *responseWriter) stores() bool { return w.request.Store == nil || *w.request.Store }

// item is the output item of a kind.
func (w *responseWriter) item(kind pieceKind, status, text string) object {
	switch kind {
	case thinkingPiece:
		summary := []object{}
		if status == "completed" {
			summary = append(summary, object{"type": "summary_text", "text": text})
		}
		return object{"id": w.itemID(kind), "type": "reasoning", "summary": summary}
	case callPiece:
		return object{
			"id": w.itemID(kind), "type": "function_call", "status": status, "call_id": w.callID("call_", 0),
			"name": w.generation.sequences[0].call.name, "arguments": text,
		}
	}
	content := []object{}
	if status == "completed" {
		content = append(content, textContent(text))
	}
	return object{"id": w.itemID(kind), "type": "message", "status": status, "role": "assistant", "content": content}
}

func textContent(s string) object {
	return object{"type": "output_text", "text": s, "annotations": []any{}, "logprobs": []any{}}
}

func (w *responseWriter) itemID(kind pieceKind) string {
	return [...]string{thinkingPiece: "rs_", textPiece: "msg_", callPiece: "fc_"}[kind] + w.id
}

// status is the final status of the response.
func (w *responseWriter) status() string {
	if w.finish(0) == "length" {
		return "incomplete"
	}
	return "completed"
}

// keep stores the conversation for requests that continue it.
func (w *responseWriter) keep() {
	if w.stores() {
		s := w.generation.sequences[0]
		c := conversation{turns: w.turns[:len(w.turns):len(w.turns)]}
		c.add("assistant", s.parts(s.expected))
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		w.server.stored["resp_"+w.id] = c.turns
	}
}

func (w *responseWriter) whole(answers []answer) any {
	a := answers[0]
	if a.thinking != "" {
		w.items = append(w.items, w.item(thinkingPiece, "completed", a.thinking))
	}
	if a.text != "" {
		w.items = append(w.items, w.item(textPiece, "completed", a.text))
	}
	if a.call != nil {
		w.items = append(w.items, w.item(callPiece, "completed", a.call.arguments))
	}
	w.keep()
	return w.response(w.status(), w.usage())
}

func (w *responseWriter) send(kind string, v object) {
	v["type"], v["sequence_number"] = "response."+kind, w.number
	w.number++
	w.event("response."+kind, v)
}

// sendPart sends an event about the open item.
func (w *responseWriter) sendPart(kind string, v object) {
	v["item_id"], v["output_index"] = w.itemID(w.kind), len(w.items)
	w.send(kind, v)
}

func (w *responseWriter) begin() {
	w.kind = -1
	w.send("created", object{"response": w.response("in_progress", nil)})
	w.send("in_progress", object{"response": w.response("in_progress", nil)})
}

func (w *responseWriter) token(_ int, kind pieceKind, text string) {
	if kind != w.kind {
		w.endItem()
		w.kind, w.text = kind, ""
		w.send("output_item.added", object{"output_index": len(w.items), "item": w.item(kind, "in_progress", "")})
		switch kind {
		case thinkingPiece:
			w.sendPart("reasoning_summary_part.added", object{"summary_index": 0, "part": object{"type": "summary_text", "text": ""}})
		case textPiece:
			w.sendPart("content_part.added", object{"content_index": 0, "part": textContent("")})
		}
	}
	w.text += text
	switch kind {
	case thinkingPiece:
		w.sendPart("reasoning_summary_text.delta", object{"summary_index": 0, "delta": text})
	case textPiece:
		w.sendPart("output_text.delta", object{"content_index": 0, "delta": text, "logprobs": []any{}})
	case callPiece:
		w.sendPart("function_call_arguments.delta", object{"delta": text})
	}
}

func (w *responseWriter) endItem() {
	if w.kind < 0 {
		return
	}
	switch w.kind {
	case thinkingPiece:
		w.sendPart("reasoning_summary_text.done", object{"summary_index": 0, "text": w.text})
		w.sendPart("reasoning_summary_part.done", object{"summary_index": 0, "part": object{"type": "summary_text", "text": w.text}})
	case textPiece:
		w.sendPart("output_text.done", object{"content_index": 0, "text": w.text, "logprobs": []any{}})
		w.sendPart("content_part.done", object{"content_index": 0, "part": textContent(w.text)})
	case callPiece:
		w.sendPart("function_call_arguments.done", object{"name": w.generation.sequences[0].call.name, "arguments": w.text})
	}
	item := w.item(w.kind, "completed", w.text)
	w.send("output_item.done", object{"output_index": len(w.items), "item": item})
	w.items = append(w.items, item)
}

func (w *responseWriter) end(int) { w.endItem() }

func (w *responseWriter) done() {
	w.keep()
	status := w.status()
	w.send(status, object{"response": w.response(status, w.usage())})
}
