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

// sessionName is the name of the session from other sources than endpick's own header;
// empty: none. It does not refer to the body.
func (c *request) sessionName(header http.Header) string {
	for _, h := range sessionHeaders {
		if v := header[h]; len(v) > 0 && v[0] != "" {
			return validName(v[0])
		}
	}
	for _, v := range [...][]byte{c.parts[cacheKeyPart], field(c.parts[metadataPart], "user_id"), c.parts[userPart]} {
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
