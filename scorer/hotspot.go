package scorer

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// Hotspot is LMetric's two-phase detector of prefix hotspots (section 5.2 of its
// paper): it keeps the requests of one class away from the endpoints that hold their
// prefix when these would otherwise be overloaded.
//
// A class is all requests with the same head. With x its share of all requests in the
// window, x̄ = 1 − x, M the endpoints that hold the head and M̄ the others, the first
// phase is x/x̄ > |M|/|M̄|. The second phase, from then on: more than 2·|M| requests
// of the class in a row score better on M than on M̄. Then M is filtered out for the
// class until the first phase no longer holds, for which the paper has no rule. If M
// or M̄ is empty, or x is 1, there is no hotspot.
//
// The head is the chained hash of the first HeadTokens of the prompt in full blocks,
// or of all its full blocks if there are fewer; requests without blocks are in no
// class. Only the most frequent classes whose head is held by some endpoint are
// tracked.
//
// It learns from what is routed, and belongs to one router.
func Hotspot(config HotspotConfig) endpick.Filter { return &hotspot{config: config} }

// HotspotConfig configures a Hotspot. The zero value is ready to use.
type HotspotConfig struct {
	// Window is the time over which shares are counted. Zero: one minute.
	Window time.Duration
	// Classes is how many classes of requests are tracked. Zero: 32.
	Classes int
	// HeadTokens is the length of the head that defines a class. Prefixes no
	// longer than this make no hotspot. Zero: 128.
	HeadTokens int
}

type hotspot struct {
	endpick.Exclusive
	config HotspotConfig

	// hot is the number of classes that are filtered. If it is zero, Filter takes no lock.
	hot atomic.Int32

	mu      sync.Mutex // guards the fields below
	begin   time.Time  // start of part 0
	part    int64      // number of the current part of the window
	all     windowCount
	classes []class // at most Classes, unordered
}

func (h *hotspot) Validate() error {
	c := h.config
	return cmp.Or(
		check.Default("scorer.HotspotConfig.Window", &c.Window, 0),
		check.Default("scorer.HotspotConfig.Classes", &c.Classes, 0),
		check.Default("scorer.HotspotConfig.HeadTokens", &c.HeadTokens, 0),
	)
}

// windowParts is the number of parts of the window, which slides by one part.
const windowParts = 12

// windowCount counts events within the window.
type windowCount struct {
	sum   int
	parts [windowParts]uint32 // indexed by part modulo windowParts
}

func (c *windowCount) add(part int64) {
	c.sum++
	c.parts[part%windowParts]++
}

// clear forgets a part that has left the window.
func (c *windowCount) clear(part int64) {
	p := &c.parts[part%windowParts]
	c.sum -= int(*p)
	*p = 0
}

// class is one tracked class of requests.
type class struct {
	head  uint64
	count windowCount
	// inherited is the count of the class that it displaced, an upper bound of its
	// own requests before it was tracked. It keeps frequent classes tracked
	// (Metwally et al., Efficient computation of frequent and top-k elements,
	// 2005: Space-Saving), and counts until the window has passed.
	inherited     int
	inheritedPart int64

	alarmed bool // the first phase holds
	streak  int  // requests in a row since then that score better on M
	hot     bool // the second phase holds
}

func (c *class) rank() int { return c.count.sum + c.inherited }

func (*hotspot) Name() string { return "hotspot" }

// head returns the class of a request and the number of tokens that an
// endpoint in M holds; false if it is in no class.
func (h *hotspot) head(req *endpick.Request) (head uint64, tokens int, ok bool) {
	if len(req.Blocks) == 0 {
		return 0, 0, false
	}
	block := req.TokensPerBlock()
	length := cmp.Or(h.config.HeadTokens, 128)
	n := min(max(int(float64(length)/block), 1), len(req.Blocks))
	// Engines compute the last token again: no endpoint holds more than L − 1.
	tokens = min(int(float64(n)*block), req.InputTokens-1)
	return req.Blocks[n-1], max(tokens, 1), true
}

