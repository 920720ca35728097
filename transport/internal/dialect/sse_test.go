package dialect

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// twinEvent is one event of a stream, cut by a reader that sees the whole stream.
type twinEvent struct {
	raw  string
	data []string
}

func twinSplit(stream string) []twinEvent {
	var events []twinEvent
	var cur twinEvent
	for stream != "" {
		line, end := stream, ""
		if i := strings.IndexAny(stream, "\r\n"); i >= 0 {
			line, end = stream[:i], stream[i:i+1]
			if strings.HasPrefix(stream[i:], "\r\n") {
				end = "\r\n"
			}
		}
		stream = stream[len(line)+len(end):]
		cur.raw += line + end
		if line == "" {
			events = append(events, cur)
			cur = twinEvent{}
			continue
		}
		if field, value, _ := strings.Cut(line, ":"); field == "data" || field == "error" {
			cur.data = append(cur.data, strings.TrimPrefix(value, " "))
		}
	}
	if cur.raw != "" {
		events = append(events, cur)
	}
	for i := range events {
		if e := &events[i]; strings.HasPrefix(e.raw, "{") {
			e.data = []string{strings.TrimRight(e.raw, "\r\n")}
		}
	}
	return events
}

// filtered is what is passed on of a stream that arrives in pieces of the given sizes, over and over.
func filtered(stream string, sizes []int, inspect func([]byte) edit) string {
	f := eventFilter{inspect: inspect}
	var out []byte
	for i := 0; stream != ""; i++ {
		n := min(sizes[i%len(sizes)], len(stream))
		out = f.feed(out, []byte(stream[:n]))
		stream = stream[n:]
	}
	out, _ = f.end(out)
	return string(out)
}

func drops(data string) bool { return strings.Contains(data, "drop") }

// checkAgainstTwin reads a stream in pieces and compares the events and what is
// passed on.
func checkAgainstTwin(t require.TestingT, stream string, sizes []int) {
	var want, wantData []string
	for _, e := range twinSplit(stream) {
		data := strings.Join(e.data, "\n")
		if len(e.data) > 0 {
			wantData = append(wantData, data)
		}
		switch {
		case len(e.data) > 0 && drops(data):
		case len(e.data) > 0 && strings.Contains(data, "other"):
			want = append(want, "data: x\n\n")
		default:
			want = append(want, e.raw)
		}
	}
	var data []string
	got := filtered(stream, sizes, func(b []byte) edit {
		data = append(data, string(b))
		v := edit{drop: drops(string(b))}
		if bytes.Contains(b, []byte("other")) {
			v.data = []byte("x")
		}
		return v
	})
	require.Equal(t, wantData, data)
	require.Equal(t, strings.Join(want, ""), got)
}

func TestEventReaderAgainstTwin(t *testing.T) {
	line := rapid.SampledFrom([]string{
		"", "", "", "data: {\"a\":1}", "data:x", "data", "data:  two spaces", "data: drop", "data: an other", "database: no",
		": a comment", "event: error", "error: {}", "{", "id: 7", "retry: 5", "data: [DONE]", "dat", "d",
	})
	terminator := rapid.SampledFrom([]string{"\n", "\n", "\r\n", "\r"})
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		for range rapid.IntRange(0, 20).Draw(t, "lines") {
			b.WriteString(line.Draw(t, "line") + terminator.Draw(t, "end"))
		}
		stream := b.String()[:rapid.IntRange(0, b.Len()).Draw(t, "cut")]
		checkAgainstTwin(t, stream, rapid.SliceOfN(rapid.IntRange(1, 40), 1, 5).Draw(t, "sizes"))
	})
}

func FuzzEventReader(f *testing.F) {
	f.Add("data: {}\n\ndata: drop\n\n: x\r\n\r\ndata: [DONE]\n\n", byte(3))
	f.Add("data: other\r\rdata: drop\r\r\ndata\n\n", byte(1))
	f.Fuzz(func(t *testing.T, stream string, size byte) { checkAgainstTwin(t, stream, []int{int(size) + 1, 1, 7}) })
}

