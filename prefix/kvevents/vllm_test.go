package kvevents

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recorded are the messages of a file: a line of frames each.
func recorded(t *testing.T, name string) (all [][][]byte) {
	for line := range strings.Lines(string(rig.Must(os.ReadFile("testdata/vllm-0.32.0/" + name)))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var frames [][]byte
		for frame := range strings.FieldsSeq(line) {
			frames = append(frames, rig.Must(hex.DecodeString(strings.Trim(frame, "-"))))
		}
		all = append(all, frames)
	}
	require.NotEmpty(t, all)
	return all
}

// What is expected in the cache of vLLM 0.32.0, whose blocks have 128 tokens here, is what it found
// there; and its replay is what it had published.
func TestEventsOfVLLM(t *testing.T) {
	scope := func(adapter, salt string) prefix.Scope { return prefix.Scope{Adapter: adapter, Salt: salt} }
	open := func() (*stream, func(s prefix.Scope, tokens ...[]uint32) int) {
		i := newInformed()
		return &stream{sink: i.feed, decoder: newDecoder()}, i.cached
	}
	take := func(s *stream, frames [][]byte) []uint32 {
		number, payload, end, ok := parseFrames(frames)
		require.Equal(t, []bool{false, true}, []bool{end, ok})
		s.message(number, payload)
		require.Equal(t, precise.Whole, s.stats.Knows)
		require.Zero(t, s.stats.Counts, "nothing is unknown")
		b := rig.Must(s.decoder.batch(payload))
		for _, e := range b.events {
			if e.Kind == precise.Stored {
				return e.Tokens
			}
		}
		return nil
	}
	plain, end := prefix.Scope{}, make([]uint32, 13)

	events := recorded(t, "events.txt")
	s, cached := open()
	a := take(s, events[0])
	assert.Equal(t, 512, cached(plain, a, end[:1]), "A long found as much")
	more := take(s, events[1])
	assert.Equal(t, 512, cached(plain, a[:384], more, end))
	assert.Zero(t, cached(scope("", "tenant-a"), a, end[:1]))
	assert.Equal(t, a, take(s, events[2]))
	assert.Equal(t, 512, cached(scope("", "tenant-a"), a, end[:1]))
	ids := take(s, events[3])
	assert.Equal(t, []uint32{300, 683}, []uint32{ids[0], ids[383]})
	assert.Equal(t, 384, cached(plain, ids, end))
	assert.Equal(t, 640, cached(plain, a, take(s, events[4]), end), "the answer too")
	s, cached = open()
	take(s, events[0])
	assert.Equal(t, 384, cached(plain, a[:384], more, end), "A + more found as much")

	replay := recorded(t, "replay.txt")
	require.Len(t, replay, len(events)+1)
	for i := range events {
		assert.Equal(t, events[i], replay[i][1:])
	}
	_, _, over, _ := parseFrames(replay[len(events)])
	assert.True(t, over)

	lora := recorded(t, "lora.txt")
	s, cached = open()
	a = take(s, lora[0])
	assert.Zero(t, cached(scope("adapter", ""), a, end))
	assert.Equal(t, a, take(s, lora[1]))
	assert.Equal(t, []int{256, 256}, []int{cached(plain, a, end), cached(scope("adapter", ""), a, end)})
	other := take(s, lora[2])
	assert.Equal(t, 640, cached(plain, other, end))
	last := take(s, lora[3])
	assert.Equal(t, []int{0, 0, 640, 640}, []int{cached(plain, a, end), cached(scope("adapter", ""), a, end), cached(plain, other, end), cached(plain, last, end)})
}
