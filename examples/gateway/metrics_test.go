package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// badNames are possible contents of a model's name.
var badNames = map[string]string{
	"no UTF-8":  "\xff",
	"half rune": "model\xe2\x82",
	"too long":  strings.Repeat("m", 1<<16),
	"empty":     "",
	"markup":    `<script>"\n`,
	"the rest":  "other",
}

func scrapeMetrics(t *testing.T, h http.Handler) string {
	t.Helper()
	return see(t, h, "/metrics")
}

// labelsOn returns the models in a family on a page of metrics.
func labelsOn(page, family string) (all []string) {
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, "endpick_"+family+`{model="`); ok {
			name, _, _ := strings.Cut(rest, `"}`)
			all = append(all, name)
		}
	}
	return all
}

// A streamed request whose client leaves after the first token ends on a
// goroutine without recovery, where a panic would end the process.
func TestAClientCannotEndTheProcessByAName(t *testing.T) {
	server := answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	g := gatewayOf(t, plain("lmetric"), endpick.Endpoint{ID: "a", Address: server.URL})
	front := httptest.NewServer(g)
	defer front.Close()
	for what, name := range badNames {
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, front.URL+"/v1/chat/completions",
			strings.NewReader(`{"stream":true,"messages":[{"role":"user","content":"hi"}],"model":"`+strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(name)+`"}`))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err, what)
		_, _ = resp.Body.Read(make([]byte, 8))
		leave()
		_ = resp.Body.Close()
	}
	require.Eventually(t, func() bool { return g.router.Stats().OpenLeases == 0 }, 30*time.Second, time.Millisecond)
	assert.Equal(t, []string{"other"}, labelsOn(scrapeMetrics(t, g.admin), "ttft_seconds_count"))
	text := see(t, g.admin, "/debug/endpick")
	page(t, text)
	assert.Less(t, len(text), 32<<10, "whatever they are called")
}
