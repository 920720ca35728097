package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"text/tabwriter"
)

// losses are a policy's losses over all cells: geometric means, and the worst.
type losses struct {
	policy      string
	e2e, ttft   float64 // of E2E mean, and of TTFT p95
	worst, late float64
	front       bool // no other policy is better in both
}

func (t *tournament) losses(scores []score) []losses {
	rounds := t.rounds(scores)
	all := make([]losses, len(t.policies))
	for i, p := range t.policies {
		s := &all[i]
		*s = losses{policy: p, front: true}
		s.e2e, s.worst, _ = t.overall(rounds, p, measures[0].value)
		s.ttft, s.late, _ = t.overall(rounds, p, measures[4].value)
	}
	for i := range all {
		for j := range all {
			if all[j].e2e < all[i].e2e && all[j].ttft < all[i].ttft {
				all[i].front = false
			}
		}
	}
	return all
}

// writeFront prints how policies trade the time of whole responses for that of first
// tokens, and draws it.
func (t *tournament) writeFront(w io.Writer, scores []score) error {
	all := t.losses(scores)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "policy\tE2E mean\tworst\tTTFT p95\tworst\tfront\t\n")
	for _, s := range all {
		mark := ""
		if s.front {
			mark = "*"
		}
		fmt.Fprintf(tw, "%s\t%.3f\t%.2f\t%.3f\t%.2f\t%s\t\n", s.policy, s.e2e, s.worst, s.ttft, s.late, mark)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s *: no other policy is better in both.\n", t.notes(len(t.contests)*len(t.loads)))
	if t.picture == "" {
		return nil
	}
	return os.WriteFile(t.picture, []byte(frontSVG(all)), 0o666)
}

// frontSVG shows the losses, by their logarithms: the best is at the lower left.
func frontSVG(all []losses) string {
	const left, right, top, bottom = 60, 620, 20, 360
	mostX, mostY := 1.01, 1.01
	for _, s := range all {
		mostX, mostY = max(mostX, s.e2e), max(mostY, s.ttft)
	}
	x := func(v float64) float64 { return left + (right-left)*math.Log(v)/math.Log(mostX) }
	y := func(v float64) float64 { return bottom - (bottom-top)*math.Log(v)/math.Log(mostY) }
	var b strings.Builder
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 410" font-family="sans-serif" font-size="11" fill="#222"><rect width="800" height="410" fill="#fff"/>`)
	for i := range 5 {
		vx, vy := math.Pow(mostX, float64(i)/4), math.Pow(mostY, float64(i)/4)
		fmt.Fprintf(&b, `<path d="M%.1f %dV%dM%d %.1fH%d" stroke="#e4e4e4"/>`, x(vx), top, bottom, left, y(vy), right)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.3g</text><text x="%d" y="%.1f" text-anchor="end">%.3g</text>`, x(vx), bottom+15, vx, left-5, y(vy)+4, vy)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">E2E mean, times the best of each cell</text><text transform="translate(15 %d) rotate(-90)" text-anchor="middle">TTFT p95</text>`,
		(left+right)/2, bottom+35, (top+bottom)/2)
	for _, s := range all {
		color := "#8c8c8c"
		if s.front {
			color = "#0072b2"
		}
		fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/><text x="%.1f" y="%.1f">%s</text>`, x(s.e2e), y(s.ttft), color, x(s.e2e)+7, y(s.ttft)+4, s.policy)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
