package dialect

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// startedMeter is the meter of a stream whose client did not ask for usage.
func startedMeter(t testing.TB) *Meter {
	return startedMeterOf(t, "/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`)
}

func startedMeterOf(t testing.TB, path, body string) *Meter {
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a"}}})
	require.NoError(t, err)
	lease, err := router.Route(endpick.Request{Stream: true})
	require.NoError(t, err)
	reader, err := NewReader(Config{})
	require.NoError(t, err)
	call, err := reader.Read(Incoming{
		Method: http.MethodPost, Path: path, Body: []byte(body),
	})
	require.NoError(t, err)
	require.NoError(t, call.Prompt(t.Context()))
	call.Body(true)
	m := call.Meter(lease, time.Now)
	require.True(t, m.Header(200, http.Header{"Content-Type": {EventStream}}))
	return m
}

var oneChunk = []byte("data: " + contentChunk + "\n\n")

func TestMeteringAChunkAllocatesNothing(t *testing.T) {
	m := startedMeter(t)
	out := m.Feed(nil, oneChunk)
	assert.Equal(t, string(oneChunk), string(out))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { out = m.Feed(out[:0], oneChunk) }))
}
