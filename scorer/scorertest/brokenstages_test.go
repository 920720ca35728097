package scorertest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer"
)

// broken are stages that each violate one requirement.
var broken = []struct {
	name string
	kit  func(suite)
}{
	{"a scorer that leaves the last slot out", scoring(func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		clear(dst[:len(cs)-1])
	})},
	{"a scorer that divides by zero", scoring(each(func(_ *endpick.Request, c *endpick.Candidate) float64 { return 0.01 / c.KVUsage }))},
	{"a scorer that normalises what is equal", scoring(func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		least, most := math.Inf(1), math.Inf(-1)
		for i := range cs {
			least, most = min(least, cs[i].Waiting), max(most, cs[i].Waiting)
		}
		for i := range cs {
			dst[i] = (most - cs[i].Waiting) / (most - least)
		}
	})},
	{"a scorer whose scores are requests", scoring(each(func(_ *endpick.Request, c *endpick.Candidate) float64 { return c.Waiting }))},
	{"a scorer whose scores are labels", func(s suite) {
		s.labels = []map[string]string{{"zone": "a"}, {"price": "low"}}
		scoring(each(func(_ *endpick.Request, c *endpick.Candidate) float64 {
			return float64(len(c.Endpoint.Labels["price"]))
		}))(s)
	}},
	{"a scorer that goes by place", scoring(func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		for i := range cs {
			dst[i] = 1 / float64(1+i)
		}
	})},
	{"a scorer that counts its calls", scorers(func() endpick.Scorer { return new(countsCalls) })},
	{"a scorer that reads a clock", scoring(each(func(*endpick.Request, *endpick.Candidate) float64 {
		return float64(time.Now().UTC().YearDay() % 2)
	}))},
	{"a scorer of night prices", scoring(each(func(*endpick.Request, *endpick.Candidate) float64 {
		if time.Now().UTC().Hour() < 6 {
			return 1
		}
		return 0
	}))},
	{"a scorer that sorts its candidates", scoring(func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		slices.SortFunc(cs, func(a, b endpick.Candidate) int { return int(a.Waiting - b.Waiting) })
		clear(dst)
	})},
	{"a scorer that sorts the blocks", scoring(func(req *endpick.Request, _ []endpick.Candidate, dst []float64) {
		slices.Sort(req.Blocks)
		clear(dst)
	})},
	{"a scorer that takes reports for granted", scoring(each(func(_ *endpick.Request, c *endpick.Candidate) float64 { return 1 - c.Report.KVUsage }))},
	{"a scorer that keeps the candidates", scorers(func() endpick.Scorer { return new(keepsCandidates) })},
	{"a scorer that appends to the candidates", scoring(func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
		clear(dst)
		_ = append(cs, endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "the mean of all"}})
	})},
	{"a scorer that caps what is reported", scoring(each(func(_ *endpick.Request, c *endpick.Candidate) float64 {
		if c.Report == nil {
			return 0.5
		}
		c.Report.KVUsage = min(c.Report.KVUsage, 0.95)
		return 1 - c.Report.KVUsage
	}))},
	{"a scorer that breaks ties by chance of its own", scorers(func() endpick.Scorer {
		chance := rand.New(rand.NewPCG(1, 2))
		return each(func(*endpick.Request, *endpick.Candidate) float64 { return chance.Float64() })
	})},
	{"a scorer that writes to an earlier answer", scorers(func() endpick.Scorer { return new(keepsAnswers) })},
	{"a scorer that can't explain", scorers(func() endpick.Scorer { return explainsTwo{scorer.QueueDepth()} })},
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
	{"a filter that labels endpoints", filtering(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
		for i := range cs {
			if cs[i].KVUsage > 0.9 {
				cs[i].Endpoint.Labels = map[string]string{"full": "yes"}
			}
		}
		return cs
	})},
	{"a filter that notes what it leaves", filtering(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
		_ = append(cs, cs[0])
		return cs
	})},
	{"a filter that reads a label nobody has", filtering(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
		return endpick.Keep(cs, func(c *endpick.Candidate) bool { return c.Endpoint.Labels["zone"] == "north" })
	})},
	{"a filter that takes turns by the clock", func(s suite) {
		s.labels = []map[string]string{nil}
		filtering(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
			return endpick.Keep(cs, func(c *endpick.Candidate) bool { return int(c.Ref.Slot)%3 == time.Now().UTC().YearDay()%3 })
		})(s)
	}},
	{"a filter that sends each tenth request to the canaries", func(s suite) {
		s.labels = []map[string]string{{"kind": "canary"}}
		checkFilter(s, func(*testing.T) endpick.Filter {
			var calls atomic.Int64
			return filterFunc(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
				canary := calls.Add(1)%10 == 0
				return endpick.Keep(cs, func(c *endpick.Candidate) bool { return c.Endpoint.Labels["kind"] == "canary" == canary })
			})
		})
	}},
	{"a filter that keeps sessions where they were", func(s suite) {
		s.labels = []map[string]string{nil}
		checkFilter(s, func(*testing.T) endpick.Filter {
			var chosen sync.Map // the endpoint of a session
			return filterFunc(func(req *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
				idle := slices.MinFunc(cs, func(a, b endpick.Candidate) int {
					return cmp.Or(cmp.Compare(a.Waiting, b.Waiting), cmp.Compare(a.ChanceKey, b.ChanceKey))
				})
				id, _ := chosen.LoadOrStore(req.Session, idle.Endpoint.ID)
				return endpick.Keep(cs, func(c *endpick.Candidate) bool { return c.Endpoint.ID == id })
			})
		})
	}},
	{"a picker that counts from one", picking(func(_ *endpick.Request, _ []endpick.Candidate, scores []float64) int {
		return slices.Index(scores, slices.Max(scores)) + 1
	})},
	{"a picker that takes the first of the best", picking(func(_ *endpick.Request, _ []endpick.Candidate, scores []float64) int {
		return slices.Index(scores, slices.Max(scores))
	})},
	{"a picker that normalises the scores in place", picking(func(_ *endpick.Request, cs []endpick.Candidate, scores []float64) int {
		best := 0
		for i := range scores {
			if scores[i] *= 0.5; scores[i] > scores[best] || scores[i] == scores[best] && cs[i].ChanceKey > cs[best].ChanceKey {
				best = i
			}
		}
		return best
	})},
	{"a picker of the lowest score", picking(func(_ *endpick.Request, cs []endpick.Candidate, scores []float64) int {
		best := 0
		for i := range scores {
			if scores[i] < scores[best] || scores[i] == scores[best] && cs[i].ChanceKey > cs[best].ChanceKey {
				best = i
			}
		}
		return best
	})},
	{"a picker that throws dice", of(checkPicker, func() endpick.Picker {
		dice := rand.New(rand.NewPCG(1, 2))
		return pickFunc(func(_ *endpick.Request, cs []endpick.Candidate, _ []float64) int { return dice.IntN(len(cs)) })
	})},
	{"a matcher that knows blocks, not heads", matching(func() endpick.Matcher { return &blockSet{held: map[uint64]map[string]bool{}} })},
	{"a matcher that holds the last token too", matching(func() endpick.Matcher {
		return &headSet{held: map[string]bool{}, byRef: true, toTheEnd: true}
	})},
	{"a matcher that knows endpoints by name", matching(func() endpick.Matcher { return &headSet{held: map[string]bool{}} })},
	{"a matcher that keeps the caller's blocks", matching(func() endpick.Matcher { return &keepsBlocks{} })},
	{"a matcher that takes a block for granted", matching(func() endpick.Matcher {
		return matchFunc(func(req *endpick.Request, _ []endpick.Candidate) { _ = req.Blocks[0] })
	})},
	{"a matcher for which an empty prompt lacks a token", matching(func() endpick.Matcher {
		return matchFunc(onEach(func(req *endpick.Request, c *endpick.Candidate) {
			c.PrefixTokens = min(c.PrefixTokens, req.InputTokens-1)
		}))
	})},
	{"a matcher for which all blocks are of 16 tokens", matching(func() endpick.Matcher {
		return &headSet{held: map[string]bool{}, byRef: true, sixteen: true}
	})},
	{"a matcher that forgets by a clock", matching(func() endpick.Matcher {
		return &headSet{held: map[string]bool{}, byRef: true, until: time.Now().Add(time.Hour)}
	})},
	{"a matcher that trusts a label", labelled(matching(func() endpick.Matcher {
		return matchFunc(onEach(func(_ *endpick.Request, c *endpick.Candidate) { c.PrefixTokens = len(c.Endpoint.Labels) }))
	}))},
	{"a matcher that keeps what it wraps deaf", matching(func() endpick.Matcher {
		return struct{ endpick.Matcher }{&headSet{held: map[string]bool{}, byRef: true}}
	})},
	{"a predictor that knows a labelled one by its bound", labelled(predicting(onEach(func(_ *endpick.Request, c *endpick.Candidate) {
		c.Prediction.TTFTUpper = time.Duration(len(c.Endpoint.Labels))
	})))},
	{"a predictor with a bound below the expected value", predicting(onEach(func(_ *endpick.Request, c *endpick.Candidate) {
		c.Prediction = endpick.Prediction{Has: endpick.TTFT, TTFT: time.Second, TTFTUpper: time.Second / 2}
	}))},
	{"a predictor whose time turns negative", predicting(onEach(func(_ *endpick.Request, c *endpick.Candidate) {
		ttft := time.Duration(100-c.PrefixTokens) * time.Millisecond
		c.Prediction = endpick.Prediction{Has: endpick.TTFT, TTFT: ttft, TTFTUpper: max(ttft, 0)}
	}))},
	{"a predictor for which unknown is zero of all", predicting(onEach(func(req *endpick.Request, c *endpick.Candidate) {
		p := endpick.Prediction{TTFT: time.Millisecond, TTFTUpper: time.Second}
		if c.Report != nil {
			p.Has = endpick.TTFT
		}
		c.Prediction = p
	}))},
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
	{"a predictor that reads a clock", predicting(onEach(func(_ *endpick.Request, c *endpick.Candidate) {
		d := time.Duration(1+time.Now().UTC().YearDay()%2) * time.Second
		c.Prediction = endpick.Prediction{Has: endpick.TTFT, TTFT: d, TTFTUpper: d}
	}))},
	{"a predictor that counts the request in", predicting(onEach(func(_ *endpick.Request, c *endpick.Candidate) { c.Running++ }))},
	{"an admitter without words", admitting(func() endpick.Admitter {
		return refusing("", func(req *endpick.Request, _ []endpick.Candidate) bool { return req.Priority < 0 })
	})},
	{"an admitter whose reason is a nil pointer", admitting(func() endpick.Admitter {
		return admitFunc(func(*endpick.Request, []endpick.Candidate) error { return (*endpick.RequestError)(nil) })
	})},
	{"an admitter that looks at the first candidate", admitting(func() endpick.Admitter {
		return refusing("full", func(_ *endpick.Request, cs []endpick.Candidate) bool { return cs[0].KVUsage > 0.9 })
	})},
	{"an admitter that does not take back what is withdrawn", admitting(func() endpick.Admitter { return new(bucket) })},
	{"an admitter that trusts that it was asked", admitting(func() endpick.Admitter { return &asked{admitted: map[uint64]int{}} })},
	{"an admitter that reads a clock", admitting(func() endpick.Admitter {
		return refusing("not today", func(*endpick.Request, []endpick.Candidate) bool { return time.Now().UTC().YearDay()%2 == 0 })
	})},
	{"an admitter that keeps the candidates", admitting(func() endpick.Admitter { return new(keepsLoad) })},
	{"an admitter that hears of no end", admitting(func() endpick.Admitter {
		n := 0
		return admitFunc(func(*endpick.Request, []endpick.Candidate) error {
			if n++; n > 100 {
				return errors.New("a hundred at once")
			}
			return nil
		})
	})},
	{"an admitter that lets in what completes", admitting(func() endpick.Admitter { return &seats{left: 10} })},
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
	{"an observer that sorts what there was to choose from", observing(func() any {
		return routedFunc(func(e *endpick.Event) {
			slices.SortFunc(e.Candidates, func(a, b endpick.Candidate) int { return cmp.Compare(b.ChanceKey, a.ChanceKey) })
		})
	})},
	{"an observer that marks endpoints", observing(func() any {
		return doneFunc(func(e *endpick.Event, _ *endpick.Outcome) {
			e.Candidate.Endpoint.Labels = map[string]string{"used": "yes"}
		})
	})},
	{"an observer with room for two requests", observing(func() any {
		var since [2]time.Time
		return routedFunc(func(e *endpick.Event) { since[e.Lease.Slot] = e.Now })
	})},
	{"a policy whose picker goes by place", policyOf(func() endpick.Policy {
		return endpick.Policy{Picker: pickFunc(func(*endpick.Request, []endpick.Candidate, []float64) int { return 0 })}
	})},
	{"a policy whose scorer divides by the load", policyOf(func() endpick.Policy {
		return endpick.Policy{Scorers: []endpick.Weighted{{Weight: 1, Scorer: each(func(_ *endpick.Request, c *endpick.Candidate) float64 {
			return math.Log(c.KVUsage)
		})}}}
	})},
	{"an admitter that forgets what other routers have sent", admitting(func() endpick.Admitter { return &perTenant{most: 3} })},
	{"a policy whose admitter forgets what is under way", policyOf(func() endpick.Policy {
		return endpick.Policy{Admitters: []endpick.Admitter{&perTenant{most: 3, mirrors: true}}}
	})},
	{"a policy that can't predict what is adopted", policyOf(func() endpick.Policy {
		return endpick.Policy{Predictor: predictFunc(func(req *endpick.Request, _ []endpick.Candidate) {
			if req.Adopted != nil {
				panic("who are you?")
			}
		})}
	})},
	{"a policy whose bounds are below what it expects", policyOf(func() endpick.Policy {
		return endpick.Policy{Predictor: predictFunc(onEach(func(_ *endpick.Request, c *endpick.Candidate) {
			c.Prediction = endpick.Prediction{Has: endpick.E2E, E2E: time.Second}
		}))}
	})},
	{"a policy whose filter takes load away", policyOf(func() endpick.Policy {
		return endpick.Policy{Filters: []endpick.Filter{filterFunc(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
			for i := range cs {
				cs[i].InFlight.Requests = 0
			}
			return cs
		})}}
	})},
	{"a policy whose filter panics at a label", labelled(policyOf(func() endpick.Policy {
		return endpick.Policy{Filters: []endpick.Filter{filterFunc(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
			return endpick.Keep(cs, func(c *endpick.Candidate) bool {
				if c.Endpoint.Labels["kind"] == "old" {
					panic("too old")
				}
				return true
			})
		})}}
	}))},
	{"a policy whose filter clears what it removes", policyOf(func() endpick.Policy {
		return endpick.Policy{Filters: []endpick.Filter{filterFunc(func(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
			return slices.DeleteFunc(cs, func(c endpick.Candidate) bool { return c.Endpoint.ID == "server-0" })
		})}}
	})},
	{"a policy whose admitter gives no reason", policyOf(func() endpick.Policy {
		return endpick.Policy{Admitters: []endpick.Admitter{refusing("", func(req *endpick.Request, _ []endpick.Candidate) bool { return req.Stream })}}
	})},
}

