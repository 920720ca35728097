package main

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// line is one line of a plot, or an area.
type line struct {
	class  string // determines its colour
	values []float64
	area   bool
}

// plot draws lines on top of each other, from left to right, between zero and the
// largest value or atLeast. NaN leaves a gap. label is for people who can't see it.
func plot(label string, atLeast float64, lines ...line) template.HTML {
	const width, height = 240.0, 48.0
	top := atLeast
	for _, l := range lines {
		for _, v := range l.values {
			if v > top && !math.IsInf(v, 0) {
				top = v
			}
		}
	}
	if !(top > 0) {
		top = 1
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" preserveAspectRatio="none" role="img" aria-label="%s">`, width, height, template.HTMLEscapeString(label))
	for _, l := range lines {
		step := width / float64(max(len(l.values)-1, 1))
		x := func(i int) float64 { return float64(i) * step }
		y := func(v float64) float64 { return height - 1 - (height-2)*min(max(v, 0)/top, 1) }
		for i := 0; i < len(l.values); i++ {
			if math.IsNaN(l.values[i]) {
				continue
			}
			from := i
			var path strings.Builder
			for ; i < len(l.values) && !math.IsNaN(l.values[i]); i++ {
				fmt.Fprintf(&path, "%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[i == from], x(i), y(l.values[i]))
			}
			if i-from == 1 { // a single value is a dot
				fmt.Fprintf(&path, "h0.1")
			}
			if l.area {
				fmt.Fprintf(&b, `<path class="area %s" d="%sL%.1f %g L%.1f %g Z"/>`, l.class, path.String(), x(i-1), height, x(from), height)
			}
			fmt.Fprintf(&b, `<path class="line %s" d="%s"/>`, l.class, path.String())
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// shown returns the slots that a plot shows: without the last, which is incomplete,
// and starting at most two minutes before the first with any data.
func shown[S any](all []*S) []*S {
	all = all[:len(all)-1]
	first := slices.IndexFunc(all, func(s *S) bool { return s != nil })
	if first < 0 {
		first = len(all)
	}
	return all[min(first, max(len(all)-2*perMinute, 0)):]
}

// seen leaves out zeros.
func seen(all []float64) []float64 {
	for i, v := range all {
		if v == 0 {
			all[i] = math.NaN()
		}
	}
	return all
}

// values returns one value of each slot, and nothing for empty ones.
func values[S any](all []*S, nothing float64, of func(*S) float64) []float64 {
	v := make([]float64, len(all))
	for i, s := range all {
		if s == nil {
			v[i] = nothing
		} else {
			v[i] = of(s)
		}
	}
	return v
}
