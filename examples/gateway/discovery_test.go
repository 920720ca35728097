package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// Servers come and go with the lines of a file; one that stays keeps what is in
// flight, and what can't be leaves all as it was.
func TestEndpointsFollowAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("http://a:1\n\n# spare\nhttp://b:1\n")
	synctest.Test(t, func(t *testing.T) {
		l := &listed{path: path}
		first, err := l.changed()
		require.NoError(t, err)
		router, err := endpick.New(endpick.Config{Endpoints: first})
		require.NoError(t, err)
		var logged lockedBuffer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.follow(ctx, router, newLogger(&logged, &logSettings{Level: "info"}))
		after := func(text string, want ...string) {
			t.Helper()
			write(text)
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			var got []string
			for _, e := range router.Endpoints() {
				if !e.Removed {
					got = append(got, strings.TrimPrefix(e.Candidate.Endpoint.Address, "http://"))
				}
			}
			assert.ElementsMatch(t, want, got)
		}
		after("http://a:1\nhttp://b:1", "a:1", "b:1")
		lease, err := router.Route(endpick.Request{Exclude: []string{router.Endpoints()[0].Candidate.Endpoint.ID}})
		require.NoError(t, err)
		kept := lease.Endpoint().Address
		after(kept+"\nhttp://c:1\n", strings.TrimPrefix(kept, "http://"), "c:1")
		assert.Equal(t, 1, router.Stats().OpenLeases)
		for _, bad := range []string{"", "# nobody\n", "http://c:1\nc:1\n", "http://c:1\nhttp://c:1\n"} {
			after(bad, strings.TrimPrefix(kept, "http://"), "c:1")
		}
		time.Sleep(time.Minute)
		assert.Equal(t, 1, strings.Count(logged.String(), ":2: there twice"), "once")
		assert.Equal(t, 1, strings.Count(logged.String(), "names no server"), "of two such files one after the other")
		after("http://c:1\n", "c:1")
		assert.True(t, lease.Done(endpick.Outcome{}))
	})
}
