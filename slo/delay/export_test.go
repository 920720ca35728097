package delay

import "github.com/endpick/endpick"

// ExpectedOutput is how long the response to a request is expected to be.
func ExpectedOutput(m *Marginal, req *endpick.Request) float64 { return m.lengths.of(req) }

// Kinds is how many kinds of server are known.
func Kinds(m *Marginal) int { return len(m.kinds) }

// WorthOf is what the place of a prompt token in a cache is, in times of what it takes
// to compute one.
func WorthOf(m *Marginal) float64 { return m.worth() / m.recomputing() }

// StaleGlance is the ID of an endpoint of which a glance tells something else than its
// account; empty if there is none.
func StaleGlance(m *Marginal) string {
	for ref, e := range m.endpoints.All() {
		if int(ref.Slot) >= len(m.glances) || m.glances[ref.Slot].ref != ref {
			continue
		}
		g := m.glances[ref.Slot]
		if g.account(e); g != m.glances[ref.Slot] {
			return g.endpoint.ID
		}
	}
	return ""
}

// Account is one of an endpoint.
type Account struct{ endpoint }

func (a *Account) Wait(now int64, expected float64) { a.wait(now, expected) }
func (a *Account) Leave(now int64, answered bool)   { a.leave(now, answered) }
func (a *Account) Label(now int64, ratio float64)   { a.pace.Add(now, ratio, 0.1) }

// Ordinary reports whether a glance takes it for an endpoint that is neither slower than
// others nor silent, and whether that is what its account says.
func (a *Account) Ordinary(now int64) (glances, is bool) {
	var g glance
	g.account(&a.endpoint)
	return !g.special(now), a.pace.Factor(a.asked(now)) == 1 && a.lasts(now) == 0
}

// WeightOf is how much a millisecond of waiting counts for a request.
func WeightOf(m *Marginal, req *endpick.Request) float64 { return m.weight(req) }

// Recomputing is what a token of a prompt takes in the mean, in milliseconds.
func Recomputing(m *Marginal) float64 { return m.recomputing() }
