package scorertest

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/race"
)

var update = flag.Bool("update", false, "write the golden files anew")

// recording is a suite that gives what fails to tell.
func recording(t *testing.T, tell func(check, fault string)) suite {
	return suite{
		property: func(name string, check func(*testing.T, *rapid.T)) {
			r := &recorder{name: name}
			r.run(func() { rapid.Check(r, func(rt *rapid.T) { check(t, rt) }) })
			if r.failed {
				tell(name, r.said)
			}
		},
		once: func(name string, check func(*testing.T) string) {
			if name == "concurrency" { // is seen by the race detector, and would end it all
				return
			}
			if fault := check(t); fault != "" {
				tell(name, fault)
			}
		},
	}
}

type (
	scoreFunc   func(req *endpick.Request, cs []endpick.Candidate, dst []float64)
	filterFunc  func(req *endpick.Request, cs []endpick.Candidate) []endpick.Candidate
	pickFunc    func(req *endpick.Request, cs []endpick.Candidate, scores []float64) int
	predictFunc func(req *endpick.Request, cs []endpick.Candidate)
	admitFunc   func(req *endpick.Request, cs []endpick.Candidate) error
	doneFunc    func(e *endpick.Event, o *endpick.Outcome)
	routedFunc  func(e *endpick.Event)
)

func (f scoreFunc) Score(req *endpick.Request, cs []endpick.Candidate, dst []float64) {
	f(req, cs, dst)
}
func (f filterFunc) Filter(req *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
	return f(req, cs)
}
func (f pickFunc) Pick(req *endpick.Request, cs []endpick.Candidate, scores []float64) int {
	return f(req, cs, scores)
}
func (f predictFunc) Predict(req *endpick.Request, cs []endpick.Candidate)   { f(req, cs) }
func (f admitFunc) Admit(req *endpick.Request, cs []endpick.Candidate) error { return f(req, cs) }
func (f doneFunc) Done(e *endpick.Event, o *endpick.Outcome)                 { f(e, o) }
func (f routedFunc) Routed(e *endpick.Event)                                 { f(e) }

func scoring(f scoreFunc) func(suite) {
	return func(s suite) {
		checkScorer(s, func(*testing.T) endpick.Scorer { return f }, 0, 1)
	}
}

func filtering(f filterFunc) func(suite) {
	return func(s suite) { checkFilter(s, func(*testing.T) endpick.Filter { return f }) }
}

func picking(f pickFunc) func(suite) {
	return func(s suite) { checkPicker(s, func(*testing.T) endpick.Picker { return f }) }
}

func matching(newMatcher func() endpick.Matcher) func(suite) {
	return func(s suite) { checkMatcher(s, func(*testing.T) endpick.Matcher { return newMatcher() }) }
}

func predicting(f predictFunc) func(suite) {
	return func(s suite) { checkPredictor(s, func(*testing.T) endpick.Predictor { return f }) }
}

func admitting(newAdmitter func() endpick.Admitter) func(suite) {
	return func(s suite) { checkAdmitter(s, func(*testing.T) endpick.Admitter { return newAdmitter() }) }
}

func observing(newObserver func() any) func(suite) {
	return func(s suite) { checkObserver(s, func(*testing.T) any { return newObserver() }) }
}

func policyOf(newPolicy func() endpick.Policy) func(suite) {
	return func(s suite) { checkPolicy(s, func(*testing.T) endpick.Policy { return newPolicy() }) }
}

// each calls f for every slot.
func each(f func(req *endpick.Request, c *endpick.Candidate) float64) scoreFunc {
	return func(req *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs {
			dst[i] = f(req, &cs[i])
		}
	}
}

