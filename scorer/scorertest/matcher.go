package scorertest

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// RunMatcher checks what every matcher must do, on a router in which requests and
// endpoints come and go. A match starts at the beginning of the prompt, has no gaps,
// and is at least one token shorter than the prompt. No endpoint holds what was never
// sent, and an endpoint that comes back holds nothing from before. Order does not
// matter. A prompt may have no blocks, and blocks may have any size. It changes nothing
// but PrefixTokens and EvictedTokens, keeps nothing that the caller owns, and reads no clock. It may be
// called concurrently. newMatcher returns a matcher without history; it is called many
// times.
func RunMatcher(t *testing.T, newMatcher func(*testing.T) endpick.Matcher) {
	t.Helper()
	checkMatcher(suiteOf(t), newMatcher)
}

func checkMatcher(s suite, newMatcher func(*testing.T) endpick.Matcher) {
	s.property("heads", func(t *testing.T, rt *rapid.T) {
		l := newLibrary(rt, newMatcher(t))
		l.live(rt)
		p := prompts.Draw(rt, "prompt")
		whole := l.match(p.blocks)
		at := rapid.IntRange(0, len(p.blocks)-1).Draw(rt, "changed block")
		changed := slices.Clone(p.blocks)
		changed[at] = ^changed[at] // a block that was never sent
		for id, h := range inOrder(l.match(changed)) {
			switch most := at * l.block; {
			case h > most:
				l.failf(rt, "%s is said to hold %d tokens of a prompt of %d blocks, of which block %d is one that nobody has sent: "+
					"a match is a head without gaps, here %d tokens at most", id, h, len(changed), at, most)
			case h < min(whole[id], most):
				l.failf(rt, "%s is said to hold %d tokens of a prompt of %d blocks, and %d once block %d is another: "+
					"what comes before it is still held", id, whole[id], len(changed), h, at)
			}
		}
	})
	s.property("bounds", func(t *testing.T, rt *rapid.T) {
		l := newLibrary(rt, newMatcher(t))
		l.live(rt)
		p := prompts.Draw(rt, "prompt")
		tokens := rapid.IntRange(1, l.block*len(p.blocks)).Draw(rt, "tokens")
		req := (endpick.Request{InputTokens: tokens, Blocks: p.blocks, BlockTokens: float64(l.block)}).At(l.now, 1, 1)
		c := trial{rt: rt, req: req}
		for _, e := range l.router.Endpoints() {
			if !e.Removed {
				c.candidates = append(c.candidates, e.Candidate)
			}
		}
		got, candidates := c.copied()
		c.call("Match", func() { l.matcher.Match(&got, candidates) })
		for i := range candidates {
			if h := candidates[i].PrefixTokens; h < 0 || h > tokens-1 {
				l.failf(rt, "%s is said to hold %d of %d tokens: at least none, and at most one less, since engines compute the last one again",
					candidates[i].Endpoint.ID, h, tokens)
			}
			if gone, h := candidates[i].EvictedTokens, candidates[i].PrefixTokens; gone < 0 || gone > h {
				l.failf(rt, "%s is said to have evicted %d of %d tokens: at least none, and no more than it holds",
					candidates[i].Endpoint.ID, gone, h)
			}
			candidates[i].PrefixTokens, candidates[i].EvictedTokens = 0, 0
		}
		c.unchanged("Match", &got, candidates, "a matcher writes PrefixTokens and EvictedTokens alone")
		other := c.shuffled()
		one, two := c.matches(l.matcher), other.matches(l.matcher)
		if fmt.Sprint(one) != fmt.Sprint(two) {
			c.failf("Match says %v in this order and %v in the order %v: it must not depend on the order of candidates", one, two, names(other.candidates))
		}
	})
	s.property("empty", func(t *testing.T, rt *rapid.T) {
		l := newLibrary(rt, newMatcher(t))
		l.live(rt)
		l.serve(rt, promptOf{status: endpick.Completed, first: true})
		if fault := panics(l.router); fault != "" {
			l.failf(rt, "%s, after a request without blocks", fault)
		}
		for tokens, blocks := range [][]uint64{nil, prompt(0, 3)} {
			c := trial{rt: rt, req: (endpick.Request{InputTokens: tokens, Blocks: blocks}).At(l.now, 1, 1), candidates: l.router.AppendCandidates(nil)}
			for id, h := range inOrder(c.matches(l.matcher)) {
				if h != 0 {
					l.failf(rt, "%s is said to hold %d tokens of a prompt of %d tokens and %d blocks: at least none, and at most one less than there are", id, h, tokens, len(blocks))
				}
			}
		}
	})
	s.property("unseen", func(t *testing.T, rt *rapid.T) {
		l := newLibrary(rt, newMatcher(t))
		l.live(rt)
		for id, h := range inOrder(l.match(prompt(1<<40, 20))) {
			if h != 0 {
				l.failf(rt, "%s is said to hold %d tokens of a prompt that nobody has sent", id, h)
			}
		}
	})
	s.property("come back", func(t *testing.T, rt *rapid.T) {
		l := newLibrary(rt, newMatcher(t))
		l.live(rt)
		id := rapid.SampledFrom(libraryIDs).Draw(rt, "endpoint")
		l.remove(rt, id)
		l.add(rt, id)
		for family := range uint64(families) {
			if h := l.match(prompt(family, 20))[id]; h != 0 {
				l.failf(rt, "%s is said to hold %d tokens though it was removed and added again since: nothing is known of the new one", id, h)
			}
		}
	})
	s.property("kept", func(t *testing.T, rt *rapid.T) {
		// Both see the same, but the memory of one's caller is reused.
		one, other := newLibrary(rt, newMatcher(t)), newLibrary(rt, newMatcher(t))
		other.scribbles = true
		for _, p := range rapid.SliceOfN(prompts, 1, 30).Draw(rt, "requests") {
			one.serve(rt, p)
			other.serve(rt, p)
			asked := prompts.Draw(rt, "asked")
			if a, b := one.match(asked.blocks), other.match(asked.blocks); fmt.Sprint(a) != fmt.Sprint(b) {
				one.failf(rt, "Match says %v of %d blocks, and %v where callers use the memory of Request.Blocks and Outcome.Blocks again: "+
					"it is theirs once the call has returned", a, len(asked.blocks), b)
			}
		}
	})
	s.once("clock", func(t *testing.T) string {
		return inBubble(t, "Match", func(t *testing.T) string {
			l := newLibrary(t, newMatcher(t))
			for n := range 30 {
				l.serve(t, promptOf{blocks: prompt(uint64(n%families), 1+n%20), status: endpick.Completed, first: true})
			}
			all := func() (held [families]map[string]int) {
				for family := range held {
					held[family] = l.match(prompt(uint64(family), 20))
				}
				return held
			}
			first := all()
			time.Sleep(24 * time.Hour)
			if again := all(); !reflect.DeepEqual(first, again) {
				return later("Match", first, again)
			}
			return ""
		})
	})
	s.once("concurrency", func(t *testing.T) string {
		l := newLibrary(t, newMatcher(t))
		fault := concurrently(func(i int) {
			for n := range 100 {
				p := prompt(uint64((i+n)%families), 1+n%20)
				if lease, err := l.router.Route(endpick.Request{Blocks: p, Stream: true}); err == nil {
					lease.FirstToken()
					lease.Done(endpick.Outcome{})
				}
			}
		})
		return cmp.Or(fault, panics(l.router))
	})
}

