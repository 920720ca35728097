package discover_test

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/discover"
)

// Each way in which a list may be cut off, malformed or refused is reported with its line and
// cause.
func TestMistakesHaveALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	many := "[\n" + strings.Repeat("{\"address\": \"a\"},\n", 100)
	for text, want := range map[string]string{
		"[":                                   ":1: unexpected end of JSON input",
		"[\n\n":                               ":3: unexpected end of JSON input",
		"[\n{\"address\": \"a\"":              ":2: unexpected end of JSON input",
		"[\n{\"address\": \"a\"}":             ":2: unexpected end of JSON input",
		"[\n{\"address\": \"a\"},":            ":2: unexpected end of JSON input",
		"[}":                                  ":1: invalid character '}' looking for beginning of value",
		"[\n{\"address\": \"a\"}}":            ":2: invalid character '}' after array element",
		"[\n{\"address\": \"a\" x\n}]":        ":2: invalid character 'x' after object key:value pair",
		"[\n{\"address\": \"a\"}\n]\n[]":      ":4: invalid character '[' after top-level value",
		"[\n{\"address\": \"a\"}\n]\n\n7":     ":5: invalid character '7' after top-level value",
		"[\n{\"address\": \"a\", \"id\": 7}]": ":2: unexpected number for id",
		"[7]":                                 ":1: unexpected number for an endpoint",
		"[{\"kv_tokens\": 1.5}]":              ":1: unexpected number 1.5 for kv_tokens",
		// However many lines precede it.
		"[\n{\"address\":\n\"a\"\n\n!}]":    ":5: invalid character '!' after object key:value pair",
		many + "{\"address\": x}]":          ":102: invalid character 'x' looking for beginning of value",
		many + "{\"address\" 1}]":           ":102: invalid character '1' after object key",
		many + "{\"address\": \"a\",\n\n}]": ":104: invalid character '}' looking for beginning of object key string",
		// What the router would refuse.
		"[\n{\"address\": \"b\"},\n{\"address\": \"a\", \"kv_tokens\": -1}]":                                              `:3: endpick: endpoint "a" KVTokens is negative`,
		"[\n{\"address\": \"b\"},\n{\"address\": \"a\", \"max_sequences\": -1}]":                                          `:3: endpick: endpoint "a" MaxSequences is negative`,
		"[\n{\"address\": \"b\"},\n{\"id\": \"x\",\n\"address\": \"a\", \"rank\": -1}]":                                   `:3: endpick: endpoint "x" Rank is negative`,
		"[\n{\"address\": \"b\"},\n\n\n{\"address\": \"a\", \"models\": [\"m\", \"\"]}\n]":                                `:5: endpick: endpoint "a" has an empty name at Models[1]`,
		"[{\"id\": \"x\\u0000\", \"address\": \"b\"}]":                                                                    `:1: endpick: endpoint "x\x00" has an ID that is not printable UTF-8`,
		"[\n{\"address\": \"c\"},\n{\"address\": \"a\"},\n{\"address\": \"b\"},\n{\"id\": \"a\",\n\"address\": \"d\"}\n]": `:5: endpick: endpoint "a" is listed twice`,
		"a\nhttp://b\n\nhttp://user:secret@b\n":                                                                           `:4: endpick: endpoint "http://b" is listed twice`,
		"a\nb\u0085b\n":                                                                                                   ":2: endpick: endpoint \"b\\u0085b\" has an address with spaces or control characters, or not in UTF-8",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := discover.File(path).Endpoints(t.Context())
		assert.EqualError(t, err, path+want, text)
		if strings.Contains(want, "endpick: ") {
			assert.ErrorAs(t, err, new(*endpick.EndpointError), text)
		}
	}
	_, err := discover.File(path + "?").Endpoints(t.Context())
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.EqualError(t, err, path+"?: no such file or directory")
	require.NoError(t, os.WriteFile(path, []byte("#"), 0o600))
	_, err = discover.File(path).Endpoints(t.Context())
	require.ErrorIs(t, err, discover.ErrEmpty)
}

// Everything that a file says of a server is taken over, including rank 0.
func TestWhatAFileSays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers")
	require.NoError(t, os.WriteFile(path, []byte(`[
		{"address": "a:1", "rank": 0}, {"address": "a:1", "id": "i", "rank": 3, "models": ["m"], "adapters": ["l"], "labels": {"z": "a"},
		"variant": "v", "max_sequences": 5, "kv_tokens": 7, "max_in_flight": 2, "max_context": 9, "tier": 3, "weight": 0.5}, {"address": "b:1"}]`), 0o600))
	f := discover.File(path)
	for range 2 {
		list := rig.Must(f.Endpoints(t.Context()))
		assert.Equal(t, []endpick.Endpoint{
			{Address: "a:1", Ranked: true},
			{
				ID: "i", Address: "a:1", Ranked: true, Rank: 3, Models: []string{"m"}, Adapters: []string{"l"}, Labels: map[string]string{"z": "a"},
				Variant: "v", MaxSequences: 5, KVTokens: 7, MaxInFlight: 2, MaxContext: 9, Tier: 3, Weight: 0.5,
			},
			{Address: "b:1"},
		}, list)
		// The caller may change the list.
		list[1].Models[0], list[1].Labels["z"], list[2].Address = "?", "?", "?"
	}
	for _, text := range []string{"a:1\n", `[{"address":"a:1"}]`} {
		require.NoError(t, os.WriteFile(path, []byte("\xef\xbb\xbf"+text), 0o600)) // as editors of Windows do
		assert.Equal(t, []endpick.Endpoint{{Address: "a:1"}}, rig.Must(discover.File(path).Endpoints(t.Context())))
	}
}

