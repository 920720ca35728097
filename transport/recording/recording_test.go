package recording_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func ptr[T any](v T) *T { return &v }

func TestRequestsComeBackAsTheyWere(t *testing.T) {
	requests := []recording.Request{
		{
			Time: time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC), TTFTMillis: ptr(12.5), E2EMillis: 250.25,
			Model: "m", Endpoint: "a", Status: "completed", HTTP: 200, Attempts: 2, Stream: true,
			InputTokens: 100, OutputTokens: 4, CachedTokens: ptr(0), MaxTokens: 64,
			Blocks: []recording.Hash{1, 0xfedcba9876543210}, BlockTokens: 15.25, Tenant: 7, Session: 8,
			Priority: -1, SLOTTFTMillis: 200, SLOTPOTMillis: 50,
		},
		{
			Version: recording.Version, Time: time.Unix(1, 0).UTC(), Status: "completed", Adapter: "l", Salt: 9,
			Prompt: &recording.Prompt{
				Tools: []recording.Piece{{Bytes: 3, End: 5, Hash: 1}},
				Messages: []recording.Piece{{
					Role: "user", Bytes: 20, End: 40, Hash: 2, Words: 3, Template: 4, Text: "at 10:30",
					Values: []recording.Value{{At: 3, Kind: "timestamp", Hash: 5}}, Shape: []uint32{1, 2},
				}},
				Partial: true,
			},
		},
		{Time: time.Unix(0, 0).UTC(), Status: "failed"},
	}
	var b bytes.Buffer
	write, end := recording.NewWriter(&b)
	for _, r := range requests {
		write(r)
	}
	require.NoError(t, end())
	assert.Contains(t, b.String(), `"blocks":["1","fedcba9876543210"]`)
	assert.Contains(t, b.String(), `"cached_tokens":0`, "zero is not absent")
	assert.Equal(t, 1, strings.Count(b.String(), "cached_tokens"), "absent is not zero")

	var got []recording.Request
	var lines []int
	require.NoError(t, recording.Read(strings.NewReader("\n"+b.String()+" \n"), func(line int, r *recording.Request) error {
		got = append(got, *r)
		lines = append(lines, line)
		return nil
	}))
	assert.Equal(t, requests, got)
	assert.Equal(t, []int{2, 3, 4}, lines, "empty lines count")
}

const good = `{"time":"2026-01-02T03:04:05Z","status":"completed","e2e_ms":1,"input_tokens":1,"output_tokens":1,"attempts":1}`

func TestBrokenLinesAreNamed(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for _, c := range []struct{ line, field, why string }{
		{"{", "", "unexpected end of JSON input"},
		{"x", "", "invalid character 'x' looking for beginning of value"},
		{"[]", "", "json: cannot unmarshal array into Go value of type recording.Request"},
		{"{}", "time", "is missing"},
		{with(`"e2e_ms":1`, `"e2e_ms":-1`), "e2e_ms", "is negative"},
		{with(`"input_tokens":1`, `"input_tokens":-1`), "input_tokens", "is negative"},
		{with(`"output_tokens":1`, `"output_tokens":1.5`), "output_tokens", "is a number 1.5"},
		{with(`"output_tokens":1`, `"output_tokens":-1`), "output_tokens", "is negative"},
		{with(`"attempts":1`, `"attempts":-1`), "attempts", "is negative"},
		{with(`"attempts":1`, `"ttft_ms":-0.1`), "ttft_ms", "is negative"},
		{with(`"attempts":1`, `"cached_tokens":-1`), "cached_tokens", "is negative"},
		{with(`"attempts":1`, `"max_tokens":-2`), "max_tokens", "is negative"},
		{with(`"attempts":1`, `"block_tokens":-2`), "block_tokens", "is negative"},
		{with(`"attempts":1`, `"slo_ttft_ms":-2`), "slo_ttft_ms", "is negative"},
		{with(`"attempts":1`, `"slo_tpot_ms":-2`), "slo_tpot_ms", "is negative"},
		{with(`"attempts":1`, `"v":3`), "v", "is not a known version of the format"},
		{with(`"attempts":1`, `"prompt":{"messages":[{"bytes":-1}]}`), "prompt.bytes", "is negative"},
		{with(`"attempts":1`, `"prompt":{"tools":[{"end":9}],"messages":[{"end":8}]}`), "prompt.end", "is before that of the piece before"},
		{with(`"attempts":1`, `"prompt":{"messages":[{"bytes":8,"values":[{"at":9}]}]}`), "prompt.values.at", "is out of order, or beyond the text"},
		{with(`"attempts":1`, `"blocks":["xyz"]`), "", `strconv.ParseUint: parsing "xyz": invalid syntax`},
	} {
		n := 0
		err := recording.Read(strings.NewReader(good+"\n\n"+c.line+"\n"+good), func(int, *recording.Request) error { n++; return nil })
		var le *recording.LineError
		require.ErrorAs(t, err, &le, c.line)
		assert.Equal(t, 3, le.Line)
		assert.Equal(t, c.field, le.Field, c.line)
		assert.EqualError(t, le.Err, c.why, c.line)
		assert.Equal(t, 1, n)
	}
}

func TestReadStopsWithTheErrorOfItsCaller(t *testing.T) {
	stop := errors.New("stop")
	assert.Equal(t, stop, recording.Read(strings.NewReader(good), func(int, *recording.Request) error { return stop }))
}

