package modelserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// apiError is an error in the form of OpenAI's API.
type apiError struct {
	status     int
	retryAfter string
	Message    string  `json:"message"`
	Type       string  `json:"type"`
	Param      *string `json:"param"`
	Code       *string `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

// errorTypes are OpenAI's names for the errors of a status.
var errorTypes = map[int]string{
	http.StatusBadRequest:            "invalid_request_error",
	http.StatusUnauthorized:          "authentication_error",
	http.StatusForbidden:             "permission_error",
	http.StatusNotFound:              "invalid_request_error",
	http.StatusRequestEntityTooLarge: "invalid_request_error",
	http.StatusTooManyRequests:       "rate_limit_error",
	http.StatusInternalServerError:   "server_error",
	http.StatusServiceUnavailable:    "service_unavailable",
}

// messageErrorTypes are Anthropic's.
var messageErrorTypes = map[int]string{
	http.StatusBadRequest:            "invalid_request_error",
	http.StatusUnauthorized:          "authentication_error",
	http.StatusForbidden:             "permission_error",
	http.StatusNotFound:              "not_found_error",
	http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests:       "rate_limit_error",
	529:                              "overloaded_error",
}

func invalid(param, format string, args ...any) *apiError {
	e := &apiError{status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...), Type: "invalid_request_error"}
	if param != "" {
		e.Param = &param
	}
	return e
}

func (e *apiError) withCode(code string) *apiError {
	e.Code = &code
	return e
}

func (e *apiError) withStatus(status int) *apiError {
	e.status = status
	return e
}

func (s *Server) tooLong(prompt, output int) *apiError {
	return invalid("", "this model's maximum context length is %d tokens; the prompt has %d and %d were asked for",
		s.limit, prompt, output).withCode("context_length_exceeded")
}

// submitError is the answer to a request that the engine has refused.
func submitError(err error) *apiError {
	if errors.Is(err, errStopped) {
		return &apiError{status: http.StatusServiceUnavailable, Message: err.Error(), Type: "service_unavailable"}
	}
	return &apiError{status: http.StatusInternalServerError, Message: err.Error(), Type: "server_error"}
}

// writeError answers like OpenAI's API.
func writeError(w http.ResponseWriter, e *apiError) {
	if e.retryAfter != "" {
		w.Header().Set("Retry-After", e.retryAfter)
	}
	writeJSON(w, e.status, map[string]*apiError{"error": e})
}

// writeMessageError answers like Anthropic's API.
func writeMessageError(w http.ResponseWriter, e *apiError) {
	if e.retryAfter != "" {
		w.Header().Set("Retry-After", e.retryAfter)
	}
	kind, ok := messageErrorTypes[e.status]
	if !ok {
		kind = "api_error"
	}
	writeJSON(w, e.status, map[string]any{
		"type": "error", "error": map[string]string{"type": kind, "message": e.Message},
	})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the client has left
}