func TestEventIsPassedOnAsSoonAsItEnds(t *testing.T) {
	f := eventFilter{inspect: func([]byte) edit { return edit{} }}
	for _, event := range []string{"data: 1\n\n", ": ping\n\n", "data: 2\r\n\r\n"} {
		assert.Equal(t, event, string(f.feed(nil, []byte(event))))
	}
}

// Members of a dropped event go into the object of the event before, unless it has them,
// wherever pieces end.
func TestAMemberIsJoinedToTheEventBefore(t *testing.T) {
	inspect := func(b []byte) edit {
		v := edit{hold: bytes.Contains(b, []byte("hold"))}
		if i := bytes.Index(b, []byte(`"join":1`)); i >= 0 {
			v.drop, v.join = true, b
		}
		return v
	}
	for stream, want := range map[string]string{
		"data: {\"hold\":0}\n\ndata: {\"join\":1}\n\ndata: [DONE]\n\n":       "data: {\"hold\":0,\"join\":1}\n\ndata: [DONE]\n\n",
		"data: {\"hold\":0}\r\n\r\ndata: {\"join\":1}\r\n\r\nid: 1\r\n\r\n":  "data: {\"hold\":0,\"join\":1}\r\n\r\nid: 1\r\n\r\n",
		"data: {\"hold\":0}\r\rdata: {\"join\":1}\r\r":                       "data: {\"hold\":0,\"join\":1}\r\r",
		"data: {\"hold\":0}\n\ndata: {\"hold\":1}\n\ndata: {\"join\":1}\n\n": "data: {\"hold\":0}\n\ndata: {\"hold\":1,\"join\":1}\n\n",
		"data: {\"hold\":0}\n\ndata: {}\n\ndata: {\"join\":1}\n\n":           "data: {\"hold\":0}\n\ndata: {}\n\n",
		"data: {\"join\":1}\n\n":                                             "",
		"data: {\"hold\":0}\n\n":                                             "data: {\"hold\":0}\n\n",
		"data: {\"hold\":0}\n\ndata: {":                                      "data: {\"hold\":0}\n\ndata: {",
		"data: {\"hold\":\ndata: 0}\n\ndata: {\"join\":1}\n\n":               "data: {\"hold\":\ndata: 0}\n\n",
		"data: {\"hold\":0}\nid: {}\n\ndata: {\"join\":1}\n\n":               "data: {\"hold\":0}\nid: {}\n\n",
		"data: {\"hold\":0,\"join\":2}\n\ndata: {\"join\":1}\n\n":            "data: {\"hold\":0,\"join\":2}\n\n",
	} {
		for size := 1; size <= len(stream); size++ {
			require.Equal(t, want, filtered(stream, []int{size}, inspect), "%q in pieces of %d", stream, size)
		}
	}
}

func TestEventTooLong(t *testing.T) {
	for _, end := range []string{"\n", "\r\n", "\r"} {
		long := "data: " + strings.Repeat("x", 2*maxEvent-len("data: begins"+end+"data: ")) // ends where a piece does that is passed on
		stream := "data: first" + end + end + "data: begins" + end + long + end + "data: more" + end + end + "data: drop" + end + end + "data: last" + end + end
		var inspected []string
		f := eventFilter{inspect: func(b []byte) edit {
			inspected = append(inspected, string(b))
			return edit{drop: drops(string(b))}
		}}
		var got []byte
		for piece := range slices.Chunk([]byte(stream), 2500) {
			got = f.feed(f.feed(got, piece[:1]), piece[1:])
		}
		got, _ = f.end(got)
		assert.Equal(t, strings.Replace(stream, "data: drop"+end+end, "", 1), string(got))
		assert.Equal(t, []string{"first", "drop", "last"}, inspected)
		assert.LessOrEqual(t, cap(f.buf), 2*maxEvent)
	}
}
