package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request has one id: in the log, at the server and in the response, also if the server has one of
// its own, or can't be reached.
func TestOneID(t *testing.T) {
	var got []string
	server := answering(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header[idHeader]
		w.Header().Set(idHeader, "the server's")
		_, _ = io.WriteString(w, "{}")
	})
	for _, address := range []string{server.URL, "http://127.0.0.1:1"} {
		g := gatewayOf(t, plain("random"), endpick.Endpoint{ID: "a", Address: address})
		var lines lockedBuffer
		g.requests.log, g.requests.which = newLogger(&lines, &logSettings{Level: "info"}), "all"
		for _, own := range []string{"", "order-17", strings.Repeat("x", 200) + "\n"} {
			headers, want := []string(nil), `^[0-9a-f]{8}-\d+$`
			if own != "" {
				headers, want = []string{idHeader, own, idHeader, "another", "Connection", idHeader}, "^"+cleanID(own)+"$"
			}
			w := askGateway(g, "/v1/chat/completions", headers...)
			require.Len(t, w.Header()[idHeader], 1)
			id := w.Header().Get(idHeader)
			assert.Regexp(t, want, id)
			assert.Contains(t, lines.String(), " id="+id+" ")
			if address == server.URL {
				assert.Equal(t, []string{id}, got)
			}
		}
	}
}
