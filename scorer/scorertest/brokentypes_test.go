package scorertest

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/endpick/endpick"
)

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
