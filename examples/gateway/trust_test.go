package main

import (
	"io"
	"net/http"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// spy records the routed requests.
type spy struct{ requests []endpick.Request }

func (s *spy) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	s.requests = append(s.requests, *req)
	return nil
}

func TestHeadersAreTrustedOnDemand(t *testing.T) {
	server := answering(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "acme", r.Header.Get(tenantHeader), "what is the engine's is passed on")
		_, _ = io.WriteString(w, "{}")
	})
	for _, trusted := range []bool{false, true} {
		seen := &spy{}
		s := plain("random")
		s.TrustHeaders = trusted
		g := gatewayOf(t, s, endpick.Endpoint{ID: "a", Address: server.URL})
		require.NoError(t, g.router.SetPolicy(endpick.Policy{Admitters: []endpick.Admitter{seen}}))
		w := askFor(g, "/v1/completions", `{"model":"m","prompt":"hi"}`, tenantHeader, "acme", transport.PriorityHeader, "7", transport.SessionHeader, "chat-1")
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		assert.Empty(t, w.Header().Get(transport.EndpointHeader), "where a prompt is cached is nobody's business")
		require.Len(t, seen.requests, 1)
		got := seen.requests[0]
		want := endpick.Request{}
		if trusted {
			want = endpick.Request{Tenant: "acme", Priority: 7, Session: "chat-1"}
		}
		assert.Equal(t, want, endpick.Request{Tenant: got.Tenant, Priority: got.Priority, Session: got.Session})
	}
}
