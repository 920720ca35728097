package dialect

import (
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// Sessions are recognized from what clients send anyway. None of it is to be
// trusted: it only says which turns belong together.

// sessionHeaders name a session, in order of precedence. Our own header
// precedes them.
var sessionHeaders = [...]string{"X-Claude-Code-Session-Id", "X-Session-Affinity", "Session-Id", "Session_id"}

// session is what the body says about the session.
type session struct {
	cacheKey, metadata, user, previous []byte
	unstored                           bool // the engine must not keep the response
}

func (s *session) member(key string, v []byte) {
	switch key {
	case "prompt_cache_key":
		s.cacheKey = v
	case "metadata":
		s.metadata = v
	case "user":
		s.user = v
	case "previous_response_id":
		s.previous = v
	case "store":
		s.unstored = string(v) == "false"
	}
}

// name is the name of the session from other sources than endpick's own header;
// empty: none. It does not refer to the body.
func (s *session) name(header http.Header) string {
	for _, h := range sessionHeaders {
		if v := header[h]; len(v) > 0 && v[0] != "" {
			return validName(v[0])
		}
	}
	for _, v := range [...][]byte{s.cacheKey, field(s.metadata, "user_id"), s.user} {
		if name := plain(v); name != "" {
			return validName(name)
		}
	}
	return ""
}

// validName makes a valid name: it replaces a string that is too long or not
// Unicode by a hash.
func validName(s string) string {
	if len(s) <= maxName && utf8.ValidString(s) {
		return strings.Clone(s)
	}
	return "hash-" + strconv.FormatUint(xxhash.Sum64String(s), 16)
}

// headSession names a conversation by its head.
func headSession(hash uint64) string { return "head-" + strconv.FormatUint(hash, 16) }
