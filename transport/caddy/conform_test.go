package caddy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/transporttest"
)

// Caddy with endpick keeps correct accounts, however an engine misbehaves.
//
// A process has only one Caddy, so one configuration has a pool for each fault.
func TestCaddyConforms(t *testing.T) {
	const fault = "X-Fault"
	var text strings.Builder
	text.WriteString("{\n\tadmin off\n\tpersist_config off\n\tlog {\n\t\toutput discard\n\t}\n}\nhttp:// {\n")
	for i := range transporttest.Faults() {
		fmt.Fprintf(&text, "@%d header %s %d\nreverse_proxy @%d {\ndynamic endpick\ntransport endpick {\npool fault-%d\nendpoint 127.0.0.1:1\n}\n}\n", i, fault, i, i, i)
	}
	text.WriteString("}\n")
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text.String()), map[string]any{"filename": "Caddyfile"})
	require.NoError(t, err)
	var config caddy.Config
	require.NoError(t, json.Unmarshal(adapted, &config))
	ctx, err := caddy.ProvisionContext(&config) // it has no listener
	require.NoError(t, err)
	app, err := ctx.App("http")
	require.NoError(t, err)
	server := app.(*caddyhttp.App).Servers["srv0"]

	var next atomic.Int64
	t.Run("faults", func(t *testing.T) { // returns when all have ended
		transporttest.Run(t, func(t *testing.T, router *endpick.Router) http.Handler {
			number := fmt.Sprint(next.Add(1) - 1)
			lend(t, "fault-"+number, router)
			return http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
				in.Header.Set(fault, number)
				server.ServeHTTP(w, in)
			})
		})
	})
	assert.EqualValues(t, len(transporttest.Faults()), next.Load())
}

// lend replaces the router that a pool would make.
func lend(t *testing.T, name string, router *endpick.Router) {
	shared, _, err := pools.LoadOrNew(name, func() (caddy.Destructor, error) { return nil, errors.New("no configuration has it") })
	require.NoError(t, err)
	t.Cleanup(func() { // together with the configuration's own use
		for gone := false; !gone; {
			var err error
			gone, err = pools.Delete(name)
			assert.NoError(t, err)
		}
	})
	p := shared.(*pool)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.router = router
	p.applied.policy, p.applied.endpoints = p.wanted.policy, p.wanted.endpoints
}
