package transport_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/transporttest"
)

func TestTransportConforms(t *testing.T) {
	require.GreaterOrEqual(t, len(transporttest.Faults()), 85)
	transporttest.Run(t, func(t *testing.T, router *endpick.Router) http.Handler {
		tr := rig.Must(transport.New(transport.Config{Router: router}))
		t.Cleanup(tr.CloseIdleConnections)
		return proxy(tr)
	})
}

// The example's gateway keeps correct accounts, however an engine misbehaves.
func TestTheDispatcherConforms(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, router *endpick.Router) http.Handler {
		s := rig.Must(transport.NewDispatcher(transport.Config{Router: router}))
		base := &http.Transport{}
		t.Cleanup(base.CloseIdleConnections)
		return &gateway{dispatcher: s, client: &http.Client{Transport: base}}
	})
}
