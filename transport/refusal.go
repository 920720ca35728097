package transport

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"time"
	"unicode"
)

// isFull reports whether a failure says no more than that the endpoint has no room for the request
// now, or still loads: with a status of 429; as an error with a word for that; or as a 503 at an
// endpoint where requests wait. It may be the engine's (vLLM, SGLang, llama.cpp, Ollama) or that of
// a proxy before it.
func isFull(status int, first []byte, queued bool) bool {
	unavailable := status == http.StatusServiceUnavailable || status == statusOverloaded
	return status == http.StatusTooManyRequests || unavailable && (queued || saysFull(first, false)) ||
		status < http.StatusBadRequest && saysFull(first, true)
}

// statusOverloaded is what Anthropic's API answers, and what imitates it.
const statusOverloaded = 529

// saysFull reports whether a failure has a word for being full, or loading, or, with codes, a code for
// it: that of a 503 is in any.
func saysFull(text []byte, codes bool) bool {
	before := ""
	for word := range bytes.FieldsFuncSeq(bytes.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		switch w := string(word); w {
		case "busy", "full", "overloaded", "overflow", "capacity", "queue", "backpressure", "loading":
			return true
		case "429", "503", "529":
			if codes && before == "code" {
				return true
			}
		default:
			before = w
		}
	}
	return false
}

// full makes health avoid the endpoint for as long as it asks for, and tells the client when to try
// again if the endpoint has not.
func (a *Attempt) full(header http.Header) {
	a.health.Full(retryAfterOf(header))
	if header != nil && header.Get("Retry-After") == "" {
		header.Set("Retry-After", "1")
	}
}

// retryAfterOf is how long a response asks not to be asked again; 0 or less: it does not say when.
func retryAfterOf(header http.Header) time.Duration {
	v := header.Get("Retry-After")
	if n, err := strconv.ParseUint(v, 10, 16); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(v)
	sent, unsaid := http.ParseTime(header.Get("Date"))
	if err != nil || unsaid != nil {
		return 0
	}
	return at.Sub(sent)
}