// A list may be exactly as long as the bound; an error is reported as it is, and again when
// it returns after a good list. The source's context ends when it returns.
func TestWhatIsWrongWithAList(t *testing.T) {
	router := rig.Must(endpick.New(endpick.Config{}))
	good := []endpick.Endpoint{{Address: "b"}, {Address: "a"}, {Address: "a", Rank: 1, Ranked: true}}
	bad := []endpick.Endpoint{{Address: "a"}, {Address: "a"}}
	list := make([]endpick.Endpoint, 100_000) // without addresses
	var asked context.Context
	var reported []error
	filled := 0
	w := rig.Must(discover.New(discover.Config{
		Router: router, OnError: func(err error) { reported = append(reported, err) },
		Fill: func(e *endpick.Endpoint) { filled++; e.KVTokens = 7 },
		Source: source(func(ctx context.Context) ([]endpick.Endpoint, error) {
			asked = ctx
			return list, nil
		}),
	}))
	require.ErrorContains(t, w.Poll(t.Context()), "endpoint 1 of the list, \"\"")
	require.Error(t, asked.Err())
	require.Error(t, w.Poll(t.Context()))
	assert.Len(t, reported, 1)
	list = good
	for range 2 {
		require.NoError(t, w.Poll(t.Context()))
	}
	assert.Equal(t, 6, filled)
	assert.Equal(t, 7, router.Endpoints()[0].Candidate.Endpoint.KVTokens)
	list = bad
	for range 2 {
		require.ErrorIs(t, w.Poll(t.Context()), endpick.ErrDuplicateEndpoint)
	}
	assert.Len(t, reported, 2)
	list = good
	require.NoError(t, w.Poll(t.Context()))
	list = bad
	require.Error(t, w.Poll(t.Context()))
	assert.Len(t, reported, 3, "it was good in between")
	assert.Len(t, router.Endpoints(), 3)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	list = []endpick.Endpoint{{Address: "c"}}
	require.Equal(t, context.Canceled, w.Poll(ctx))
	assert.Len(t, reported, 3)
	assert.Len(t, router.Endpoints(), 3, "it is not taken over")
}

// The default resolver is the program's.
func TestTheProgramsResolver(t *testing.T) {
	z := zoneOf("10.0.0.1")
	z.services = []net.SRV{{Target: "a.", Port: 1}}
	own := net.DefaultResolver
	net.DefaultResolver = z.resolver()
	defer func() { net.DefaultResolver = own }()
	list := rig.Must((&discover.DNS{Name: "fleet.test.", Port: 8000}).Endpoints(t.Context()))
	require.Len(t, list, 1)
	assert.Equal(t, "10.0.0.1:8000", list[0].ID)
	list = rig.Must((&discover.DNS{SRV: true, Name: "fleet.test."}).Endpoints(t.Context()))
	require.Len(t, list, 1)
	assert.Equal(t, "a:1", list[0].ID)
}

// Endpoints of one name do not share models and labels.
func TestEndpointsOfANameAreApart(t *testing.T) {
	d := &discover.DNS{
		Name: "fleet.test.", Port: 8000, Scheme: "https", Resolver: zoneOf("10.0.0.2", "10.0.0.1", "10.0.0.2").resolver(),
		Endpoint: endpick.Endpoint{ID: "?", Address: "?", Models: []string{"m"}, Labels: map[string]string{"z": "a"}},
	}
	for range 2 {
		list := rig.Must(d.Endpoints(t.Context()))
		require.Len(t, list, 2)
		for i, at := range []string{"10.0.0.1:8000", "10.0.0.2:8000"} {
			assert.Equal(t, endpick.Endpoint{ID: at, Address: "https://" + at, Models: []string{"m"}, Labels: map[string]string{"z": "a"}}, list[i])
			list[i].Models[0], list[i].Labels["z"] = "?", "?"
		}
	}
	assert.Equal(t, []string{"m"}, d.Endpoint.Models)
}

// A silent name server is waited for no longer than the caller's context allows.
func TestLookingUpEndsWithItsContext(t *testing.T) {
	silent := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	for _, s := range []discover.Source{&discover.DNS{Name: "fleet.test.", Resolver: silent}, &discover.DNS{SRV: true, Name: "fleet.test.", Resolver: silent}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			_, err := s.Endpoints(ctx)
			require.Error(t, err)
			assert.NotErrorIs(t, err, discover.ErrEmpty)
			assert.Equal(t, time.Second, time.Since(start))
		})
	}
}

// A source is never called concurrently.
func TestASourceIsAskedByOne(t *testing.T) {
	var change discover.Change
	var asking sync.Mutex
	asked := 0
	w, _ := watch(t, source(func(context.Context) ([]endpick.Endpoint, error) {
		if assert.True(t, asking.TryLock()) {
			defer asking.Unlock()
			asked++
		}
		for range 100 {
			runtime.Gosched()
		}
		return []endpick.Endpoint{{Address: "a"}}, nil
	}), &change)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				assert.NoError(t, w.Poll(t.Context()))
			}
		})
	}
	all.Wait()
	assert.Equal(t, 200, asked)
}

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
