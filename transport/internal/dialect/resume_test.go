package dialect

import (
	"cmp"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Streams of real engines that broke off after three words, what was asked for then, the rest as engines said
// it, and what the client got.
func TestResumedStreamsOfEngines(t *testing.T) {
	files := rig.Must(filepath.Glob("testdata/resumed/*.txt"))
	require.Len(t, files, 6)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b := rig.Must(os.ReadFile(file))
			sections := strings.SplitN(string(b), "=>\n", 5)
			head, body, _ := strings.Cut(sections[0], "\n\n")
			_, path := cutMethod(head)
			engine := "ollama"
			if strings.HasPrefix(filepath.Base(file), "llamacpp") {
				engine = "llama.cpp"
			}
			router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Engine: engine}}}))
			lease := rig.Must(router.Route(endpick.Request{}))
			defer lease.Done(endpick.Outcome{})
			for _, size := range []int{1, 100, 1 << 20} {
				w := newTalkWith(t, Config{Resume: true})
				now := time.Unix(1795740157, 0)
				clock := func() time.Time { now = now.Add(time.Second); return now }
				first := w.ask(path, strings.TrimSuffix(body, "\n"), nil)
				begun := first.Meter(endpick.Lease{}, clock)
				got := feed(begun, strings.TrimSuffix(sections[1], "\n"), size) // without the end of a line
				firstToken := begun.Seen().FirstToken
				rest := first.Resume(begun)
				require.NotNil(t, rest)
				require.NoError(t, rest.Prompt(t.Context()))
				m := rest.Meter(lease, clock)
				got = append(got, feed(m, sections[3], size)...)
				got = rig.Must(m.End(got))
				asked := string(rest.body) + "\n"
				if *update {
					b := strings.Join([]string{sections[0], sections[1], asked, sections[3], string(got)}, "=>\n")
					require.NoError(t, os.WriteFile(file, []byte(b), 0o644))
					continue
				}
				assert.Equal(t, sections[2], asked)
				assert.Equal(t, sections[4], string(got), "in pieces of %d", size)
				assert.Equal(t, []any{6, firstToken}, []any{m.Seen().OutputTokens, m.Seen().FirstToken})
				assert.Len(t, m.answer.pieces[0].text, 6*len(" w123"), "nothing twice, and no gap: %s", m.answer.pieces[0].text)
			}
		})
	}
}

// Of a stream that breaks off twice, what both have said counts: in tokens as engines count them, which may come
// several at once, and from the very first on.
func TestARestBreaksOff(t *testing.T) {
	w := newTalkWith(t, Config{Resume: true})
	now := time.Unix(1795740157, 0)
	clock := func() time.Time { now = now.Add(time.Second); return now }
	c := w.ask("/v1/chat/completions", `{"stream":true,"max_tokens":20,"messages":[{"role":"user","content":"hi"}]}`, nil)
	var began time.Time
	for _, left := range []string{`"max_tokens":17`, `"max_tokens":14`} {
		m := c.Meter(endpick.Lease{}, clock)
		feed(m, "content-type: text/event-stream\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a b c\"}}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\n", 1<<10)
		began = cmp.Or(began, m.Seen().FirstToken)
		assert.Equal(t, io.ErrUnexpectedEOF, rig.Err(m.End(nil)))
		c = c.Resume(m)
		assert.Contains(t, string(c.body), left)
		assert.Equal(t, []any{began, 0}, []any{c.beginning.firstAt, c.promptBytes}, "and a rest's prompt says nothing of lengths")
	}
	m := c.Meter(endpick.Lease{}, clock)
	feed(m, "content-type: text/event-stream\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":1}}\n\ndata: [DONE]\n\n", 1<<10)
	m.Outcome(endpick.Completed)
	assert.Zero(t, w.reader.learned.rates("").meanOutput(), "nor does a rest say how long responses are")
	m = c.Meter(endpick.Lease{}, clock)
	feed(m, "content-type: text/event-stream\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"d\"}}]}", 1<<10)
	assert.Equal(t, io.ErrUnexpectedEOF, rig.Err(m.End(nil)))
	assert.Nil(t, c.Resume(m), "the client has not got all that was read")
}

// llama.cpp says again what it has been given, once: what is equal to it later is new.
func TestARestIsRepeatedOnce(t *testing.T) {
	w := newTalkWith(t, Config{Resume: true})
	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Engine: "llama.cpp"}}}))
	lease := rig.Must(router.Route(endpick.Request{}))
	say := func(m *Meter, texts ...string) string {
		all := "content-type: text/event-stream\n\n"
		for _, text := range texts {
			all += `data: {"choices":[{"delta":{"content":"` + text + `"}}]}` + "\n\n"
		}
		return string(feed(m, all, 1<<10))
	}
	c := w.ask("/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"hi"}]}`, nil)
	m := c.Meter(lease, time.Now)
	say(m, "no")
	got := say(c.Resume(m).Meter(lease, time.Now), "no, ", "no")
	assert.Equal(t, []int{1, 1}, []int{strings.Count(got, `", "`), strings.Count(got, `"no"`)}, got)
}

// feed passes a recorded response to a meter, in pieces, and returns what the client gets.
func feed(m *Meter, recorded string, size int) []byte {
	header, body, _ := strings.Cut(recorded, "\n\n")
	m.Header(http.StatusOK, http.Header{"Content-Type": {strings.TrimPrefix(header, "content-type: ")}})
	return fed(m, body, size)
}