// broken are stages that each break one promise.
var broken = []struct {
	name string
	kit  func(suite)
}{
	{"a scorer that leaves the last slot out", scoring(func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		clear(dst[:len(cs)-1])
	})},
	{"a scorer that divides by zero", scoring(each(func(_ *endpick.Request, c *endpick.Candidate) float64 { return 0.01 / c.KVUsage }))},
	{"a scorer whose scores are requests", scoring(each(func(_ *endpick.Request, c *endpick.Candidate) float64 { return c.Waiting }))},
	{"a scorer that goes by place", scoring(func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs {
			dst[i] = 1 / float64(1+i)
		}
	})},
	{"a scorer that counts its calls", func(s suite) {
		checkScorer(s, func(*testing.T) endpick.Scorer { return new(countsCalls) }, 0, 1)
	}},
	{"a scorer that reads a clock", scoring(each(func(*endpick.Request, *endpick.Candidate) float64 {
		return float64(time.Now().YearDay() % 2)
	}))},
	{"a scorer that sorts its candidates", scoring(func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		slices.SortFunc(cs, func(a, b endpick.Candidate) int { return int(a.Waiting - b.Waiting) })
		clear(dst)
	})},
	{"a scorer that changes the request", scoring(func(req *endpick.Request, _ []endpick.Candidate, dst []float64) {
		req.Priority = 0
		clear(dst)
	})},
	{"a scorer that takes reports for granted", scoring(each(func(_ *endpick.Request, c *endpick.Candidate) float64 { return 1 - c.Report.KVUsage }))},
	{"a scorer that keeps the candidates", func(s suite) {
		checkScorer(s, func(*testing.T) endpick.Scorer { return new(keepsCandidates) }, 0, 1)
	}},
	{"a filter that uses slices.DeleteFunc", filtering(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
		return slices.DeleteFunc(cs, func(c endpick.Candidate) bool { return c.Waiting > 8 })
	})},
	{"a filter that makes a slice of its own", filtering(func(_ *endpick.Request, cs []endpick.Candidate) (kept []endpick.Candidate) {
		for _, c := range cs {
			if c.Waiting <= 8 {
				kept = append(kept, c)
			}
		}
		return kept
	})},
	{"a filter that sorts", filtering(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
		slices.SortFunc(cs, func(a, b endpick.Candidate) int { return int(a.Waiting - b.Waiting) })
		return cs[:1]
	})},
	{"a filter that keeps the first two", filtering(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
		return cs[:min(len(cs), 2)]
	})},
	{"a picker that counts from one", picking(func(_ *endpick.Request, _ []endpick.Candidate, scores []float64) int {
		return slices.Index(scores, slices.Max(scores)) + 1
	})},
	{"a picker that takes the first of the best", picking(func(_ *endpick.Request, _ []endpick.Candidate, scores []float64) int {
		return slices.Index(scores, slices.Max(scores))
	})},
	{"a picker that normalises the scores in place", picking(func(_ *endpick.Request, cs []endpick.Candidate, scores []float64) int {
		best := 0
		for i := range scores {
			if scores[i] *= 0.5; scores[i] > scores[best] || scores[i] == scores[best] && cs[i].IDHash > cs[best].IDHash {
				best = i
			}
		}
		return best
	})},
	{"a matcher that knows blocks, not heads", matching(func() endpick.Matcher { return &blockSet{held: map[uint64]map[string]bool{}} })},
	{"a matcher that holds the last token too", matching(func() endpick.Matcher {
		return &headSet{held: map[string]bool{}, byRef: true, toTheEnd: true}
	})},
	{"a matcher that knows endpoints by name", matching(func() endpick.Matcher { return &headSet{held: map[string]bool{}} })},
	{"a matcher that keeps the caller's blocks", matching(func() endpick.Matcher { return &keepsBlocks{} })},
	{"a predictor with a bound below the expected value", predicting(func(_ *endpick.Request, cs []endpick.Candidate) {
		for i := range cs {
			cs[i].Prediction = endpick.Prediction{Has: endpick.TTFT, TTFT: time.Second, TTFTUpper: time.Second / 2}
		}
	})},
	{"a predictor whose time turns negative", predicting(func(_ *endpick.Request, cs []endpick.Candidate) {
		for i := range cs {
			ttft := time.Duration(100-cs[i].PrefixTokens) * time.Millisecond
			cs[i].Prediction = endpick.Prediction{Has: endpick.TTFT, TTFT: ttft, TTFTUpper: max(ttft, 0)}
		}
	})},
	{"a predictor for which unknown is zero of all", predicting(func(req *endpick.Request, cs []endpick.Candidate) {
		for i := range cs {
			p := endpick.Prediction{TTFT: time.Millisecond, TTFTUpper: time.Second}
			if cs[i].Report != nil {
				p.Has = endpick.TTFT
			}
			cs[i].Prediction = p
		}
	})},
	{"a predictor that goes by the mean of all", predicting(func(_ *endpick.Request, cs []endpick.Candidate) {
		sum := 0.0
		for i := range cs {
			sum += cs[i].BatchSize()
		}
		for i := range cs {
			d := time.Duration(sum/float64(len(cs))) * time.Millisecond
			cs[i].Prediction = endpick.Prediction{Has: endpick.TPOT, TPOT: d, TPOTUpper: d}
		}
	})},
	{"an admitter without words", admitting(func() endpick.Admitter {
		return admitFunc(func(req *endpick.Request, _ []endpick.Candidate) error {
			if req.Priority < 0 {
				return errors.New("")
			}
			return nil
		})
	})},
	{"an admitter that looks at the first candidate", admitting(func() endpick.Admitter {
		return admitFunc(func(_ *endpick.Request, cs []endpick.Candidate) error {
			if cs[0].KVUsage > 0.9 {
				return errors.New("full")
			}
			return nil
		})
	})},
	{"an admitter that does not take back what is withdrawn", admitting(func() endpick.Admitter { return &bucket{left: 100} })},
	{"an admitter that trusts that it was asked", admitting(func() endpick.Admitter { return &asked{admitted: map[uint64]int{}} })},
	{"an observer with a wrong signature", observing(func() any { return struct{ Routed func() }{} })},
	{"an observer that keeps events", observing(func() any { return &keepsEvents{} })},
	{"an observer that takes a first token for granted", observing(func() any {
		return doneFunc(func(e *endpick.Event, _ *endpick.Outcome) {
			if e.FirstTokenAt.Before(e.RoutedAt) {
				panic("a first token before it was asked for")
			}
		})
	})},
	{"an observer that corrects the outcome", observing(func() any {
		return doneFunc(func(_ *endpick.Event, o *endpick.Outcome) { o.CachedTokens = min(o.CachedTokens, 100) })
	})},
	{"an observer that indexes by model", observing(func() any {
		seen := map[string]int{"another": 1}
		return routedFunc(func(e *endpick.Event) {
			if seen[e.Request.Model] == 0 && len(e.Request.Blocks) > 2 {
				_ = make([]int, seen[e.Request.Model])[e.Lease.Slot]
			}
		})
	})},
	{"a policy whose picker goes by place", policyOf(func() endpick.Policy {
		return endpick.Policy{Picker: pickFunc(func(*endpick.Request, []endpick.Candidate, []float64) int { return 0 })}
	})},
	{"a policy whose scorer divides by the load", policyOf(func() endpick.Policy {
		return endpick.Policy{Scorers: []endpick.Weighted{{Weight: 1, Scorer: each(func(_ *endpick.Request, c *endpick.Candidate) float64 {
			return math.Log(c.KVUsage)
		})}}}
	})},
	{"a policy that refuses what is under way", policyOf(func() endpick.Policy {
		return endpick.Policy{Filters: []endpick.Filter{filterFunc(func(req *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
			if req.UnderWay {
				panic("who are you?")
			}
			return cs
		})}}
	})},
	{"a policy whose bounds are below what it expects", policyOf(func() endpick.Policy {
		return endpick.Policy{Predictor: predictFunc(func(_ *endpick.Request, cs []endpick.Candidate) {
			for i := range cs {
				cs[i].Prediction = endpick.Prediction{Has: endpick.E2E, E2E: time.Second}
			}
		})}
	})},
}

