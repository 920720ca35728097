package modelserver

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// messagesRequest is a request of Anthropic's Messages API.
type messagesRequest struct {
	Model     string          `json:"model"`
	MaxTokens *int            `json:"max_tokens"`
	System    json.RawMessage `json:"system"`
	Messages  []message       `json:"messages"`
	Tools     json.RawMessage `json:"tools"`
	Stream    bool            `json:"stream"`
	Thinking  struct {
		Type string `json:"type"`
	} `json:"thinking"`
	CacheSalt string `json:"cache_salt"`
}

func readMessages(body []byte) (*messagesRequest, *conversation, *apiError) {
	var req messagesRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, nil, invalid("", "the body is not valid: %v", err)
	}
	if len(req.Messages) == 0 {
		return nil, nil, invalid("messages", "messages is missing or empty")
	}
	c := &conversation{salt: req.CacheSalt, tools: req.Tools}
	system, err := readContent(req.System)
	if err != nil {
		return nil, nil, invalid("system", "system %v", err)
	}
	if len(system) > 0 {
		c.turns = append(c.turns, turn{"system", system})
	}
	for i, m := range req.Messages {
		parts, err := readContent(m.Content)
		if err != nil {
			return nil, nil, invalid("messages", "messages.%d.content %v", i, err)
		}
		c.turns = append(c.turns, turn{m.Role, parts})
	}
	return &req, c, nil
}

func parseMessages(s *Server, body []byte) (*question, *apiError) {
	req, c, e := readMessages(body)
	if e != nil {
		return nil, e
	}
	if req.MaxTokens == nil {
		return nil, invalid("max_tokens", "max_tokens is missing")
	}
	q := &question{
		model: req.Model, stream: req.Stream, thinking: req.Thinking.Type == "enabled" || req.Thinking.Type == "adaptive",
		limits: map[string]*int{"max_tokens": req.MaxTokens}, maxTokens: req.MaxTokens,
		writer: func(o *responder) writer { return &messageWriter{responder: o, block: -1} },
	}
	q.ask(c, s.block)
	return q, nil
}

// countTokens answers with the length of a prompt.
func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) {
	body, e := readBody(w, r)
	if e != nil {
		writeMessageError(w, e)
		return
	}
	req, c, e := readMessages(body)
	if e == nil {
		e = s.knows(req.Model)
	}
	if e != nil {
		writeMessageError(w, e)
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"input_tokens": c.render(s.block).length})
}

// messageWriter writes Anthropic's Messages.
type messageWriter struct {
	*responder
	block int // the open content block; -1: there was none
	kind  pieceKind
}

type object = map[string]any

func (w *messageWriter) message(content []object, reason any, output int) object {
	u := w.usage()
	return object{
		"id": "msg_" + w.id, "type": "message", "role": "assistant", "model": w.server.config.Model,
		"content": content, "stop_reason": reason, "stop_sequence": nil,
		"usage": object{
			"input_tokens":                u.PromptTokens - u.Details.CachedTokens,
			"cache_read_input_tokens":     u.Details.CachedTokens,
			"cache_creation_input_tokens": 0,
			"output_tokens":               output,
		},
	}
}

func (w *messageWriter) reason() string {
	return map[string]string{"call": "tool_use", "stop": "end_turn", "length": "max_tokens"}[w.finish(0)]
}

// signature stands for the proof that thoughts come from the server.
func (w *messageWriter) signature() string {
	return fmt.Sprintf("signed-%016x", uint64(w.generation.sequences[0].output))
}

func (w *messageWriter) whole(answers []answer) any {
	a, content := answers[0], []object{}
	if a.thinking != "" {
		content = append(content, object{"type": "thinking", "thinking": a.thinking, "signature": w.signature()})
	}
	if a.text != "" {
		content = append(content, object{"type": "text", "text": a.text})
	}
	if a.call != nil {
		var input any = json.RawMessage(a.call.arguments)
		if !json.Valid([]byte(a.call.arguments)) { // the output was too short for it
			input = object{}
		}
		content = append(content, object{"type": "tool_use", "id": w.callID("toolu_", 0), "name": a.call.name, "input": input})
	}
	return w.message(content, w.reason(), w.usage().CompletionTokens)
}

func (w *messageWriter) begin() {
	w.send("message_start", object{"message": w.message([]object{}, nil, 1)})
}

func (w *messageWriter) send(kind string, v object) {
	v["type"] = kind
	w.event(kind, v)
}

func (w *messageWriter) token(_ int, kind pieceKind, text string) {
	if w.block < 0 || kind != w.kind {
		w.endBlock()
		w.block++
		w.kind = kind
		start := object{"type": "text", "text": ""}
		switch kind {
		case thinkingPiece:
			start = object{"type": "thinking", "thinking": "", "signature": ""}
		case callPiece:
			start = object{"type": "tool_use", "id": w.callID("toolu_", 0), "name": w.generation.sequences[0].call.name, "input": object{}}
		}
		w.send("content_block_start", object{"index": w.block, "content_block": start})
		if w.block == 0 {
			w.send("ping", object{})
		}
	}
	delta := object{"type": "text_delta", "text": text}
	switch kind {
	case thinkingPiece:
		delta = object{"type": "thinking_delta", "thinking": text}
	case callPiece:
		delta = object{"type": "input_json_delta", "partial_json": text}
	}
	w.send("content_block_delta", object{"index": w.block, "delta": delta})
}

func (w *messageWriter) endBlock() {
	if w.block < 0 {
		return
	}
	if w.kind == thinkingPiece {
		w.send("content_block_delta", object{"index": w.block, "delta": object{"type": "signature_delta", "signature": w.signature()}})
	}
	w.send("content_block_stop", object{"index": w.block})
}

func (w *messageWriter) end(int) { w.endBlock() }

func (w *messageWriter) done() {
	u := w.usage()
	w.send("message_delta", object{
		"delta": object{"stop_reason": w.reason(), "stop_sequence": nil},
		"usage": object{"output_tokens": u.CompletionTokens},
	})
	w.send("message_stop", object{})
}
