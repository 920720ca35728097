package endpick_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files under testdata anew")

// golden compares text with a file under testdata.
func golden(t *testing.T, name, got string) {
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to make it")
	require.Equal(t, string(want), got)
}

// sieve is a filter with a name.
type sieve struct {
	filterFunc
	name string
}

func (s sieve) Name() string { return s.name }

var (
	idle  = sieve{keepIf(func(c *endpick.Candidate) bool { return c.Waiting < 1 }), "idle"}
	fresh = sieve{keepIf(func(c *endpick.Candidate) bool { return c.Reported != 0 }), "fresh"}
)

// titled is a scorer with a name.
type titled struct {
	scoreFunc
	name string
}

func (n titled) Name() string { return n.name }

// storyPolicies are the policies of the transcripts, as small as possible.
func storyPolicies() []endpick.Policy {
	match := matchFunc(func(req *endpick.Request, c *endpick.Candidate) int { return held(req, c.Endpoint.ID) / 2 })
	prefix := titled{func(req *endpick.Request, c *endpick.Candidate) float64 { return c.MatchShare(req) }, "prefix"}
	load := titled{leastLoaded, "load"}
	kv := titled{func(_ *endpick.Request, c *endpick.Candidate) float64 { return 1 - c.KVUsage }, "kv"}
	prefill := titled{func(req *endpick.Request, c *endpick.Candidate) float64 {
		return 1 / (1 + float64(c.NewTokens(req)+c.InFlight.PrefillTokens)*(c.BatchSize()+1))
	}, "prefill"}
	return []endpick.Policy{
		{},
		{Name: "least-loaded", Scorers: []endpick.Weighted{{Scorer: load, Weight: 1}}},
		{Name: "load-prefix", Matcher: match, Filters: []endpick.Filter{fresh, idle}, Scorers: []endpick.Weighted{
			{Scorer: prefix, Weight: 3}, {Scorer: load, Weight: 2}, {Scorer: kv, Weight: 2},
		}},
		{Name: "prefill", Matcher: match, Scorers: []endpick.Weighted{{Scorer: prefill, Weight: 1}}},
		{Name: "weighted", Filters: []endpick.Filter{idle}, Scorers: []endpick.Weighted{{Scorer: load, Weight: 1}}, Picker: endpick.WeightedRandom{}},
		{Name: "two", Scorers: []endpick.Weighted{{Scorer: load, Weight: 1}}, Picker: endpick.PowerOfTwo{}},
	}
}

// tell drives a router through a story and writes down every decision. A varied
// story needs no random numbers: everything is taken modulo something.
func tell(t *testing.T, seed uint64, endpoints []endpick.Endpoint) string {
	r, c := newRouter(endpick.Config{Endpoints: endpoints, Seed: seed})
	var story strings.Builder
	var open []endpick.Lease
	var receipt endpick.Receipt
	for i, p := range storyPolicies() {
		require.NoError(t, r.SetPolicy(p))
		for j := range 6 {
			n := 6*i + j
			switch n % 9 {
			case 2:
				for k, e := range []string{"east-1", "east-2", "west-1"} {
					_ = r.Report(e, endpick.Load{Waiting: float64(n * k % 3), Running: float64(n % 5), KVUsage: float64(10*k+n) / 100})
				}
			case 5:
				require.NoError(t, r.Drain("east-2"))
			case 8:
				require.NoError(t, r.Resume("east-2"))
			}
			l, err := r.Route(endpick.Request{
				Model: "llama", InputTokens: 100 + 37*n, Session: fmt.Sprint(n % 4), Stream: true, Receipt: &receipt,
			})
			story.WriteString(receipt.String())
			story.WriteByte('\n')
			require.NoError(t, err)
			open = append(open, l)
			c.advance(time.Second)
			if n%2 == 1 {
				open[0].FirstToken()
			}
			if len(open) > 5 {
				open[0].Done(endpick.Outcome{})
				open = open[1:]
			}
		}
	}
	for _, req := range []endpick.Request{
		{Model: "qwen"},
		{Model: "llama", Exclude: []string{"east-1", "east-2", "west-1", "west-2"}},
		{Model: "llama", InputTokens: -5},
	} {
		req.Receipt = &receipt
		require.Error(t, rig.Err(r.Route(req)))
		story.WriteString(receipt.String())
	}
	require.NoError(t, r.SetPolicy(endpick.Policy{Name: "closed", Admitters: []endpick.Admitter{
		admitFunc(func(*endpick.Request) error { return errNotToday }),
	}}))
	require.Error(t, rig.Err(r.Route(endpick.Request{Model: "llama", Receipt: &receipt})))
	story.WriteString(receipt.String())
	return story.String()
}

func storyEndpoints() []endpick.Endpoint {
	endpoints := named("east-1", "east-2", "west-1", "west-2")
	for i := range endpoints {
		endpoints[i].Models = []string{"llama"}
	}
	return endpoints
}