// keepsCandidates scores by the first candidates it has seen.
type keepsCandidates struct{ seen []endpick.Candidate }

func (s *keepsCandidates) Score(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
	if s.seen == nil {
		s.seen = cs
	}
	for i := range cs {
		dst[i] = 0
		if c := find(s.seen, cs[i].Endpoint.ID); c != nil {
			dst[i] = c.KVUsage
		}
	}
}

// countsCalls scores by how often it was called.
type countsCalls struct{ calls float64 }

func (s *countsCalls) Score(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
	s.calls++
	for i := range cs {
		dst[i] = 1 / s.calls
	}
}

// blockSet counts the blocks that an endpoint holds, wherever they are.
type blockSet struct {
	mu   sync.Mutex
	held map[uint64]map[string]bool
}

func (m *blockSet) Match(req *endpick.Request, cs []endpick.Candidate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range cs {
		for _, b := range req.Blocks {
			if m.held[b][fmt.Sprint(cs[i].Ref)] {
				cs[i].PrefixTokens = min(cs[i].PrefixTokens+endpick.DefaultBlockTokens, req.InputTokens-1)
			}
		}
	}
}

func (m *blockSet) Routed(e *endpick.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range e.Request.Blocks {
		if m.held[b] == nil {
			m.held[b] = map[string]bool{}
		}
		m.held[b][fmt.Sprint(e.Candidate.Ref)] = true
	}
}

