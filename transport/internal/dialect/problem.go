package dialect

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
)

// Problem is what went wrong with a request, for its client.
type Problem struct {
	Status  int
	Message string
	// Kind is OpenAI's type of error, Code its finer code, and Param the member of
	// the request to blame. Empty: derived from the status, or none.
	Kind, Code, Param string
}

// Body returns the problem as a JSON object in the format of the API at this
// path: Anthropic's, Ollama's, or OpenAI's for all other APIs.
func (p Problem) Body(path string) []byte {
	return p.body(apiOf(http.MethodPost, path))
}

func (p Problem) body(of *api) []byte {
	shape := of.errors
	if shape == nil {
		shape = openAIErrors
	}
	b, _ := json.Marshal(shape(p))
	return b
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
	var object struct{ Message string }
	var message string
	_ = json.Unmarshal(form.Error, &object)
	_ = json.Unmarshal(form.Error, &message)
	p.Message = cmp.Or(object.Message, message, form.Message, form.Detail, p.Message)
	return p
}

// Event returns the event with which a stream of the API at this path ends that has failed before
// it had any other.
func (p Problem) Event(path string) []byte { return p.event(nil, apiOf(http.MethodPost, path), 0) }

// event appends the event with which a stream of this API ends that has failed; sequence is the
// number of the event, where they have one.
func (p Problem) event(dst []byte, of *api, sequence int) []byte {
	body := p.body(of)
	if of.lines {
		return append(append(dst, body...), '\n')
	}
	switch of {
	case responses:
		body, _ = json.Marshal(struct {
			Type     string  `json:"type"`
			Code     string  `json:"code"`
			Message  string  `json:"message"`
			Param    *string `json:"param"`
			Sequence int     `json:"sequence_number"`
		}{"error", cmp.Or(p.Code, "server_error"), p.Message, nil, sequence})
		fallthrough
	case messages:
		dst = append(dst, "event: error\n"...)
	}
	return append(append(append(dst, "data: "...), body...), "\n\n"...)
}

func openAIErrors(p Problem) any {
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	o := object{Message: p.Message, Type: cmp.Or(p.Kind, openAIKind(p.Status)), Code: cmp.Or(p.Code, strconv.Itoa(p.Status))}
	if p.Param != "" {
		o.Param = &p.Param
	}
	return map[string]object{"error": o}
}

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

func anthropicErrors(p Problem) any {
	type object struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	return struct {
		Type  string `json:"type"`
		Error object `json:"error"`
	}{"error", object{cmp.Or(anthropicKinds[p.Status], openAIKind(p.Status)), p.Message}}
}
