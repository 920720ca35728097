package recording_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport/recording"
)

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
	for fields, want := range map[string]string{
		`"ttft_ms":0,"e2e_ms":0`: "", `"v":-1`: "recording: line 1: v is not a known version of the format", `"v":1000`: "recording: line 1: v is not a known version of the format",
		`"ttft_ms":-0.1`: "recording: line 1: ttft_ms is negative", `"cached_tokens":-1`: "recording: line 1: cached_tokens is negative",
	} {
		err := readOne(`{"time":"2026-01-02T03:04:05Z",` + fields + `}`)
		if want == "" {
			assert.NoError(t, err)
		} else {
			assert.EqualError(t, err, want)
		}
	}
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
	write, end = recording.NewWriter(fullDisk{})
	write(recording.Request{Time: time.Unix(1, 0)})
	assert.ErrorIs(t, end(), errFull)
}
