package dialect

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite what is read in testdata")

// What is read of exchanges with engines, one for each form of an API: testdata has the request, the
// response, and what is understood of both. A new API brings its own.
func TestExchanges(t *testing.T) {
	files := append(rig.Must(filepath.Glob("testdata/*.txt")), rig.Must(filepath.Glob("testdata/vllm-0.32.0/*.txt"))...)
	require.NotEmpty(t, files)
	read := map[*api]bool{}
	for _, file := range files {
		sections := strings.SplitN(string(rig.Must(os.ReadFile(file))), "=>\n", 3)
		require.GreaterOrEqual(t, len(sections), 2, file)
		request, response := sections[0], sections[1]
		head, body, _ := strings.Cut(request, "\n\n")
		line, _, _ := strings.Cut(head, "\n")
		method, path := cutMethod(line)
		read[apiOf(method, path)] = true
		header, answered, _ := strings.Cut(response, "\n\n")
		_, kind, _ := strings.Cut(strings.ToLower(header), "content-type: ")
		kind, _, _ = strings.Cut(kind, "\n")
		said := exchange(t, path, strings.TrimSuffix(body, "\n"), kind, strings.TrimSuffix(answered, "\n"))
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(request+"=>\n"+response+"=>\n"+said), 0o644))
			continue
		}
		require.Len(t, sections, 3, file)
		assert.Equal(t, sections[2], said, file)
	}
	for _, a := range []*api{chat, completion, messages, responses, generation, embedding, native} {
		assert.True(t, read[a], "no exchange: %v", a.paths)
	}
}

// exchange passes a response through a meter, in pieces of each size, and returns what was understood.
func exchange(t *testing.T, path, request, kind, response string) (said string) {
	for _, size := range []int{1, 100, 1 << 20} {
		w := newTalk(t)
		c := w.ask(path, request, nil)
		m := w.meter(c, kind)
		got, err := m.End(fed(m, response, size))
		seen, o := m.Seen(), m.Outcome(endpick.Completed)
		r := c.Request
		now := fmt.Sprintf("request: %s, about %d tokens, %d blocks, %d responses, stream %v\n", r.Model, r.InputTokens, len(r.Blocks), max(r.Responses, 1), r.Stream)
		now += fmt.Sprintf("response: %v, whole %v, cut %v, first token %v\n", o.Status, m.Whole(), err != nil, !seen.FirstToken.IsZero())
		now += fmt.Sprintf("tokens: %d in, %d cached (%v), %d out; %d blocks with the response\n", o.InputTokens, o.CachedTokens, o.HasCachedTokens, o.OutputTokens, len(o.Blocks))
		now += fmt.Sprintf("id: %s\n", m.answer.id)
		if string(got) != response {
			now += "the client gets:\n" + string(got)
		}
		if said != "" {
			require.Equal(t, said, now, "in pieces of %d", size)
		}
		said = now
	}
	return said
}
