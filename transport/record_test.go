package transport_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
)

// A recording holds no word of what was said, by the client or the model.
func TestRecordingHoldsNoText(t *testing.T) {
	e := startEngine(t, nil)
	var b bytes.Buffer
	out := recording.NewWriter(&b)
	w := newWorld(t, transport.Config{}, e.URL)
	prompt := strings.Repeat("the secret ingredient is cardamom, ", 10)
	w.ok(t, post(t, completions, `{"model":"m","stream":true,"user":"ann","prompt":"`+prompt+`"}`, transport.SessionHeader, "session-of-ann"))
	out.Write(w.record(t))
	require.NoError(t, out.Close())
	for _, word := range []string{"secret", "cardamom", "Once", "upon", "ann"} {
		assert.NotContains(t, b.String(), word)
	}
	r := w.record(t)
	require.Len(t, r.Blocks, len(prompt)/64)
	assert.EqualValues(t, w.observer.blocks[0][0], r.Blocks[0])
}

func TestRejectedRequestsAreRecorded(t *testing.T) {
	w := newWorld(t, transport.Config{})
	_, _, err := w.do(t, post(t, chatPath, chatStream))
	assert.ErrorIs(t, err, endpick.ErrNoEndpoints)
	r := w.record(t)
	assert.Equal(t, []any{"failed", 0, 0, ""}, []any{r.Status, r.Attempts, r.HTTP, r.Endpoint})
}