type explainsTwo struct{ endpick.Scorer }

func (explainsTwo) Explain(_ *endpick.Request, _ []endpick.Candidate, dst []string) {
	dst[1] = "the second"
}

// keepsCandidates scores by the first candidates it saw.
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

// countsCalls scores by the number of its calls.
type countsCalls struct{ calls float64 }

func (s *countsCalls) Score(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
	s.calls++
	for i := range cs {
		dst[i] = 1 / s.calls
	}
}

// blockSet counts the blocks that an endpoint holds, wherever they are.
type blockSet struct{ held map[uint64]map[string]bool }

func (m *blockSet) Match(req *endpick.Request, cs []endpick.Candidate) {
	for i := range cs {
		for _, b := range req.Blocks {
			if m.held[b][fmt.Sprint(cs[i].Ref)] {
				cs[i].PrefixTokens = max(min(cs[i].PrefixTokens+int(req.TokensPerBlock()), req.InputTokens-1), 0)
			}
		}
	}
}

func (m *blockSet) Routed(e *endpick.Event) {
	for _, b := range e.Request.Blocks {
		if m.held[b] == nil {
			m.held[b] = map[string]bool{}
		}
		m.held[b][fmt.Sprint(e.Candidate.Ref)] = true
	}
}

// headSet is a correct matcher, except for what its fields say.
type headSet struct {
	held     map[string]bool
	byRef    bool
	toTheEnd bool
	sixteen  bool
	until    time.Time // zero: it forgets nothing
}

