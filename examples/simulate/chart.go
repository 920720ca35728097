package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// chart is a picture in SVG, light or dark as the reader's screen is: panels beside each
// other. A series of several points is a line, with its name below; a single one is a dot,
// with its name beside it.
type chart []panel

type panel struct {
	x, y   string  // names of the axes
	from   float64 // where both begin
	log    bool    // the y axis is logarithmic, and begins at the least value
	series []series
}

type series struct {
	name   string
	color  int // of palette
	points [][2]float64
}

// palette has a contrast of 3:1 with white and with black. Dashes show a line under another.
var palette = [...]string{
	`stroke="#848d97"`, `stroke="#d9730d" stroke-dasharray="5 4"`, `stroke="#1a9e6a"`, `stroke="#a05ce0" stroke-dasharray="2 3"`,
	`stroke="#2f81f7"`, `stroke="#d4458b" stroke-dasharray="8 3"`,
}

const chartHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 %d">
<style>
text { font: 12px sans-serif; fill: #1f2328 }
rect { fill: #fff }
path, circle { fill: none; stroke-width: 2 }
.grid { stroke: #d8dee4; stroke-width: 1 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } rect { fill: #0d1117 } .grid { stroke: #30363d } }
</style>
<rect width="100%%" height="100%%"/>
`

// svg draws the chart.
func (c chart) svg() string {
	const top, bottom, left, right = 30, 250, 50, 15
	width, height := 840/len(c), bottom+44
	var b strings.Builder
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
	}
	for i, p := range c {
		from, to := float64(i*width+left), float64((i+1)*width-right)
		x, xs := p.scale(0, false, from, to)
		y, ys := p.scale(1, p.log, bottom, top)
		for _, v := range xs {
			fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dV%d"/>`, x(v), top, bottom)
			text(x(v), bottom+16, "middle", fmt.Sprintf("%.4g", v))
		}
		for _, v := range ys {
			fmt.Fprintf(&b, `<path class="grid" d="M%.1f %.1fH%.1f"/>`, from, y(v), to)
			text(from-6, y(v)+4, "end", fmt.Sprintf("%.4g", v))
		}
		text((from+to)/2, bottom+34, "middle", p.x)
		text(from, top-12, "start", p.y)
		var names []float64 // of dots: their heights
		for k, s := range p.series {
			look := palette[s.color%len(palette)]
			if len(s.points) == 1 {
				at, beside, anchor := x(s.points[0][0]), 9.0, "start"
				if at > (from+to)/2 {
					beside, anchor = -9, "end"
				}
				fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" %s/>`, at, y(s.points[0][1]), look)
				name := y(s.points[0][1]) + 4
				for slices.ContainsFunc(names, func(other float64) bool { return math.Abs(other-name) < 11 }) {
					name++ // below the other
				}
				names = append(names, name)
				text(at+beside, name, anchor, s.name)
				continue
			}
			line, name := "M", left+k*(840-left)/len(p.series)
			for _, at := range s.points {
				line += fmt.Sprintf(" %.1f %.1f", x(at[0]), y(at[1]))
			}
			if i == 0 {
				height = bottom + 68
				line += fmt.Sprintf("M%d %dh24", name, bottom+54)
				text(float64(name+30), bottom+58, "start", s.name)
			}
			fmt.Fprintf(&b, `<path %s d="%s"/>`+"\n", look, line)
		}
	}
	return fmt.Sprintf(chartHead, height) + b.String() + "</svg>\n"
}

// scale returns an axis's places between two in the picture, and its ticks: round numbers,
// the first and last of which enclose all values.
func (p *panel) scale(coordinate int, log bool, begin, end float64) (place func(float64) float64, ticks []float64) {
	least, most := math.Inf(1), p.from
	for _, s := range p.series {
		for _, at := range s.points {
			least, most = min(least, at[coordinate]), max(most, at[coordinate])
		}
	}
	of, step := func(v float64) float64 { return v }, roundUp(max(most-p.from, 1e-9)/6)
	if ticks = []float64{p.from}; log {
		of, ticks[0] = math.Log, roundUp(least/2.5)
	}
	for i := 0; i == 0 || ticks[i] < most; i++ {
		next := ticks[0] + float64(i+1)*step
		if log {
			next = roundUp(1.5 * ticks[i])
		}
		ticks = append(ticks, next)
	}
	low, high := of(ticks[0]), of(ticks[len(ticks)-1])
	return func(v float64) float64 { return begin + (end-begin)*(of(v)-low)/(high-low) }, ticks
}

// roundUp returns the next of 1, 2, 5, 10, 20 and so on.
func roundUp(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= v*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}
