package extproc_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/transporttest"
)

// An Envoy that uses the picker leaves its accounts correct, however an engine misbehaves.
func TestThePickerConforms(t *testing.T) {
	for mode, edits := range modes {
		t.Run(mode, func(t *testing.T) {
			transporttest.RunPicker(t, func(t *testing.T, router *endpick.Router) http.Handler {
				server, err := extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router}})
				require.NoError(t, err)
				to, err := url.Parse(envoyFor(t, server, router, edits...))
				require.NoError(t, err)
				base := &http.Transport{DisableCompression: true}
				t.Cleanup(base.CloseIdleConnections)
				return &httputil.ReverseProxy{
					Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
					Transport:     base,
					FlushInterval: -1,
					ErrorLog:      log.New(io.Discard, "", 0),
				}
			})
		})
	}
}
