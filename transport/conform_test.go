package transport_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/transporttest"
)

func TestTransportConforms(t *testing.T) {
	require.GreaterOrEqual(t, len(transporttest.Faults()), 85)
	transporttest.Run(t, func(t *testing.T, router *endpick.Router) http.Handler {
		tr, err := transport.New(transport.Config{Router: router})
		require.NoError(t, err)
		t.Cleanup(tr.CloseIdleConnections)
		return &httputil.ReverseProxy{
			Rewrite: func(*httputil.ProxyRequest) {}, Transport: tr, ErrorHandler: transport.ErrorHandler, FlushInterval: -1,
			ErrorLog: log.New(io.Discard, "", 0),
		}
	})
}