func (m *headSet) key(block uint64, c *endpick.Candidate) string {
	if m.byRef {
		return fmt.Sprint(block, c.Ref)
	}
	return fmt.Sprint(block, c.Endpoint.ID)
}

func (m *headSet) Match(req *endpick.Request, cs []endpick.Candidate) {
	for i := range cs {
		for _, b := range req.Blocks {
			if !m.held[m.key(b, &cs[i])] || !m.until.IsZero() && time.Now().After(m.until) {
				break
			}
			if m.sixteen {
				cs[i].PrefixTokens += 16
			} else {
				cs[i].PrefixTokens += int(req.TokensPerBlock())
			}
		}
		if !m.toTheEnd {
			cs[i].PrefixTokens = max(min(cs[i].PrefixTokens, req.InputTokens-1), 0)
		}
	}
}

func (m *headSet) Routed(e *endpick.Event) {
	for _, b := range e.Request.Blocks {
		m.held[m.key(b, e.Candidate)] = true
	}
}

// keepsBlocks keeps the caller's own slices.
type keepsBlocks struct {
	prompts [][]uint64
	refs    []endpick.EndpointRef
}

func (m *keepsBlocks) Match(req *endpick.Request, cs []endpick.Candidate) {
	for i := range cs {
		for j, p := range m.prompts {
			n := 0
			for n < min(len(p), len(req.Blocks)) && p[n] == req.Blocks[n] {
				n++
			}
			if m.refs[j] == cs[i].Ref {
				cs[i].PrefixTokens = max(cs[i].PrefixTokens, min(n*int(req.TokensPerBlock()), req.InputTokens-1))
			}
		}
	}
}

