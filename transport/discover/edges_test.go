package discover_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/discover"
)

func watch(t *testing.T, source discover.Source, change *discover.Change) (*discover.Watcher, *endpick.Router) {
	router := rig.Must(endpick.New(endpick.Config{}))
	w := rig.Must(discover.New(discover.Config{Router: router, Source: source, OnChange: func(c discover.Change) { *change = c }}))
	return w, router
}

// A source may reuse its list: changes in place are noticed.
func TestASourceThatKeepsItsList(t *testing.T) {
	var change discover.Change
	list := []endpick.Endpoint{{Address: "a"}, {Address: "b"}}
	w, router := watch(t, source(func(context.Context) ([]endpick.Endpoint, error) { return list, nil }), &change)
	require.NoError(t, w.Poll(t.Context()))
	list[1] = endpick.Endpoint{Address: "c"}
	require.NoError(t, w.Poll(t.Context()))
	assert.Equal(t, discover.Change{Endpoints: 2, Added: []string{"c"}, Removed: []string{"b"}}, change)
	list[1].KVTokens = 1000
	require.NoError(t, w.Poll(t.Context()))
	assert.Equal(t, 1000, router.Endpoints()[1].Candidate.Endpoint.KVTokens)
}

// A list that comes with an error does not count, nor does one that is too long.
func TestListsThatAreNone(t *testing.T) {
	var change discover.Change
	list, fails := []endpick.Endpoint{{Address: "a"}}, fmt.Errorf("half of it")
	w, router := watch(t, source(func(context.Context) ([]endpick.Endpoint, error) { return list, fails }), &change)
	require.ErrorIs(t, w.Poll(t.Context()), fails)
	fails = fmt.Errorf("%w: none is ready", discover.ErrEmpty)
	require.ErrorIs(t, w.Poll(t.Context()), discover.ErrEmpty)
	assert.Zero(t, change)
	fails, list = nil, make([]endpick.Endpoint, 100_001)
	for i := range list {
		list[i].Address = fmt.Sprint("s", i)
	}
	require.ErrorContains(t, w.Poll(t.Context()), "has 100001 endpoints, more than 100000")
	assert.Empty(t, router.Endpoints())
}

// A source is polled every two seconds and has five to answer.
func TestDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var asked []time.Duration
		var change discover.Change
		w, _ := watch(t, source(func(ctx context.Context) ([]endpick.Endpoint, error) {
			asked = append(asked, time.Since(start))
			until, _ := ctx.Deadline()
			assert.Equal(t, 5*time.Second, time.Until(until))
			return []endpick.Endpoint{{Address: "a"}}, nil
		}), &change)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, cancel)
		w.Run(ctx)
		assert.Equal(t, []time.Duration{0, 2 * time.Second, 4 * time.Second}, asked)
	})
}

// A file counts when two polls in a row see the same, whatever it said before, even if it
// was missing in between.
func TestTwoQuestionsInARow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	f := discover.File(path)
	says := func(text string) string {
		if text == "" {
			require.NoError(t, os.Remove(path))
		} else {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
		list, err := f.Endpoints(t.Context())
		if err != nil {
			return "error"
		}
		return list[0].Address
	}
	for i, step := range []struct{ text, want string }{
		{"a", "a"}, {"b", "a"}, {"a", "a"}, {"b", "a"}, {"b", "b"}, // reverted in between
		{"c", "b"}, {"", "error"}, {"c", "b"}, {"c", "c"}, // missing in between
		{"d", "c"}, {"e", "c"}, {"d", "c"}, {"d", "d"},
		{"ftp://x", "d"}, {"ftp://x", "error"}, {"ftp://x", "error"}, {"f", "d"}, {"f", "f"}, // invalid
		{"ftp://x", "f"}, {"ftp://x", "error"}, {"f", "f"}, {"g", "f"}, {"g", "g"}, // and reverted
	} {
		assert.Equal(t, step.want, says(step.text), "step %d", i)
	}
}

func TestAFileThatIsTooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	require.NoError(t, os.WriteFile(path, []byte("a:1\n#"), 0o600))
	require.NoError(t, os.Truncate(path, 16<<20))
	assert.Len(t, rig.Must(discover.File(path).Endpoints(t.Context())), 1)
	require.NoError(t, os.Truncate(path, 16<<20+1))
	_, err := discover.File(path).Endpoints(t.Context())
	require.EqualError(t, err, path+": is longer than 16777216 bytes")
}
