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
