package delay

import "github.com/endpick/endpick"

// ExpectedOutput is the expected length of the response to a request, in tokens.
func ExpectedOutput(m *Marginal, req *endpick.Request) float64 { return m.lengths.of(req) }

// Kinds is the number of known kinds of server.
func Kinds(m *Marginal) int { return len(m.kinds) }

// WorthOf is the value of one prompt token's place in a cache, as a multiple of the
// time to compute a token.
func WorthOf(m *Marginal) float64 { return m.worth() / m.recomputing() }

// StaleGlance is the ID of an endpoint whose glance disagrees with its account; empty
// if there is none.
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

// Account is the account of one endpoint.
type Account struct{ endpoint }

func (a *Account) Wait(now int64, expected float64) { a.wait(now, expected) }
func (a *Account) Leave(now int64, answered bool)   { a.leave(now, answered) }
func (a *Account) Label(now int64, ratio float64)   { a.pace.Add(now, ratio, 0.1) }

// Ordinary reports whether a glance takes the endpoint for ordinary (neither slower than
// others nor silent), and whether its account says so.
func (a *Account) Ordinary(now int64) (glances, is bool) {
	var g glance
	g.account(&a.endpoint)
	return !g.special(now), a.pace.Factor(a.asked(now)) == 1 && a.lasts(now) == 0
}

// WeightOf is the weight of a millisecond of waiting for a request.
func WeightOf(m *Marginal, req *endpick.Request) float64 { return m.weight(req) }

// Recomputing is the mean time of a prompt token in milliseconds.
func Recomputing(m *Marginal) float64 { return m.recomputing() }
