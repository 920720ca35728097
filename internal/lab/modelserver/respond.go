package modelserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// api is an API for generating text.
type api struct {
	idPrefix           string
	object, partObject string
	chat               bool
}

var (
	chatAPI       = api{"chatcmpl-", "chat.completion", "chat.completion.chunk", true}
	completionAPI = api{"cmpl-", "text_completion", "text_completion", false}
)

// writer writes a response in the format of one API: whole, or begin, the
// tokens in turn, and done.
type writer interface {
	whole(answers []answer) any
	begin()
	token(choice int, kind pieceKind, text string)
	end(choice int)
	done()
}

// answer is the output of one choice.
type answer struct {
	thinking, text string
	call           *call
}

// complete answers the requests of one API.
func (s *Server) complete(
	parse func(*Server, []byte) (*question, *apiError), refuse func(http.ResponseWriter, *apiError),
) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, e := readBody(w, r)
		if e != nil {
			refuse(w, e)
			return
		}
		q, e := parse(s, body)
		if e != nil {
			refuse(w, e)
			return
		}
		g, e := s.newGeneration(q)
		if e == nil {
			e = s.fail(q.script)
		}
		if e != nil {
			refuse(w, e)
			return
		}
		if err := s.driver.submit(g); err != nil {
			refuse(w, submitError(err))
			return
		}
		defer s.driver.abort(g) // what is unfinished when the client has left
		out := &responder{
			server: s, request: r, w: w, question: q, generation: g, created: time.Now().Unix(),
			id: fmt.Sprintf("%08x%08x", s.nonce, g.sequences[0].id),
		}
		out.flush = http.NewResponseController(w).Flush
		out.writer = q.writer(out)
		if q.stream {
			out.stream()
		} else {
			out.whole()
		}
	}
}

// responder writes one response.
type responder struct {
	server     *Server
	request    *http.Request
	w          http.ResponseWriter
	question   *question
	generation *generation
	writer     writer
	id         string // without the API's prefix
	created    int64
	flush      func() error
	now        []progress
}

// wait returns when some choice has progressed; false when the client has left.
// If the server has crashed, it breaks the connection.
func (o *responder) wait() bool {
	select {
	case <-o.request.Context().Done():
		return false
	case <-o.generation.changed:
	}
	o.now = o.server.driver.read(o.generation, o.now[:0])
	if slices.ContainsFunc(o.now, func(p progress) bool { return p.lost }) {
		panic(http.ErrAbortHandler)
	}
	return true
}

func (o *responder) done() bool {
	return !slices.ContainsFunc(o.now, func(p progress) bool { return !p.done })
}

// finish says why a choice ends: "call", "stop" or "length".
func (o *responder) finish(choice int) string {
	s := o.generation.sequences[choice]
	switch {
	case s.call != nil && s.expected == s.length(s.expected+1):
		return "call"
	case o.question.maxTokens == nil:
		return "stop"
	}
	return "length"
}

func (o *responder) whole() {
	for o.now == nil || !o.done() {
		if !o.wait() {
			return
		}
	}
	answers := make([]answer, len(o.now))
	for i, s := range o.generation.sequences {
		a := &answers[i]
		for at := range s.expected {
			switch kind, text := s.piece(at); kind {
			case thinkingPiece:
				a.thinking += text
			case textPiece:
				a.text += text
			case callPiece:
				if a.call == nil {
					a.call = &call{name: s.call.name}
				}
				a.call.arguments += text
			}
		}
	}
	v := o.writer.whole(answers)
	if o.question.script.cut == 0 {
		writeJSON(o.w, http.StatusOK, v)
		return
	}
	data := encode(v)
	o.w.Header().Set("Content-Type", "application/json")
	_, _ = o.w.Write(data[:len(data)/2])
	o.breakOff()
}

// breakOff breaks the connection in the middle of the response.
func (o *responder) breakOff() {
	_ = o.flush()
	panic(http.ErrAbortHandler)
}

// open begins a stream.
func (o *responder) open() {
	h := o.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	// Like vLLM, send the status before the first token.
	o.w.WriteHeader(http.StatusOK)
	_ = o.flush() // not all writers can flush
}

// stream writes an event for each token, however many have come at once, with
// all choices in step. So the same request gives the same bytes, except for ids
// and times, whatever the machine is doing.
func (o *responder) stream() {
	o.open()
	for at := 0; o.more(at); {
		if !o.wait() {
			return
		}
		for ; o.more(at) && o.reached(at); at++ {
			if at == 0 {
				o.writer.begin()
			}
			for i, s := range o.generation.sequences {
				if at >= s.expected {
					continue
				}
				kind, text := s.piece(at)
				o.writer.token(i, kind, text)
				if at+1 == s.expected {
					o.writer.end(i)
				}
			}
			if at+1 == o.question.script.cut {
				o.breakOff()
			}
		}
		_ = o.flush()
	}
	for !o.done() {
		if !o.wait() {
			return
		}
	}
	o.writer.done()
}

// more reports whether some choice has a token number at.
func (o *responder) more(at int) bool {
	return slices.ContainsFunc(o.generation.sequences, func(s *sequence) bool { return at < s.expected })
}

// reached reports whether every choice has got that far.
func (o *responder) reached(at int) bool {
	for i, s := range o.generation.sequences {
		if o.now[i].produced <= min(at, s.expected-1) {
			return false
		}
	}
	return true
}

// event writes an event. Errors also end the request's context.
func (o *responder) event(name string, v any) {
	var b []byte
	if name != "" {
		b = append(append(append(b, "event: "...), name...), '\n')
	}
	b = append(append(append(b, "data: "...), encode(v)...), "\n\n"...)
	_, _ = o.w.Write(b)
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // it consists of strings and numbers
	}
	return data
}

// callID is the ID of a choice's call. It is a function of the prompt, because
// it comes back in the next one.
func (o *responder) callID(prefix string, choice int) string {
	return fmt.Sprintf("%s%016x", prefix, uint64(o.generation.sequences[choice].output))
}

// noRender is vLLM's answer unless it has been started with --enable-scale-out.
func (s *Server) noRender(w http.ResponseWriter, _ *http.Request) {
	writeError(w, failure(http.StatusForbidden, "", "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."))
}

// tokenize answers with the token ids of a chat or of a completion.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	body, e := readBody(w, r)
	var q *question
	if e == nil {
		if q, e = parseChat(s, body); e != nil {
			q, e = parseCompletion(s, body)
		}
	}
	if e != nil {
		writeError(w, e)
		return
	}
	writeJSON(w, http.StatusOK, object{"count": q.prompt.length, "max_model_len": s.limit, "tokens": q.prompt.ids})
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"object": "list",
		"data":   []map[string]any{s.described()},
	})
}

func (s *Server) described() map[string]any {
	return map[string]any{
		"id": s.config.Model, "object": "model", "created": s.started.Unix(),
		"owned_by": "endpick", "max_model_len": s.limit,
	}
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	if e := s.knows(r.PathValue("model")); e != nil {
		writeError(w, e)
		return
	}
	writeJSON(w, http.StatusOK, s.described())
}
