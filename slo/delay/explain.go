package delay

import (
	"fmt"
	"strings"

	"github.com/endpick/endpick"
)

// Explain writes the parts of each candidate's cost, for receipts:
//
//	costs 1.63e+04 ms: TTFT 112 ms × 8.2, decode 1.31e+04 ms; others: prefill 1.05e+03 ms, decode 1.2e+03 ms
func (m *marginal) Explain(req *endpick.Request, candidates []endpick.Candidate, dst []string) {
	d := m.decide(req, candidates)
	defer d.end()
	unit := milliseconds3
	if m.common.labels == 0 {
		unit = promptTokens
	}
	for i := range candidates {
		var c cost
		d.of(&candidates[i], &c)
		dst[i] = c.text(unit)
	}
}

func milliseconds3(v float64) string { return fmt.Sprintf("%.3g ms", v) }
func promptTokens(v float64) string  { return fmt.Sprintf("%.3g tokens", v) }

func (c *cost) text(unit func(float64) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "costs %s: TTFT %s", unit(c.sum()), unit(c.TTFT))
	if c.Weight != 1 {
		fmt.Fprintf(&b, " × %.3g", c.Weight)
	}
	fmt.Fprintf(&b, ", decode %s; others: prefill %s, decode %s", unit(c.Decode), unit(c.Prefill), unit(c.Slowdown))
	return b.String()
}
