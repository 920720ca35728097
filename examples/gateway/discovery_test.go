package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ids returns the endpoints that take requests.
func ids(g *gateway) (all []string) {
	for _, e := range g.router.Endpoints() {
		if !e.Removed {
			all = append(all, strings.TrimPrefix(e.Candidate.Endpoint.ID, "http://"))
		}
	}
	slices.Sort(all)
	return all
}

// follows are settings that follow a list, without a pause.
func follows(t *testing.T, path string) *settings {
	t.Helper()
	s := parsed(t, "discover: {file: \""+path+"\"}\n")
	s.Discover.Interval = time.Millisecond
	return s
}

// Servers come and go with the lines of a file; one that stays keeps its requests in
// flight, an invalid file changes nothing, and a reload may switch between a file
// and a list.
func TestEndpointsFollowAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	write := func(text string) { writeFile(t, path, text) }
	write("http://a:1\n\n# spare\nhttp://b:1\n")
	g := gatewayOf(t, follows(t, path))
	becomes := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool { return slices.Equal(want, ids(g)) }, 30*time.Second, time.Millisecond, "%v", ids(g))
	}
	require.Equal(t, []string{"a:1", "b:1"}, ids(g), "from the start")
	lease := rig.Must(g.router.Route(endpick.Request{Exclude: []string{"http://a:1"}}))
	write("http://b:1\nhttp://c:1\n")
	becomes("b:1", "c:1")
	for _, bad := range []string{"", "# nobody\n", "http://c:1\n{\n", "http://c:1\nhttp://c:1\n"} {
		write(bad)
		time.Sleep(30 * time.Millisecond) // time for several polls
		require.Equal(t, []string{"b:1", "c:1"}, ids(g))
	}
	require.Equal(t, 1, g.router.Stats().OpenLeases)
	require.Equal(t, "http://b:1", lease.Endpoint().Address)

	require.NoError(t, g.apply(follows(t, path)), "the same discovery goes on, whatever the file has become")
	require.Error(t, g.apply(follows(t, "/no/such/file")))
	require.Equal(t, []string{"b:1", "c:1"}, ids(g))
	write("http://d:1\n")
	becomes("d:1")
	require.NoError(t, g.apply(parsed(t, "endpoints: [{url: \"http://b:1\"}]\n")))
	require.Zero(t, g.discovery.settings, "nobody looks at the file any more")
	write("http://e:1\n")
	require.Equal(t, []string{"b:1"}, ids(g))
	require.NoError(t, g.apply(follows(t, path)))
	becomes("e:1")
	require.True(t, lease.Done(endpick.Outcome{}))
}

// The list of the old source may change while a reload takes over that of another. It counts
// no more.
func TestTheOldListChangesDuringAReload(t *testing.T) {
	dir := t.TempDir()
	old, next := filepath.Join(dir, "old"), filepath.Join(dir, "new")
	writeFile(t, old, "http://a:1\n")
	writeFile(t, next, "http://b:1\n")
	logged := new(lineHook)
	g := loggingGateway(t, logged, follows(t, old))
	require.Equal(t, []string{"a:1"}, ids(g))
	logged.next(func() { // the new list has just been applied
		writeFile(t, old, "http://c:1\n")
		for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end) && !slices.Equal(ids(g), []string{"c:1"}); {
			time.Sleep(time.Millisecond)
		}
	})
	require.NoError(t, g.apply(follows(t, next)))
	require.Equal(t, []string{"b:1"}, ids(g))
}

// While a new source does not answer, the endpoints follow the old one.
func TestTheOldListIsFollowedWhileTheNewSourceHangs(t *testing.T) {
	dir := t.TempDir()
	old, hangs := filepath.Join(dir, "old"), filepath.Join(dir, "hangs")
	writeFile(t, old, "http://a:1\n")
	require.NoError(t, syscall.Mkfifo(hangs, 0o600)) // whoever reads it waits for somebody who writes
	g := gatewayOf(t, follows(t, old))
	applied := make(chan error)
	go func() { applied <- g.apply(follows(t, hangs)) }()
	w, err := os.OpenFile(hangs, os.O_WRONLY, 0) // once it is read
	require.NoError(t, err)
	writeFile(t, old, "http://b:1\n")
	assert.Eventually(t, func() bool { return slices.Equal([]string{"b:1"}, ids(g)) }, 30*time.Second, time.Millisecond)
	_, err = w.WriteString("mistake\n{")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.ErrorContains(t, <-applied, ":2: the address is neither")
}

// The settings refer to a router's endpoint by its ID, or else by address and rank.
func TestEndpointsAreTheSettings(t *testing.T) {
	zero, one := 0, 1
	for name, all := range map[string][]endpointSettings{
		"all kinds":        {{URL: "http://a"}, {URL: "http://a", Rank: &zero}, {URL: "http://a", Rank: &one}, {URL: "http://b", ID: "named"}, {URL: "http://u:p@c"}},
		"one has a name":   {{URL: "http://a"}, {URL: "http://a", ID: "named"}},
		"the first has it": {{URL: "http://a", ID: "named"}, {URL: "http://a"}},
	} {
		s := &settings{Endpoints: all}
		for i, there := range rig.Must(endpick.New(endpick.Config{Endpoints: s.endpoints()})).Endpoints() {
			require.Same(t, &all[i], s.entry(there.Candidate.Endpoint), "%s: %s", name, there.Candidate.Endpoint.ID)
		}
		require.Nil(t, s.entry(&endpick.Endpoint{ID: "http://d", Address: "http://d"}))
	}
}