// inOrder yields a map's pairs sorted by key, so that failures are reproducible.
func inOrder[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// matches returns a matcher's results by endpoint.
func (c *trial) matches(m endpick.Matcher) map[string]int {
	req, candidates := c.copied()
	c.call("Match", func() { m.Match(&req, candidates) })
	held := map[string]int{}
	for i := range candidates {
		held[candidates[i].Endpoint.ID] = candidates[i].PrefixTokens
	}
	return held
}

const families = 3 // families of prompts with a common head

var libraryIDs = []string{"server-0", "server-1", "server-2"}

// prompt returns the first n blocks of a family of prompts.
func prompt(family uint64, n int) []uint64 {
	blocks := make([]uint64, n)
	for i := range blocks {
		blocks[i] = endpick.Salt(fmt.Sprint(family, " ", i))
	}
	return blocks
}

type promptOf struct {
	family uint64
	blocks []uint64
	status endpick.Status
	first  bool
}

var prompts = rapid.Custom(func(rt *rapid.T) promptOf {
	p := promptOf{family: rapid.Uint64Range(0, families-1).Draw(rt, "family")}
	p.blocks = prompt(p.family, rapid.IntRange(1, 20).Draw(rt, "blocks"))
	p.status = endpick.Status(rapid.IntRange(0, 2).Draw(rt, "status"))
	p.first = rapid.Bool().Draw(rt, "has a first token")
	return p
})

// library is a router with three endpoints, whose only stage is a matcher.
type library struct {
	matcher   endpick.Matcher
	router    *endpick.Router
	now       time.Time
	block     int // tokens per block
	steps     []string
	scribbles bool
}

func newLibrary(t rapid.TB, m endpick.Matcher) *library {
	l := &library{matcher: m, now: time.Unix(0, 0), block: endpick.DefaultBlockTokens}
	var endpoints []endpick.Endpoint
	for _, id := range libraryIDs {
		endpoints = append(endpoints, endpick.Endpoint{ID: id})
	}
	r, err := endpick.New(endpick.Config{
		Policy: endpick.Policy{Matcher: m}, Endpoints: endpoints, Seed: 1, Clock: func() time.Time { return l.now },
		Warn: func(err error) { l.steps = append(l.steps, "PANIC: "+err.Error()) },
	})
	if err != nil {
		t.Fatalf("a router with this stage alone: %v", err)
	}
	l.router = r
	return l
}

// live starts and ends some requests.
func (l *library) live(rt *rapid.T) {
	if l.block = rapid.SampledFrom([]int{endpick.DefaultBlockTokens, 5, 128}).Draw(rt, "block tokens"); l.block != endpick.DefaultBlockTokens {
		l.steps = append(l.steps, fmt.Sprintf("a block is %d tokens (Request.BlockTokens)", l.block))
	}
	for _, p := range rapid.SliceOfN(prompts, 0, 20).Draw(rt, "requests") {
		l.serve(rt, p)
		if fault := panics(l.router); fault != "" {
			l.failf(rt, "%s", fault)
		}
	}
}

func (l *library) serve(rt rapid.TB, p promptOf) {
	l.now = l.now.Add(time.Second)
	blocks := slices.Clone(p.blocks)
	lease, err := l.router.Route(endpick.Request{Blocks: blocks, BlockTokens: float64(l.block), Stream: true})
	if err != nil {
		l.failf(rt, "Route: %v", err)
	}
	after := append(slices.Clone(p.blocks), endpick.Salt(fmt.Sprint(p.family, " answer")))
	l.scribble(blocks)
	if p.first {
		lease.FirstToken()
	}
	lease.Done(endpick.Outcome{Status: p.status, Blocks: after})
	l.scribble(after)
	l.steps = append(l.steps, fmt.Sprintf("%d blocks of prompt %d went to %s: %v, first token %v", len(p.blocks), p.family, lease.Endpoint().ID, p.status, p.first))
}

func (l *library) scribble(blocks []uint64) {
	if l.scribbles {
		for i := range blocks {
			blocks[i] = math.MaxUint64
		}
	}
}

func (l *library) remove(rt *rapid.T, id string) {
	if err := l.router.Remove(id); err != nil {
		l.failf(rt, "Remove: %v", err)
	}
	l.steps = append(l.steps, id+" was removed")
}

func (l *library) add(rt *rapid.T, id string) {
	if err := l.router.Add(endpick.Endpoint{ID: id}); err != nil {
		l.failf(rt, "Add: %v", err)
	}
	l.steps = append(l.steps, id+" was added")
}

// match returns what each endpoint holds of the blocks, without routing anything.
func (l *library) match(blocks []uint64) map[string]int {
	var c trial
	// One token more than the blocks, because the last token is never held.
	c.req = (endpick.Request{InputTokens: l.block*len(blocks) + 1, Blocks: blocks, BlockTokens: float64(l.block)}).At(l.now, 1, 1)
	c.candidates = l.router.AppendCandidates(nil)
	return c.matches(l.matcher)
}

func (l *library) failf(rt rapid.TB, format string, args ...any) {
	msg := fmt.Sprintf(format, args...) + "\nThe smallest case:"
	if len(l.steps) == 0 {
		msg += "\n  nothing was routed"
	}
	for _, s := range l.steps {
		msg += "\n  " + s
	}
	rt.Fatalf("%s", msg)
}

// panics describes the first panic of a stage of the router.
func panics(r *endpick.Router) string {
	if n := r.Stats().Panics; n > 0 {
		return fmt.Sprintf("a stage panicked %d times, which costs it its say", n)
	}
	return ""
}