// headSet is a right matcher but for what its fields say.
type headSet struct {
	mu       sync.Mutex
	held     map[string]bool
	byRef    bool
	toTheEnd bool
}

func (m *headSet) key(block uint64, c *endpick.Candidate) string {
	if m.byRef {
		return fmt.Sprint(block, c.Ref)
	}
	return fmt.Sprint(block, c.Endpoint.ID)
}

func (m *headSet) Match(req *endpick.Request, cs []endpick.Candidate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range cs {
		for _, b := range req.Blocks {
			if !m.held[m.key(b, &cs[i])] {
				break
			}
			cs[i].PrefixTokens += endpick.DefaultBlockTokens
		}
		if !m.toTheEnd {
			cs[i].PrefixTokens = min(cs[i].PrefixTokens, req.InputTokens-1)
		}
	}
}

func (m *headSet) Routed(e *endpick.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range e.Request.Blocks {
		m.held[m.key(b, e.Candidate)] = true
	}
}

// keepsBlocks remembers prompts by the caller's own slices.
type keepsBlocks struct {
	mu      sync.Mutex
	prompts [][]uint64
	refs    []endpick.Ref
}

func (m *keepsBlocks) Match(req *endpick.Request, cs []endpick.Candidate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range cs {
		for j, p := range m.prompts {
			n := 0
			for n < min(len(p), len(req.Blocks)) && p[n] == req.Blocks[n] {
				n++
			}
			if m.refs[j] == cs[i].Ref {
				cs[i].PrefixTokens = max(cs[i].PrefixTokens, min(n*endpick.DefaultBlockTokens, req.InputTokens-1))
			}
		}
	}
}

func (m *keepsBlocks) Routed(e *endpick.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prompts, m.refs = append(m.prompts, e.Request.Blocks), append(m.refs, e.Candidate.Ref)
}

// bucket lets in so many.
type bucket struct{ left int }

func (b *bucket) Admit(*endpick.Request, []endpick.Candidate) error {
	if b.left == 0 {
		return errors.New("empty")
	}
	b.left--
	return nil
}
func (b *bucket) Withdrawn(*endpick.Request) {}

// asked expects every request that is routed to have been admitted.
type asked struct{ admitted map[uint64]int }

func (a *asked) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	a.admitted[req.Number()]++
	return nil
}

func (a *asked) Routed(e *endpick.Event) {
	if a.admitted[e.Request.Number()] == 0 {
		panic(fmt.Sprintf("request %d was never admitted", e.Request.Number()))
	}
	delete(a.admitted, e.Request.Number())
}

// keepsEvents looks at the event of Routed when the request is done.
type keepsEvents struct{ routed *endpick.Event }

func (o *keepsEvents) Routed(e *endpick.Event) { o.routed = e }

func (o *keepsEvents) Done(*endpick.Event, *endpick.Outcome) { _ = o.routed.Candidate.Endpoint.ID }

// closures are numbered as they stand in this file.
var closures = regexp.MustCompile(`init\.func[0-9.]+`)

// Each kit finds what is broken, and says it in words, with the smallest case.
func TestKitsSayWhatIsBroken(t *testing.T) {
	if race.Enabled {
		t.Skip("the words are the same, and take long to come")
	}
	settled(t)
	const golden = "testdata/broken.txt"
	var b strings.Builder
	want := map[string]string{}
	if text, err := os.ReadFile(golden); !*update {
		require.NoError(t, err)
		for _, section := range strings.Split(string(text), "== ")[1:] {
			name, words, _ := strings.Cut(section, "\n")
			want[name] = strings.TrimSuffix(words, "\n")
		}
		assert.Len(t, want, len(broken))
	}
	for _, x := range broken {
		words := closures.ReplaceAllString(said(t, x.kit), "init.func")
		assert.NotEmpty(t, words, "no kit finds %s", x.name)
		if !*update {
			assert.Equal(t, want[x.name], words, x.name)
		}
		fmt.Fprintf(&b, "== %s\n%s\n", x.name, words)
	}
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(b.String()), 0o644))
	}
}