// A read error in the middle of a file is reported, not taken for its end.
func TestReadErrorsAreNotAnEnd(t *testing.T) {
	broke := errors.New("broke")
	for _, text := range []string{"", good, good + "\n", good + "\n" + good[:10]} {
		in := io.MultiReader(strings.NewReader(text), iotest.ErrReader(broke))
		err := recording.Read(in, func(int, *recording.Request) error { return nil })
		var le *recording.LineError
		require.ErrorAs(t, err, &le)
		assert.ErrorIs(t, err, broke)
		assert.Equal(t, 1+strings.Count(text, "\n"), le.Line)
	}
}

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// An invalid request ends the recording; what precedes it is written.
func TestWriterKeepsWhatCameBeforeAnError(t *testing.T) {
	var b bytes.Buffer
	write, end := recording.NewWriter(&b)
	write(recording.Request{Model: "first"})
	write(recording.Request{Model: "bad", E2EMillis: math.NaN()})
	write(recording.Request{Model: "last"})
	assert.ErrorContains(t, end(), "NaN")
	assert.Equal(t, 1, strings.Count(b.String(), "\n"))
	assert.Contains(t, b.String(), "first")
}

// Whatever can be read can be written, and reads back the same.
func FuzzRead(f *testing.F) {
	f.Add(`{"time":"2026-01-02T03:04:05Z","status":"completed","blocks":["ff"]}`)
	f.Add(good + "\n" + good)
	f.Add("{\n\n[]")
	f.Fuzz(func(t *testing.T, s string) {
		var requests []*recording.Request
		err := recording.Read(strings.NewReader(s), func(line int, r *recording.Request) error {
			require.False(t, r.InputTokens < 0 || r.OutputTokens < 0 || r.Time.IsZero() || line > 1+strings.Count(s, "\n"), "%d: %+v", line, r)
			requests = append(requests, r)
			return nil
		})
		var le *recording.LineError
		if err != nil && !errors.As(err, &le) {
			t.Fatal(err)
		}
		var once, twice bytes.Buffer
		write, end := recording.NewWriter(&once)
		for _, r := range requests {
			write(*r)
		}
		if end() != nil {
			return // a year of five digits, which RFC 3339 does not allow
		}
		write, end = recording.NewWriter(&twice)
		require.NoError(t, recording.Read(bytes.NewReader(once.Bytes()), func(_ int, r *recording.Request) error {
			write(*r)
			return nil
		}))
		require.NoError(t, end())
		require.Equal(t, once.String(), twice.String())
	})
}

// Files of version 1 can be read; fields it did not have are absent.
func TestVersion1IsRead(t *testing.T) {
	const line = `{"time":"2026-01-02T03:04:05Z","ttft_ms":12.5,"e2e_ms":250,"model":"m","endpoint":"a","status":"completed","http":200,` +
		`"attempts":1,"stream":true,"input_tokens":100,"output_tokens":4,"cached_tokens":64,"blocks":["1","ff"],"block_tokens":16,"tenant":"7","session":"8"}`
	n := 0
	require.NoError(t, recording.Read(strings.NewReader(line), func(_ int, r *recording.Request) error {
		n++
		assert.Zero(t, r.Version)
		assert.Nil(t, r.Prompt)
		assert.Equal(t, []recording.Hash{1, 0xff}, r.Blocks)
		return nil
	}))
	assert.Equal(t, 1, n)
}

// readOne returns the error for a file of one line.
func readOne(line string) error {
	return recording.Read(strings.NewReader(line), func(int, *recording.Request) error { return nil })
}

// Positions of values lie within the text and in order.
func TestPlacesOfValues(t *testing.T) {
	for values, ok := range map[string]bool{
		`[{"at":0},{"at":20}]`: true, `[{"at":3},{"at":3}]`: true, `[]`: true,
		`[{"at":21}]`: false, `[{"at":-1}]`: false, `[{"at":5},{"at":3}]`: false, `[{"at":1},{"at":5},{"at":3}]`: false,
	} {
		for _, pieces := range []string{"messages", "tools"} {
			err := readOne(`{"time":"2026-01-02T03:04:05Z","prompt":{"` + pieces + `":[{"bytes":20,"values":` + values + `}]}}`)
			var bad *recording.LineError
			assert.Equal(t, !ok, errors.As(err, &bad), "%s %s: %v", pieces, values, err)
			if bad != nil {
				assert.Equal(t, "prompt.values.at", bad.Field)
			}
		}
	}
}

func TestEdgesOfFields(t *testing.T) {
	const at = `{"time":"2026-01-02T03:04:05Z",`
	assert.NoError(t, readOne(at+`"ttft_ms":0,"e2e_ms":0}`))
	assert.EqualError(t, readOne(at+`"v":-1}`), "recording: line 1: v is not a known version of the format")
	assert.EqualError(t, readOne("\n{"), "recording: line 2: unexpected end of JSON input")
}

func TestNoNameHasNoHash(t *testing.T) {
	assert.Zero(t, recording.NameHash(""))
	assert.NotZero(t, recording.NameHash("a"))
	assert.NotEqual(t, recording.NameHash("a"), recording.NameHash("b"))
}

// An invalid request ends the recording, and Close returns that error even if the disk is
// full by then.
func TestTheFirstErrorIsThatOfTheRequest(t *testing.T) {
	write, end := recording.NewWriter(fullDisk{})
	write(recording.Request{Time: time.Unix(1, 0)}) // buffered until Close
	write(recording.Request{Time: time.Unix(1, 0), E2EMillis: math.NaN()})
	err := end()
	require.Error(t, err)
	assert.NotErrorIs(t, err, errFull)
	for _, n := range []int{1, 10_000} { // some of which are written before Close
		write, end = recording.NewWriter(fullDisk{})
		for range n {
			write(recording.Request{Time: time.Unix(1, 0)})
		}
		assert.Equal(t, errFull, end())
	}
}