func (m *keepsBlocks) Routed(e *endpick.Event) {
	m.prompts, m.refs = append(m.prompts, e.Request.Blocks), append(m.refs, e.Candidate.Ref)
}

// bucket admits so many requests.
type bucket struct {
	left   int
	filled time.Time
}

func (b *bucket) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	if b.filled != req.Now() {
		b.left, b.filled = 100, req.Now()
	}
	if b.left == 0 {
		return errors.New("empty")
	}
	b.left--
	return nil
}
func (b *bucket) Withdrawn(*endpick.Request) {}

// asked expects every routed request to have been admitted.
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

// keepsEvents uses the event of Routed when the request is done.
type keepsEvents struct{ routed *endpick.Event }

func (o *keepsEvents) Routed(e *endpick.Event) { o.routed = e }

func (o *keepsEvents) Done(*endpick.Event, *endpick.Outcome) { _ = o.routed.Candidate.Endpoint.ID }

// keepsAnswers writes to earlier slices.
type keepsAnswers struct{ dst []float64 }

func (s *keepsAnswers) Score(_ *endpick.Request, _ []endpick.Candidate, dst []float64) {
	for i := range s.dst {
		s.dst[i] = 1
	}
	clear(dst)
	s.dst = dst
}

// keepsLoad refuses a request if the load was high at the previous one.
type keepsLoad struct{ before []endpick.Candidate }

