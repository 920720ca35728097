package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

// losses are a policy's losses over all cells: geometric means, and the worst.
type losses struct {
	policy      string
	e2e, ttft   float64 // of E2E mean, and of TTFT p95
	worst, late float64
	front       bool // no other policy is better in both
}

func (t *tournament) losses(rounds []round) []losses {
	all := make([]losses, len(t.policies))
	for i, p := range t.policies {
		s := &all[i]
		*s = losses{policy: p, front: true}
		s.e2e, s.worst = t.overall(rounds, p, measures[0].value)
		s.ttft, s.late = t.overall(rounds, p, measures[3].value)
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

// write prints how policies trade the time of whole responses for that of first tokens, and
// draws it.
func (t *tournament) write(w io.Writer, scores []score) error {
	rounds := t.rounds(scores)
	all := t.losses(rounds)
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
	if t.format == "cells" {
		if err := t.writeCells(w, rounds); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "\n%d cells: %d workloads at %s of saturation, %d requests, means over %d seeds. A loss is the ratio to the best policy of the cell. *: no other policy is better in both.\n",
		len(rounds), len(t.contests), loads(t.loads), t.requests, len(t.seeds))
	if t.plot == "" {
		return nil
	}
	drawn := panel{x: "E2E mean, times the best of each cell", y: "TTFT p95, likewise", from: 1}
	for _, s := range all {
		color := 0
		if s.front {
			color = 4
		}
		drawn.series = append(drawn.series, series{s.policy, color, [][2]float64{{s.e2e, s.ttft}}})
	}
	return os.WriteFile(t.plot, []byte(chart{drawn}.svg()), 0o666)
}
