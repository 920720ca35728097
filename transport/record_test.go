package transport_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
)

// A recording contains no word of a prompt or a response.
func TestRecordingHoldsNoText(t *testing.T) {
	e := startEngine(t, nil)
	var b bytes.Buffer
	write, end := recording.NewWriter(&b)
	w := newWorld(t, transport.Config{}, e.URL)
	prompt := strings.Repeat("the secret ingredient is cardamom, ", 10)
	w.ok(t, post(t, completions, `{"model":"m","stream":true,"user":"ann","prompt":"`+prompt+`"}`, transport.SessionHeader, "session-of-ann"))
	write(w.record(t))
	require.NoError(t, end())
	for _, word := range []string{"secret", "cardamom", "Once", "upon", "ann"} {
		assert.NotContains(t, b.String(), word)
	}
	r := w.record(t)
	require.Len(t, r.Blocks, len(prompt)/64)
	assert.EqualValues(t, w.observer.blocks[0][0], r.Blocks[0])
}

func TestRefusedRequestsAreRecorded(t *testing.T) {
	w := newWorld(t, transport.Config{}, startEngine(t, nil).URL)
	_, _, err := w.do(t, post(t, chatPath, chatStream, transport.PriorityHeader, "5", transport.SessionHeader, strings.Repeat("x", 300)))
	require.ErrorAs(t, err, new(*endpick.RequestError))
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Len(t, w.records, 1)
	assert.Equal(t, [3]any{5, 0, "refused"}, [3]any{w.records[0].Priority, w.records[0].Attempts, w.records[0].Status}, "with what was read of it")
}

// A request lasts until its response has ended, however long the host's calls take:
// here each look at the clock takes an hour, and that of Done is the last.
func TestARecordedRequestEndsWithItsResponse(t *testing.T) {
	start := time.Unix(1e9, 0)
	var passed, perCall, atDone atomic.Int64
	now := func() time.Time { return start.Add(time.Duration(passed.Load())) }
	w := newWorldOf(t, transport.Config{}, endpick.Config{Clock: func() time.Time {
		atDone.Store(passed.Load())
		passed.Add(perCall.Load())
		return now()
	}}, startEngine(t, nil).URL)
	resp, err := w.client.Do(post(t, completions, `{"model":"m","prompt":"x"}`))
	require.NoError(t, err)
	passed.Add(int64(3 * time.Second))
	perCall.Store(int64(time.Hour))
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.GreaterOrEqual(t, passed.Load(), int64(time.Hour))
	assert.Equal(t, float64(atDone.Load()-int64(time.Hour))/1e6, w.record(t).E2EMillis)
}

// Whatever the host changes, the recorded model is the client's; tenant, parameters and latencies
// are recorded, with fractions of a millisecond.
func TestWhatIsRecorded(t *testing.T) {
	start := time.Unix(1e9, 0)
	var passed atomic.Int64
	w := newWorldOf(t, transport.Config{
		Describe: func(_ *http.Request, _ []byte, req *endpick.Request) { req.Model, req.Tenant = "pool", "ann" },
	}, endpick.Config{Clock: func() time.Time { return start.Add(time.Duration(passed.Load())) }}, startEngine(t, nil).URL)
	resp, err := w.client.Do(post(t, chatPath, chatStream, transport.SessionHeader, "s1", "X-Slo-Ttft-Ms", "1.5", "X-Slo-Tpot-Ms", "2.25"))
	require.NoError(t, err)
	passed.Add(int64(2500 * time.Microsecond))
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	r := w.record(t)
	assert.Equal(t, "m", r.Model)
	assert.Equal(t, recording.NameHash("ann"), r.Tenant)
	assert.Equal(t, recording.NameHash("s1"), r.Session)
	require.NotNil(t, r.TTFTMillis)
	assert.Equal(t, []float64{2.5, 2.5, 1.5, 2.25}, []float64{*r.TTFTMillis, r.E2EMillis, r.SLOTTFTMillis, r.SLOTPOTMillis})
}