func (a *keepsLoad) Admit(_ *endpick.Request, cs []endpick.Candidate) error {
	high := len(a.before) > 0 && a.before[0].KVUsage > 0.9
	if a.before = cs; high {
		return errors.New("full")
	}
	return nil
}

// seats admits so many at a time, and assumes that all of them complete.
type seats struct{ left int }

func (s *seats) Admit(*endpick.Request, []endpick.Candidate) error {
	if s.left <= 0 {
		return errors.New("no seat is free")
	}
	s.left--
	return nil
}

func (s *seats) Withdrawn(*endpick.Request) { s.left++ }

func (s *seats) Done(_ *endpick.Event, o *endpick.Outcome) {
	if o.Status == endpick.Completed {
		s.left++
	}
}

// perTenant admits so many requests of a tenant at one time. It counts some of those
// for which it was not asked when they end, and not when they begin.
type perTenant struct {
	endpick.Exclusive
	most    int
	mirrors bool // it forgets mirrored requests, or else those under way

	open map[string]int
}

func (p *perTenant) add(tenant string, n, most int) bool {
	if p.open == nil {
		p.open = map[string]int{}
	}
	if p.open[tenant] >= most {
		return false
	}
	p.open[tenant] += n
	return true
}

func (p *perTenant) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	if !p.add(req.Tenant, 1, p.most) {
		return errors.New("the tenant has enough")
	}
	return nil
}

func (p *perTenant) Routed(e *endpick.Event) {
	if a := e.Request.Adopted; a != nil && a.Mirrored == p.mirrors {
		p.add(e.Request.Tenant, 1, math.MaxInt)
	}
}

func (p *perTenant) Withdrawn(req *endpick.Request) { p.add(req.Tenant, -1, math.MaxInt) }

func (p *perTenant) Done(e *endpick.Event, _ *endpick.Outcome) {
	p.add(e.Request.Tenant, -1, math.MaxInt)
}
