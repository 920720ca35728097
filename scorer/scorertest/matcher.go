package scorertest

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// RunMatcher checks what every matcher must do, on a router in which requests and
// endpoints come and go:
//
//   - A match starts at the beginning of the prompt, has no gaps, and is at least one token
//     shorter than the prompt. Of prompts that begin alike it is as long, up to where they differ.
//   - No endpoint holds what was never sent, and one that comes back holds nothing from
//     before. Order does not matter.
//   - A prompt may have no blocks, and blocks may have any size.
//   - It changes nothing but PrefixTokens, keeps nothing that the caller
//     owns, reads no clock, and may be called concurrently.
//
// newMatcher returns a matcher without history; it is called many times. The labels are those of
// some of the endpoints.
func RunMatcher(t *testing.T, newMatcher func(*testing.T) endpick.Matcher, labels ...map[string]string) {
	t.Helper()
	checkMatcher(suiteOf(t, labels...), newMatcher)
}

func checkMatcher(s suite, newMatcher func(*testing.T) endpick.Matcher) {
	hears(s, newMatcher)
	for _, c := range []struct {
		name  string
		check func(*rapid.T, *library)
	}{{"heads", matchesHeads}, {"bounds", matchesWithinBounds}, {"empty", matchesNothingOfNothing}, {"unseen", matchesWhatWasSent}, {"come back", matchesNothingAfterwards}} {
		s.property(c.name, func(t *testing.T, rt *rapid.T) {
			l := s.library(rt, newMatcher(t))
			l.live(rt)
			c.check(rt, l)
		})
	}
	s.property("kept", func(t *testing.T, rt *rapid.T) {
		// Both see the same, but the memory of one's caller is reused.
		one, other := s.library(rt, newMatcher(t)), s.library(rt, newMatcher(t))
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
			l := s.library(t, newMatcher(t))
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
		return concurrentRequests(s.library(t, newMatcher(t)).router, "", endpick.Endpoint{ID: "server-1"})
	})
}

func matchesHeads(rt *rapid.T, l *library) {
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
}

func matchesWithinBounds(rt *rapid.T, l *library) {
	p := prompts.Draw(rt, "prompt")
	tokens := rapid.IntRange(1, l.block*len(p.blocks)).Draw(rt, "tokens")
	c := l.trial(rt, tokens, p.blocks)
	req, candidates := c.copied()
	c.call("Match", func() { l.matcher.Match(&req, candidates) })
	for i := range candidates {
		m := &candidates[i]
		if h := m.PrefixTokens; h < 0 || h > tokens-1 {
			l.failf(rt, "%s is said to hold %d of %d tokens: at least none, and at most one less, since engines compute the last one again",
				m.Endpoint.ID, h, tokens)
		}
		m.PrefixTokens = 0
	}
	c.unchanged("Match", &req, candidates, "a matcher writes PrefixTokens alone")
	other := c.shuffled()
	one, two := c.matches(l.matcher), other.matches(l.matcher)
	if fmt.Sprint(one) != fmt.Sprint(two) {
		c.failf("Match says %v in this order and %v in the order %v: it must not depend on the order of candidates", one, two, names(other.candidates))
	}
}

func matchesNothingOfNothing(rt *rapid.T, l *library) {
	l.serve(rt, promptOf{status: endpick.Completed, first: true})
	if fault := panics(l.router); fault != "" {
		l.failf(rt, "%s, after a request without blocks", fault)
	}
	l.block = 0
	for tokens, blocks := range [][]uint64{nil, prompt(0, 3)} {
		c := l.trial(rt, tokens, blocks)
		for id, h := range inOrder(c.matches(l.matcher)) {
			if h != 0 {
				l.failf(rt, "%s is said to hold %d tokens of a prompt of %d tokens and %d blocks: at least none, and at most one less than there are", id, h, tokens, len(blocks))
			}
		}
	}
}

func matchesWhatWasSent(rt *rapid.T, l *library) {
	for id, h := range inOrder(l.match(prompt(1<<40, 20))) {
		if h != 0 {
			l.failf(rt, "%s is said to hold %d tokens of a prompt that nobody has sent", id, h)
		}
	}
}

func matchesNothingAfterwards(rt *rapid.T, l *library) {
	id := rapid.SampledFrom(libraryIDs).Draw(rt, "endpoint")
	if err := errors.Join(l.router.Remove(id), l.router.Add(endpick.Endpoint{ID: id})); err != nil {
		l.failf(rt, "Remove and Add: %v", err)
	}
	l.did("%s was removed", id)
	l.did("%s was added", id)
	for family := range uint64(families) {
		if h := l.match(prompt(family, 20))[id]; h != 0 {
			l.failf(rt, "%s is said to hold %d tokens though it was removed and added again since: nothing is known of the new one", id, h)
		}
	}
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
	story
	matcher   endpick.Matcher
	router    *endpick.Router
	now       time.Time
	block     int // tokens per block
	scribbles bool
}

// library returns one whose endpoints have the labels in turn, and none.
func (s suite) library(t rapid.TB, m endpick.Matcher) *library {
	l := &library{matcher: m, now: time.Unix(0, 0), block: endpick.DefaultBlockTokens}
	config := endpick.Config{
		Policy: endpick.Policy{Matcher: m}, Clock: func() time.Time { return l.now },
		Warn: func(err error) { l.did("PANIC: %v", err) },
	}
	for i, id := range libraryIDs {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id, Labels: append(s.labels[:len(s.labels):len(s.labels)], nil)[i%(len(s.labels)+1)]})
	}
	l.router = routerWith(t, config)
	return l
}

// live starts and ends some requests.
func (l *library) live(rt *rapid.T) {
	if l.block = rapid.SampledFrom([]int{endpick.DefaultBlockTokens, 5, 128}).Draw(rt, "block tokens"); l.block != endpick.DefaultBlockTokens {
		l.did("a block is %d tokens (Request.BlockTokens)", l.block)
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
	if l.scribbles {
		overwrite(blocks)
	}
	if p.first {
		lease.FirstToken()
	}
	lease.Done(endpick.Outcome{Status: p.status, Blocks: after})
	if l.scribbles {
		overwrite(after)
	}
	l.did("%d blocks of prompt %d went to %s: %v, first token %v", len(p.blocks), p.family, lease.Endpoint().ID, p.status, p.first)
}

// trial is a request for the blocks, and all endpoints.
func (l *library) trial(rt *rapid.T, tokens int, blocks []uint64) trial {
	req := endpick.Request{InputTokens: tokens, Blocks: blocks, BlockTokens: float64(l.block)}
	return trial{rt: rt, req: req.At(l.now, 1, 1), candidates: l.router.AppendCandidates(nil)}
}

// match returns what each endpoint holds of the blocks, without routing anything. The
// prompt is one token longer, because the last token is never held.
func (l *library) match(blocks []uint64) map[string]int {
	c := l.trial(nil, l.block*len(blocks)+1, blocks)
	return c.matches(l.matcher)
}

// panics describes the first panic of a stage of the router.
func panics(r *endpick.Router) string {
	if n := r.Stats().Panics; n > 0 {
		return fmt.Sprintf("a stage panicked %d times, which costs it its say", n)
	}
	return ""
}
