package dialect

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// startedMeter is the meter of a stream whose client did not ask for usage.
func startedMeter(t testing.TB) *Meter {
	return startedMeterOf(t, "/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`)
}

func startedMeterOf(t testing.TB, path, body string) *Meter {
	return newTalk(t).streaming(path, body)
}

var oneChunk = []byte("data: " + contentChunk + "\n\n")

func TestMeteringAChunkAllocatesNothing(t *testing.T) {
	m := startedMeter(t)
	out := m.Feed(nil, oneChunk)
	assert.Equal(t, string(oneChunk), string(out))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { out = m.Feed(out[:0], oneChunk) }))
}
