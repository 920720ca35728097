package modelserver

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// thinkingTokens is the length of the thoughts before an answer.
const thinkingTokens = 8

// script is what a prompt makes the server do, in double brackets in the last
// message. The zero value does nothing.
type script struct {
	key        string // the text in brackets
	status     int    // of the error to answer with; 0: none
	times      int    // how often; 0: always
	retryAfter string
	cut        int   // tokens after which the connection breaks; 0: never
	call       *call // the tool to call; nil: none
}

// call is a call of a tool.
type call struct {
	name      string
	arguments string // JSON
}

var (
	errorWords = regexp.MustCompile(`\[\[error ([45]\d\d)(?: retry-after=(\d+))?(?: times=(\d+))?\]\]`)
	cutWords   = regexp.MustCompile(`\[\[cut (\d{1,6})\]\]`)
	callWords  = regexp.MustCompile(`\[\[call ([a-zA-Z0-9_-]{1,64}) (\{.*?\})\]\]`)
)

// readScript parses the commands in a question. Calls need tools.
func readScript(question string, tools bool) (s script) {
	if !strings.Contains(question, "[[") {
		return s
	}
	if m := errorWords.FindStringSubmatch(question); m != nil {
		s.key, s.retryAfter = m[0], m[2]
		s.status, _ = strconv.Atoi(m[1])
		s.times, _ = strconv.Atoi(m[3]) // absent: always
	}
	if m := cutWords.FindStringSubmatch(question); m != nil {
		s.cut, _ = strconv.Atoi(m[1])
	}
	if m := callWords.FindStringSubmatch(question); tools && m != nil && json.Valid([]byte(m[2])) {
		s.call = &call{name: m[1], arguments: compact(json.RawMessage(m[2]))}
	}
	return s
}

// fail returns the error that the script asks for, if any.
func (s *Server) fail(q script) *apiError {
	if q.status == 0 {
		return nil
	}
	if q.times > 0 {
		s.mu.Lock()
		s.failed[q.key]++
		n := s.failed[q.key]
		s.mu.Unlock()
		if n > q.times {
			return nil
		}
	}
	e := failure(q.status, "", "as the prompt asks: %s", http.StatusText(q.status))
	e.retryAfter = q.retryAfter
	return e
}

// pieceKind is what a generated token belongs to.
type pieceKind int

const (
	thinkingPiece pieceKind = iota
	textPiece
	callPiece
)

// spoken is the answer to a prompt: thoughts, then text or a call.
type spoken struct {
	output
	thinking int // length of the thoughts
	call     *call
}

// length is the number of tokens of the answer, at most limit. Text has no end
// of its own.
func (s *spoken) length(limit int) int {
	if s.call == nil {
		return limit
	}
	return min(limit, s.thinking+tokensOf(s.call.arguments))
}

// piece is the i-th token.
func (s *spoken) piece(i int) (pieceKind, string) {
	switch {
	case i < s.thinking:
		return thinkingPiece, string(s.appendText(nil, i, i+1))
	case s.call == nil:
		return textPiece, string(s.appendText(nil, i, i+1))
	}
	at := (i - s.thinking) * bytesPerToken
	return callPiece, s.call.arguments[at:min(at+bytesPerToken, len(s.call.arguments))]
}

// parts are the first n tokens as they will come back in a prompt.
func (s *spoken) parts(n int) (parts []part) {
	if s.thinking > 0 {
		parts = append(parts, part{kind: thinkingPart, text: string(s.appendText(nil, 0, min(n, s.thinking)))})
	}
	switch {
	case n <= s.thinking:
	case s.call != nil:
		parts = append(parts, part{kind: callPart, name: s.call.name,
			text: s.call.arguments[:min(len(s.call.arguments), (n-s.thinking)*bytesPerToken)]})
	default:
		parts = append(parts, text(string(s.appendText(nil, s.thinking, n))))
	}
	return parts
}

func tokensOf(s string) int { return (len(s) + bytesPerToken - 1) / bytesPerToken }
