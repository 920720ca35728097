package transport_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

func ptr[T any](v T) *T { return &v }

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	records := []transport.Record{
		{
			Time: time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC), TTFTMillis: ptr(12.5), E2EMillis: 250.25,
			Model: "m", Endpoint: "a", Status: "completed", HTTP: 200, Attempts: 2, Stream: true,
			InputTokens: 100, OutputTokens: 4, CachedTokens: ptr(0), MaxTokens: 64,
			Blocks: []transport.Hash{1, 0xfedcba9876543210}, BlockTokens: 15.25, Tenant: 7, Session: 8,
			Priority: -1, SLOTTFTMillis: 200, SLOTPOTMillis: 50,
		},
		{Time: time.Unix(0, 0).UTC(), Status: "failed"},
	}
	var b bytes.Buffer
	w := transport.NewRecordWriter(&b)
	for _, r := range records {
		w.Write(r)
	}
	require.NoError(t, w.Close())
	assert.Contains(t, b.String(), `"blocks":["1","fedcba9876543210"]`)
	assert.Contains(t, b.String(), `"cached_tokens":0`, "zero is not absent")
	assert.Equal(t, 1, strings.Count(b.String(), "cached_tokens"), "absent is not zero")

	var got []transport.Record
	require.NoError(t, transport.ReadRecords(strings.NewReader("\n"+b.String()+" \n"), func(r *transport.Record) error {
		got = append(got, *r)
		return nil
	}))
	assert.Equal(t, records, got)
}

func TestBrokenRecordsAreNamedByTheirLine(t *testing.T) {
	const good = `{"time":"2026-01-02T03:04:05Z","status":"completed","e2e_ms":1,"input_tokens":1,"output_tokens":1,"attempts":1}`
	for _, bad := range []string{
		"{", "x", `[]`, `{}`, `{"time":"yesterday"}`, strings.Replace(good, `"e2e_ms":1`, `"e2e_ms":-1`, 1),
		strings.Replace(good, `"input_tokens":1`, `"input_tokens":-1`, 1), strings.Replace(good, `"output_tokens":1`, `"output_tokens":1.5`, 1),
		strings.Replace(good, `"attempts":1`, `"blocks":["xyz"]`, 1), strings.Replace(good, `"attempts":1`, `"ttft_ms":-2`, 1),
		strings.Replace(good, `"attempts":1`, `"cached_tokens":-2`, 1), strings.Replace(good, `"attempts":1`, `"block_tokens":-2`, 1),
	} {
		n := 0
		err := transport.ReadRecords(strings.NewReader(good+"\n\n"+bad+"\n"+good), func(*transport.Record) error { n++; return nil })
		var re *transport.RecordError
		require.ErrorAs(t, err, &re, bad)
		assert.ErrorIs(t, err, transport.ErrRecord)
		assert.Equal(t, 3, re.Line)
		assert.Equal(t, 1, n)
	}
	stop := errors.New("stop")
	assert.Equal(t, stop, transport.ReadRecords(strings.NewReader(good), func(*transport.Record) error { return stop }))
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errBroke }

func TestRecordWriterKeepsTheFirstError(t *testing.T) {
	w := transport.NewRecordWriter(fullDisk{})
	for range 10000 {
		w.Write(transport.Record{})
	}
	assert.Equal(t, errBroke, w.Close())
}

func FuzzReadRecords(f *testing.F) {
	f.Add(`{"time":"2026-01-02T03:04:05Z","status":"completed","blocks":["ff"]}`)
	f.Add("{\n\n[]")
	f.Fuzz(func(t *testing.T, s string) {
		err := transport.ReadRecords(strings.NewReader(s), func(r *transport.Record) error {
			if r.InputTokens < 0 || r.OutputTokens < 0 || r.Time.IsZero() {
				t.Fatalf("%+v", r)
			}
			return nil
		})
		if err != nil && !errors.Is(err, transport.ErrRecord) {
			t.Fatal(err)
		}
	})
}

// A recording holds no word of what was said, by the client or the model.
func TestRecordingHoldsNoText(t *testing.T) {
	e := startEngine(t, nil)
	var b bytes.Buffer
	out := transport.NewRecordWriter(&b)
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