// The same config, seed and calls give the same bytes: a changed decision is a visible diff.
func TestReceiptTranscript(t *testing.T) {
	first := tell(t, 1, storyEndpoints())
	golden(t, "receipts.txt", first)
	require.NotEqual(t, first, tell(t, 2, storyEndpoints()), "replicas differ by seed")
}

func TestReceipt(t *testing.T) {
	scores := map[string]float64{"a": 0.1, "b": 0.4, "c": 0.4, "d": 0.9, "e": 0.8, "f": 0.2}
	keep := func(ids string) endpick.Filter {
		return keepIf(func(c *endpick.Candidate) bool { return strings.Contains(ids, c.Endpoint.ID) })
	}
	policy := byID(scores)
	policy.Name = "p"
	policy.Filters = []endpick.Filter{keep("abcf"), idle, keep("abc"), keep("")}
	policy.Picker = pickFunc(func(_ *endpick.Request, c []endpick.Candidate, _ []float64) int {
		return slices.IndexFunc(c, func(c endpick.Candidate) bool { return c.Endpoint.ID == "a" })
	})
	r, c := newRouter(endpick.Config{Endpoints: named("f", "e", "d", "c", "b", "a"), Policy: policy})
	c.advance(time.Second)
	var receipt endpick.Receipt
	l := rig.Must(r.Route(endpick.Request{Model: "m", Adapter: "x", InputTokens: 5, Receipt: &receipt}))

	var ids, removed []string
	for _, v := range receipt.Verdicts {
		ids = append(ids, v.Candidate.Endpoint.ID)
		removed = append(removed, v.RemovedBy)
	}
	assert.Equal(t, []string{"b", "c", "a", "f", "d", "e"}, ids, "best first, then the last removed first")
	assert.Equal(t, []string{"", "", "", "filter", "filter", "filter"}, removed)
	assert.Equal(t, 2, receipt.Chosen)
	assert.Equal(t, 0, receipt.RunnerUp)
	assert.InDelta(t, 0.3, receipt.Regret, 1e-12)
	assert.Equal(t, []float64{0.1}, receipt.Verdicts[2].Scores)
	assert.Equal(t, []string{"score"}, receipt.Scorers)
	assert.Equal(t, []string{"filter"}, receipt.Undecided)
	assert.EqualValues(t, 1, r.Stats().Undecided)
	assert.Equal(t, "x", receipt.Model)
	assert.Equal(t, uint64(1), receipt.Number)
	assert.Equal(t, time.Unix(1, 0), receipt.At)
	assert.NoError(t, receipt.Err)

	require.NoError(t, r.SetPolicy(byID(scores)))
	var best endpick.Receipt
	rig.Must(r.Route(endpick.Request{Receipt: &best})).Done(endpick.Outcome{})
	assert.Equal(t, "d", best.Verdicts[best.Chosen].Candidate.Endpoint.ID)
	assert.Equal(t, "e", best.Verdicts[best.RunnerUp].Candidate.Endpoint.ID)
	assert.Zero(t, best.Regret)

	// The receipt is reused, which does not change what a caller has kept.
	kept := receipt.Verdicts[2].Scores
	l.Done(endpick.Outcome{})
	behind := filterFunc(func(c []endpick.Candidate) []endpick.Candidate { // what it appends overwrites nobody
		_ = append(c, endpick.Candidate{})
		return c
	})
	require.NoError(t, r.SetPolicy(endpick.Policy{Filters: []endpick.Filter{behind, keep("f"), behind}}))
	rig.Must(r.Route(endpick.Request{Receipt: &receipt, Exclude: []string{"c", "d"}, Avoid: []string{"a", "b"}}))
	assert.Equal(t, []string{"a", "b"}, receipt.Avoided)
	require.Len(t, receipt.Verdicts, 2)
	assert.Equal(t, "e", receipt.Verdicts[1].Candidate.Endpoint.ID)
	assert.Equal(t, -1, receipt.RunnerUp)
	assert.Empty(t, receipt.Scorers)
	assert.Equal(t, []float64{0.1}, kept)

	predicted := endpick.Prediction{Has: endpick.TTFT | endpick.E2E, TTFT: 250 * time.Millisecond, TPOT: 1, E2E: 12_345_678 * time.Microsecond}
	text := (&endpick.Receipt{Number: 7, Excluded: 2, Avoided: []string{"b", "c"}, Chosen: -1, Verdicts: []endpick.Verdict{
		{Candidate: endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "a"}, Prediction: predicted}},
	}}).String()
	assert.Equal(t, `request 7, policy (unnamed), model "", 0 tokens, 2 excluded, 2 avoided (b c)
  a                W ~0   R ~0   K ~0    Q 0       H 0       TTFT 250ms E2E 12346ms
`, text)
}