func (h *hotspot) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	if h.hot.Load() == 0 {
		return candidates
	}
	head, tokens, ok := h.head(req)
	if !ok {
		return candidates
	}
	holding := holders(candidates, tokens)
	h.mu.Lock()
	h.slide(req.Now())
	c := h.find(head)
	hot := c != nil && c.hot && firstPhase(c.count.sum, h.all.sum, holding, len(candidates))
	h.mu.Unlock()
	if !hot {
		return candidates
	}
	return endpick.Keep(candidates, func(c *endpick.Candidate) bool { return c.PrefixTokens < tokens })
}

// firstPhase is x/x̄ > |M|/|M̄|, multiplied out.
func firstPhase(ofClass, all, holding, candidates int) bool {
	others := candidates - holding
	if holding == 0 || others == 0 || ofClass >= all {
		return false
	}
	return int64(ofClass)*int64(others) > int64(all-ofClass)*int64(holding)
}

func (h *hotspot) Routed(e *endpick.Event) {
	head, tokens, ok := h.head(e.Request)
	holding := 0
	if ok {
		holding = holders(e.Candidates, tokens)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slide(e.Now)
	h.all.add(h.part)
	if !ok {
		return
	}
	c := h.find(head)
	if c == nil {
		if holding == 0 {
			return // nobody holds it: most such heads come only once
		}
		c = h.track(head)
	}
	c.count.add(h.part)
	switch {
	case !firstPhase(c.count.sum, h.all.sum, holding, len(e.Candidates)):
		h.calm(c)
	case !c.alarmed:
		c.alarmed = true
	case c.hot:
	case !betterOnHolders(e.Request, e.Candidates, tokens):
		c.streak = 0
	default:
		if c.streak++; c.streak > 2*holding {
			c.hot = true
			h.hot.Add(1)
		}
	}
}

// holders is |M|: how many candidates hold the head.
func holders(candidates []endpick.Candidate, tokens int) (n int) {
	for i := range candidates {
		if candidates[i].PrefixTokens >= tokens {
			n++
		}
	}
	return n
}

// betterOnHolders reports whether the best score is on M (equation 4; the text
// has it without equality).
func betterOnHolders(req *endpick.Request, candidates []endpick.Candidate, tokens int) bool {
	on, off := math.Inf(1), math.Inf(1)
	for i := range candidates {
		c := &candidates[i]
		if c.PrefixTokens >= tokens {
			on = min(on, prefillTimesBatch(req, c))
		} else {
			off = min(off, prefillTimesBatch(req, c))
		}
	}
	return on < off
}

// calm ends the alarm of a class.
func (h *hotspot) calm(c *class) {
	if c.hot {
		h.hot.Add(-1)
	}
	c.alarmed, c.streak, c.hot = false, 0, false
}

// slide advances the window; h.mu is held. A time before the current part
// counts as part of it.
func (h *hotspot) slide(now time.Time) {
	if h.begin.IsZero() {
		h.begin = now
	}
	window := cmp.Or(h.config.Window, time.Minute)
	part := int64(now.Sub(h.begin) / max(window/windowParts, 1))
	if part <= h.part {
		return
	}
	h.part = max(h.part, part-windowParts) // all earlier parts have left the window
	for h.part < part {
		h.part++
		h.all.clear(h.part)
		for i := range h.classes {
			c := &h.classes[i]
			c.count.clear(h.part)
			if c.inheritedPart <= h.part-windowParts {
				c.inherited = 0
			}
		}
	}
	h.classes = slices.DeleteFunc(h.classes, func(c class) bool {
		if c.rank() > 0 {
			return false
		}
		h.calm(&c)
		return true
	})
}

func (h *hotspot) find(head uint64) *class {
	for i := range h.classes {
		if h.classes[i].head == head {
			return &h.classes[i]
		}
	}
	return nil
}

// track returns a new class, displacing the least frequent one if there is no
// room.
func (h *hotspot) track(head uint64) *class {
	if len(h.classes) < cmp.Or(h.config.Classes, 32) {
		h.classes = append(h.classes, class{head: head})
		return &h.classes[len(h.classes)-1]
	}
	least := &h.classes[0]
	for i := range h.classes {
		if h.classes[i].rank() < least.rank() {
			least = &h.classes[i]
		}
	}
	if least.hot {
		h.hot.Add(-1)
	}
	*least = class{head: head, inherited: least.rank(), inheritedPart: h.part}
	return least
}
