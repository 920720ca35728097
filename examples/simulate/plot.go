package main

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// chart is a plot.
type chart struct {
	x, y           string // what the axes show, with units
	scaleX, scaleY scale
	marks          bool // a dot at every point
	series         []series
}

// scale is the range of an axis.
type scale uint8

const (
	free        scale = iota // the data
	fromZero                 // 0 and the data
	share                    // 0 to 1
	logarithmic              // the data, by their logarithms
)

// series is the line of one policy.
type series struct {
	policy int // its index, for the colour
	points []point
}

type point struct{ x, y float64 }

// The palette of Okabe and Ito, which colour-blind people can tell apart, without
// its yellow; the lines of further policies are dashed.
var (
	palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222", "#8c8c8c"}
	dashes  = []string{"", "6 3", "2 2", "8 2 2 2"}
)

func lineStyle(policy int) (color, dash string) {
	return palette[policy%len(palette)], dashes[policy/len(palette)%len(dashes)]
}

// The plot's area, inside of what the axes need.
const plotLeft, plotTop, plotRight, plotBottom = 55.0, 10.0, 390.0, 210.0

// svg draws the chart; it is empty if there is nothing to draw.
func (c *chart) svg() template.HTML {
	x, y := axis{scale: c.scaleX, from: plotLeft, to: plotRight}, axis{scale: c.scaleY, from: plotBottom, to: plotTop}
	var lines [][]point
	for _, s := range c.series {
		var line []point
		for _, p := range s.points {
			if p = (point{x.measure(p.x), y.measure(p.y)}); !math.IsNaN(p.x+p.y) && !math.IsInf(p.x+p.y, 0) {
				line = append(line, p)
				x.values, y.values = append(x.values, p.x), append(y.values, p.y)
			}
		}
		lines = append(lines, line)
	}
	if len(x.values) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(`<svg viewBox="0 0 400 250" role="img" font-size="9" fill="#222">`)
	for i := range 5 {
		at, label := x.tick(i)
		fmt.Fprintf(&b, `<path d="M%.1f %gV%g" stroke="#e4e4e4"/><text x="%.1f" y="%g" text-anchor="middle">%s</text>`, at, plotTop, plotBottom, at, plotBottom+12, label)
		at, label = y.tick(i)
		fmt.Fprintf(&b, `<path d="M%g %.1fH%g" stroke="#e4e4e4"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`, plotLeft, at, plotRight, plotLeft-4, at+3, label)
	}
	fmt.Fprintf(&b, `<text x="%g" y="240" text-anchor="middle">%s</text><text transform="translate(10 %g) rotate(-90)" text-anchor="middle">%s</text>`,
		(plotLeft+plotRight)/2, c.x, (plotTop+plotBottom)/2, c.y)
	for i, line := range lines {
		color, dash := lineStyle(c.series[i].policy)
		points := ""
		for _, p := range line {
			px, py := x.place(p.x), y.place(p.y)
			points += fmt.Sprintf("%.1f,%.1f ", px, py)
			if c.marks {
				fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2.4" fill="%s"/>`, px, py, color)
			}
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.6" stroke-dasharray="%s"/>`, points, color, dash)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// axis maps values, or their logarithms, to places from one end to the other.
type axis struct {
	scale    scale
	from, to float64
	values   []float64
}

// measure is a value on the axis: infinite or no number if it can't be shown.
func (a *axis) measure(v float64) float64 {
	if a.scale == logarithmic {
		return math.Log10(v)
	}
	return v
}

func (a *axis) bounds() (least, most float64) {
	least, most = slices.Min(a.values), slices.Max(a.values)
	switch {
	case a.scale == share:
		return 0, 1
	case a.scale == fromZero:
		least = min(least, 0)
	}
	if least == most {
		most += max(math.Abs(most)/10, 1e-3)
	}
	return least, most
}

func (a *axis) place(v float64) float64 {
	least, most := a.bounds()
	return a.from + (a.to-a.from)*(v-least)/(most-least)
}

// tick is the place of one of five ticks, and its label.
func (a *axis) tick(i int) (at float64, label string) {
	least, most := a.bounds()
	v := least + (most-least)*float64(i)/4
	at = a.place(v)
	if a.scale == logarithmic {
		v = math.Pow(10, v)
	}
	return at, fmt.Sprintf("%.3g", v)
}
