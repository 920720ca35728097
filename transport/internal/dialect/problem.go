package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strconv"
)

// Problem is what went wrong with a request, for its client.
type Problem struct {
	Status  int
	Message string
	// Code is a finer code than the status, and Param the member of the request to blame. Empty: none.
	Code, Param string
}

// Body returns the problem as a JSON object in the format of the API at this
// path: Anthropic's, Ollama's, or OpenAI's for all other APIs.
func (p Problem) Body(at string) []byte {
	of := apiOf(http.MethodPost, at)
	if of == other && path.Base(path.Dir(at)) == "api" { // what is asked with GET, or not passed on
		of = ollamaShow
	}
	return p.body(of)
}

func (p Problem) body(of *api) []byte { return p.append(nil, cmp.Or(of.errors, openAIErrors), 0) }

// The forms of errors, of a message, a type, a member of the request, a code and the number of an event.
const (
	openAIErrors    = `{"error":{"message":%[1]s,"type":%[2]s,"param":%[3]s,"code":%[4]s}}`
	anthropicErrors = `{"type":"error","error":{"type":%[2]s,"message":%[1]s}}`
	ollamaErrors    = `{"error":%[1]s}`
	responsesEvent  = "event: error\ndata: " + `{"type":"error","code":%[4]s,"message":%[1]s,"param":null,"sequence_number":%[5]d}` + "\n\n"
	failedEvent     = "event: response.failed\ndata: " + `{"type":"response.failed","response":{"object":"response","status":"failed","error":{"code":%[4]s,"message":%[1]s},"output":[]},"sequence_number":%[5]d}` + "\n\n"
)

// append appends the problem in one of these forms.
func (p Problem) append(dst []byte, form string, sequence int) []byte {
	var in [4][]byte
	kind := openAIKind(p.Status)
	if form == anthropicErrors {
		kind = cmp.Or(anthropicKinds[p.Status], kind)
	}
	for i, s := range [...]string{p.Message, kind, p.Param, cmp.Or(p.Code, strconv.Itoa(p.Status))} {
		in[i] = quote(s)
	}
	if p.Param == "" {
		in[2] = []byte("null")
	}
	return fmt.Appendf(dst, form, in[0], in[1], in[2], in[3], sequence)
}

// ProblemOf reads what a server has answered with a status from 400 on, in any form that has a
// message.
func ProblemOf(status int, body []byte) Problem {
	p := Problem{Status: status, Message: cmp.Or(http.StatusText(status), "the request has failed")}
	var form struct {
		Error           json.RawMessage
		Message, Detail string
	}
	_ = json.Unmarshal(body, &form)
	var object struct{ Message, Code string }
	var message string
	_ = json.Unmarshal(form.Error, &object)
	p.Code = object.Code // a number is none
	_ = json.Unmarshal(form.Error, &message)
	p.Message = cmp.Or(object.Message, message, form.Message, form.Detail, p.Message)
	return p
}

// Event returns the event with which a stream of the API at this path ends that has failed before
// it had any other. Of responses, OpenAI says it twice, and Codex only reads the second.
func (p Problem) Event(path string) []byte {
	of := apiOf(http.MethodPost, path)
	if of != responses {
		return p.event(nil, of, 0)
	}
	p.Code = cmp.Or(p.Code, responsesCodes[openAIKind(p.Status)])
	return p.append(p.event(nil, of, 0), failedEvent, 1)
}

// event appends the event with which a stream of this API ends that has failed; sequence is the
// number of the event, where they have one.
func (p Problem) event(dst []byte, of *api, sequence int) []byte {
	switch {
	case of.lines:
		return append(append(dst, p.body(of)...), '\n')
	case of == responses:
		p.Code = cmp.Or(p.Code, "server_error")
		return p.append(dst, responsesEvent, sequence)
	case of == messages:
		dst = append(dst, "event: error\n"...)
	}
	return append(append(append(dst, "data: "...), p.body(of)...), "\n\n"...)
}

// responsesCodes are what a response has failed for, by the type of the error.
var responsesCodes = map[string]string{"rate_limit_error": "rate_limit_exceeded", "invalid_request_error": "invalid_prompt", "api_error": "server_error"}

func openAIKind(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status < 500 && status != statusClosed:
		return "invalid_request_error"
	}
	return "api_error"
}

// statusClosed is nginx's status for a request whose client has left.
const statusClosed = 499

// anthropicKinds are the types that Anthropic documents for each status, besides those of OpenAI.
var anthropicKinds = map[int]string{
	http.StatusUnauthorized:          "authentication_error",
	http.StatusForbidden:             "permission_error",
	http.StatusNotFound:              "not_found_error",
	http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusServiceUnavailable:    "overloaded_error",
	529:                              "overloaded_error",
	http.StatusGatewayTimeout:        "timeout_error",
}
