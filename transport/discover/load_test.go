package discover_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/discover"
)

// everybody is every server there is: each answers.
type everybody struct{}

func (everybody) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(`{"choices":[{"text":"x"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`)),
	}, nil
}

// A file replaces a tenth of a list of a thousand servers, ten times, under load. No
// request is lost; an endpoint that stays keeps its identity, requests in flight and
// prefixes; requests in flight at a removed endpoint finish there.
func TestThousandEndpointsReplacedUnderLoad(t *testing.T) {
	size, replaced, times := 1000, 100, 10
	if rig.Race {
		size, replaced = 200, 20
	}
	id := func(i int) string { return fmt.Sprintf("10.0.%d.%d:8000", i>>8, i&255) }
	path := filepath.Join(t.TempDir(), "servers")
	router := rig.Must(endpick.New(all.LMetric()))
	changes := make(chan discover.Change, times+1)
	w := rig.Must(discover.New(discover.Config{
		Router: router, Source: discover.File(path), Interval: time.Millisecond,
		OnChange: func(c discover.Change) { changes <- c }, OnError: func(err error) { t.Error(err) },
	}))
	next := func(first int) discover.Change { // lists the servers from that number on
		var text strings.Builder
		for i := range size {
			fmt.Fprintln(&text, id(first+i))
		}
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o600))
		for range 2 { // a file counts once two polls see the same
			require.NoError(t, w.Poll(t.Context()))
			if len(changes) > 0 {
				break
			}
		}
		require.Len(t, changes, 1)
		return <-changes
	}
	require.Len(t, next(0).Added, size)
	tr := rig.Must(transport.New(transport.Config{Router: router, Base: everybody{}}))

	others := func(id string) (all []string) {
		for _, e := range router.Endpoints() {
			if other := e.Candidate.Endpoint.ID; other != id {
				all = append(all, other)
			}
		}
		return all
	}
	// One endpoint that stays throughout and one that goes at once: each has a
	// long prompt in flight.
	stays, goes := id(size-1), id(0)
	blocks := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	warm := rig.Must(router.Route(endpick.Request{InputTokens: 130, Blocks: blocks, Stream: true, Exclude: others(stays)}))
	warm.FirstToken()
	ref, _ := router.Ref(stays)
	gone := rig.Must(router.Route(endpick.Request{InputTokens: 77, Exclude: others(goes)}))

	var load sync.WaitGroup
	var over atomic.Bool
	var served, lost atomic.Int64
	for n := range 3 {
		load.Go(func() {
			for i := 0; !over.Load(); i++ {
				body := fmt.Sprintf(`{"model":"m","prompt":"%s"}`, strings.Repeat(fmt.Sprint(n, i%50), 20))
				req, _ := http.NewRequest("POST", "http://gateway/v1/completions", strings.NewReader(body))
				resp, err := tr.RoundTrip(req)
				if err != nil || resp.StatusCode != 200 {
					lost.Add(1)
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				served.Add(1)
			}
		})
	}
	for i := 1; i < times; i++ { // the last server of the first list is in all lists
		before := served.Load()
		c := next(i * replaced)
		assert.Equal(t, size, c.Endpoints)
		assert.Len(t, c.Added, replaced)
		assert.Len(t, c.Removed, replaced)
		require.Eventually(t, func() bool { return served.Load() > before }, 30*time.Second, time.Millisecond)
	}
	again, ok := router.Ref(stays)
	assert.True(t, ok)
	assert.Equal(t, ref, again, "the same endpoint, with its state")
	for _, e := range router.Endpoints() {
		if e.Candidate.Endpoint.ID == stays {
			assert.GreaterOrEqual(t, e.Candidate.InFlight.ContextTokens, 130, "what is in flight is counted")
		}
		if e.Candidate.Endpoint.ID == goes {
			assert.True(t, e.Removed)
			assert.Equal(t, 77, e.Candidate.InFlight.ContextTokens)
		}
	}
	var r endpick.Receipt
	lease := rig.Must(router.Route(endpick.Request{InputTokens: 130, Blocks: blocks, Receipt: &r, Exclude: others(stays)}))
	lease.Done(endpick.Outcome{})
	assert.Equal(t, 128, r.Verdicts[0].Candidate.PrefixTokens, "and what it holds is known")

	assert.True(t, warm.Done(endpick.Outcome{}))
	assert.True(t, gone.Done(endpick.Outcome{}))
	next(times * replaced)
	over.Store(true)
	load.Wait()
	assert.Zero(t, lost.Load())
	_, ok = router.Ref(stays)
	assert.False(t, ok)
	s := router.Stats()
	assert.Equal(t, []int{size, 0, 0}, []int{s.Endpoints, s.OpenLeases, s.RemovedOpen})
}
