package caddy

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A pool's router is available from its first request on, survives a reload, and goes
// with the pool.
func TestRouterOfAPool(t *testing.T) {
	a, b := server(t), server(t)
	t.Cleanup(func() { assert.Nil(t, Router("default"), "no configuration uses it") })
	r := newRunning(t)
	assert.Nil(t, Router("default"))
	require.NoError(t, r.load("endpoint "+a, ""))
	assert.Nil(t, Router("default"), "nobody has asked for anything yet")
	const chat = `{"model":"demo-8b","messages":[{"role":"user","content":"Hi!"}],"max_tokens":2}`
	r.asked(chat)
	router := Router("default")
	require.NotNil(t, router)
	assert.Nil(t, Router("other"))
	assert.Len(t, router.Endpoints(), 1)
	require.Eventually(t, func() bool { return router.Stats().OpenLeases == 0 }, 30*time.Second, time.Millisecond)
	require.NoError(t, r.load(fmt.Sprintf("endpoint %s\nendpoint %s", a, b), ""))
	r.asked(chat)
	assert.Same(t, router, Router("default"))
	assert.Len(t, router.Endpoints(), 2)
	assert.EqualValues(t, 2, router.Stats().Routed)
}