// A receipt only describes its own request, whatever was decided before in the same memory: if a
// request is invalid, or no endpoint serves it, it has no verdicts. What others hold of a prompt
// must not be visible.
func TestReceiptsTellOfNobodyElse(t *testing.T) {
	refuse := false
	config := endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Models: []string{"m"}}, {ID: "b", Models: []string{"m"}}}, Policy: by(leastLoaded)}
	config.Policy.Matcher = holds(7)
	config.Policy.Admitters = []endpick.Admitter{admitFunc(func(*endpick.Request) error {
		if refuse {
			return errors.New("no")
		}
		return nil
	})}
	r, _ := newRouter(config)
	for i := range 20 {
		rig.Must(r.Route(endpick.Request{Model: "m", InputTokens: 1000, Tenant: "another", Receipt: new(endpick.Receipt)}))
		for _, tc := range []struct {
			req    endpick.Request
			refuse bool
			of     int
		}{
			{endpick.Request{Model: "m", BlockTokens: -1}, false, 0},
			{endpick.Request{Model: "m", InputTokens: -1}, false, 0},
			{endpick.Request{Model: "none", InputTokens: 10}, false, 0},
			{endpick.Request{Model: "m", InputTokens: 10, Exclude: []string{"a", "b"}}, false, 0},
			{endpick.Request{Model: "m", InputTokens: 10, Exclude: []string{"a"}}, true, 1},
		} {
			refuse = tc.refuse
			receipt := &endpick.Receipt{Verdicts: make([]endpick.Verdict, 5), Scorers: []string{"old", "older"}, Avoided: []string{"old"}, Excluded: 4}
			tc.req.Receipt = receipt
			_, err := r.Route(tc.req)
			require.Error(t, err)
			require.Equal(t, err, receipt.Err)
			require.Len(t, receipt.Verdicts, tc.of, "%v, round %d", err, i)
			require.Equal(t, []int{-1, -1}, []int{receipt.Chosen, receipt.RunnerUp})
			require.Len(t, receipt.Scorers, 1)
			require.Empty(t, receipt.Avoided)
			require.NotEqual(t, 4, receipt.Excluded)
		}
		refuse = false
	}
}

// telling is a scorer with reasons.
type telling struct {
	prefix string
	panics bool
}

func (telling) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = float64(len(candidates[i].Endpoint.ID)) / 10
	}
}

func (s telling) Explain(_ *endpick.Request, candidates []endpick.Candidate, dst []string) {
	if s.panics {
		panic("speechless")
	}
	for i := range candidates {
		dst[i] = s.prefix + candidates[i].Endpoint.ID
	}
}

// A receipt has the reasons of the scorers that have any, each with its candidate,
// and none for candidates that a filter has removed.
func TestReasons(t *testing.T) {
	for _, tc := range []struct {
		name   string
		policy endpick.Policy
		want   map[string]string
		panics uint64
	}{
		{"none", endpick.Policy{}, map[string]string{"x": "", "ab": "", "abc": ""}, 0},
		{"one", scoredBy(telling{prefix: "is "}), map[string]string{"x": "", "ab": "is ab", "abc": "is abc"}, 0},
		{"two", scoredBy(telling{prefix: "is "}, telling{prefix: "was "}), map[string]string{"x": "", "ab": "endpick_test.telling is ab; endpick_test.telling was ab", "abc": "endpick_test.telling is abc; endpick_test.telling was abc"}, 0},
		{"a panic", scoredBy(telling{panics: true}, telling{prefix: "was "}), map[string]string{"x": "", "ab": "endpick_test.telling was ab", "abc": "endpick_test.telling was abc"}, 1},
		{"a panic after it", scoredBy(telling{prefix: "is "}, telling{panics: true}),
			map[string]string{"x": "", "ab": "endpick_test.telling is ab", "abc": "endpick_test.telling is abc"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.policy.Filters = []endpick.Filter{keepIf(func(c *endpick.Candidate) bool { return len(c.Endpoint.ID) > 1 })}
			r, _ := newRouter(endpick.Config{Endpoints: named("x", "ab", "abc"), Policy: tc.policy})
			var receipt endpick.Receipt
			_ = rig.Must(r.Route(endpick.Request{Receipt: &receipt}))
			got := map[string]string{}
			for _, v := range receipt.Verdicts {
				got[v.Candidate.Endpoint.ID] = v.Why
			}
			assert.Equal(t, tc.want, got)
			assert.Equal(t, tc.panics, r.Stats().Panics)
			if tc.want["ab"] != "" {
				assert.Contains(t, receipt.String(), " ("+tc.want["ab"]+")\n")
			}
			_ = rig.Must(r.Route(endpick.Request{}))
			assert.Equal(t, tc.panics, r.Stats().Panics, "without a receipt nobody is asked")
		})
	}
}
