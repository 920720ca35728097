package host

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An http.Transport goes on connecting when the request has been given up, so the dialer has a
// limit of its own.
func TestConnectingEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	_, err := Client(time.Millisecond, 1).Transport.(*http.Transport).DialContext(ctx, "tcp", "endpick.invalid:80")
	require.Error(t, err)
	assert.NoError(t, ctx.Err(), "it waits for as long as it is allowed to")
}
