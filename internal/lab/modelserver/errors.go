package modelserver

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// apiError is an error as vLLM's.
type apiError struct {
	status     int
	retryAfter string
	Message    string  `json:"message"`
	Type       string  `json:"type"`
	Param      *string `json:"param"`
	Code       int     `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

// errorTypes are vLLM's names for the errors of a status, where they are not HTTP's.
var errorTypes = map[int]string{
	http.StatusBadRequest: "BadRequestError", http.StatusNotFound: "NotFoundError", http.StatusInternalServerError: "InternalServerError",
}

func failure(status int, param, format string, args ...any) *apiError {
	e := &apiError{status: status, Message: fmt.Sprintf(format, args...), Type: cmp.Or(errorTypes[status], http.StatusText(status)), Code: status}
	if param != "" {
		e.Param = &param
	}
	return e
}

func invalid(param, format string, args ...any) *apiError {
	return failure(http.StatusBadRequest, param, format, args...)
}

// submitError is the answer to a request that the engine has refused.
func submitError(err error) *apiError {
	if errors.Is(err, errStopped) {
		return failure(http.StatusServiceUnavailable, "", "%v", err)
	}
	return failure(http.StatusInternalServerError, "", "%v", err)
}

// writeError answers in the form of OpenAI's APIs.
func writeError(w http.ResponseWriter, e *apiError) { e.write(w, object{"error": e}) }

// writeMessageError answers like Anthropic's API.
func writeMessageError(w http.ResponseWriter, e *apiError) {
	e.write(w, object{"type": "error", "error": object{"type": e.Type, "message": e.Message}})
}

func (e *apiError) write(w http.ResponseWriter, body object) {
	if e.retryAfter != "" {
		w.Header().Set("Retry-After", e.retryAfter)
	}
	writeJSON(w, e.status, body)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the client has left
}
