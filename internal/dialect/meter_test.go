package dialect

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
)

// An engine that counts as it goes has counted everything before, also what was
// longer by estimate: the next piece is estimated on its own.
func TestTheEnginesCountReplacesTheEstimate(t *testing.T) {
	m := startedMeter(t)
	feed := func(bytes int, usage string) int {
		m.Feed(nil, fmt.Appendf(nil, `data: {"choices":[{"delta":{"content":%q}}]%s}`+"\n\n", strings.Repeat("x", bytes), usage))
		return m.Seen().OutputTokens
	}
	assert.Equal(t, 8, feed(32, ""), "four bytes a token")
	assert.Equal(t, 11, feed(400, `,"usage":{"completion_tokens":11}`))
	assert.Equal(t, 13, feed(8, ""))
	assert.Equal(t, 13, feed(3, ""))
	assert.Equal(t, 14, feed(1, ""), "parts of a token add up")
}

// SGLang repeats the text from its beginning with each event: what is new counts.
func TestTextThatIsRepeatedCountsOnce(t *testing.T) {
	m := startedMeterOf(t, "/generate", `{"model":"m","text":"hello","stream":true}`)
	for i, want := range []int{2, 4, 4, 8} {
		text := strings.Repeat("x", []int{8, 16, 16, 32}[i])
		m.Feed(nil, fmt.Appendf(nil, "data: {\"text\":%q}\n\n", text))
		assert.Equal(t, want, m.Seen().OutputTokens, "four bytes a token")
	}
}

// A stream with an event that is too long to be read is passed on, and nothing is
// said of what was not understood: neither that it was cut nor how it goes on.
func TestAStreamWithAnEventTooLong(t *testing.T) {
	content := []byte(`data: {"choices":[{"delta":{"content":"` + strings.Repeat("x", 100) + `"}}]}` + "\n\n")
	for _, long := range []bool{false, true} {
		m := startedMeter(t)
		m.Feed(nil, content)
		if long {
			m.Feed(nil, []byte("data: "+strings.Repeat("x", maxEvent+1)+"\n\n"))
		}
		_, err := m.End(nil)
		blocks := m.Outcome(endpick.Completed).Blocks
		if long {
			assert.NoError(t, err)
			assert.Empty(t, blocks)
		} else {
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
			assert.NotEmpty(t, blocks)
		}
	}
}

// A client that leaves is no failure of the engine, also after an error.
func TestAnErrorInTheStreamIsAFailureOfTheWholeOnly(t *testing.T) {
	for given, want := range map[endpick.Status]endpick.Status{
		endpick.Completed: endpick.Failed, endpick.Failed: endpick.Failed, endpick.Canceled: endpick.Canceled,
	} {
		m := startedMeter(t)
		m.Feed(nil, []byte(`data: {"error":{"message":"out of memory"}}`+"\n\n"))
		assert.Equal(t, want, m.Outcome(given).Status, given)
	}
}
