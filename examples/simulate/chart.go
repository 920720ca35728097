package main

import (
	"fmt"
	"math"
	"strings"
)

// chart is a picture in SVG, light or dark as the reader's screen is: panels beside each
// other. A series of several points is a line, and its name is below; another is a dot with
// its name beside it.
type chart []panel

type panel struct {
	x, y   axis
	series []series
}

type axis struct {
	label string
	from  float64
	log   bool // from the least value
}

type series struct {
	name   string
	color  int // of palette
	points [][2]float64
}

// palette has a contrast of 3:1 with white and with black. By dashes, a line is seen that
// lies on another.
var palette = [...]struct{ color, dashes string }{
	{"#848d97", "none"}, {"#d9730d", "5 4"}, {"#1a9e6a", "none"}, {"#a05ce0", "2 3"}, {"#2f81f7", "none"}, {"#d4458b", "8 3"},
}

const chartHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d">
<style>
text { font: 12px sans-serif; fill: #1f2328 }
rect { fill: #fff }
path { fill: none; stroke-width: 2 }
.grid { stroke: #d8dee4; stroke-width: 1 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } rect { fill: #0d1117 } .grid { stroke: #30363d } }
</style>
<rect width="100%%" height="100%%"/>
`

// svg draws the chart.
func (c chart) svg() string {
	const width, top, bottom, left, right = 840, 30, 250, 50, 15
	wide, legend := width/len(c), 0
	var b strings.Builder
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, s)
	}
	for i, p := range c {
		from, to := float64(i*wide+left), float64((i+1)*wide-right)
		x, xs := p.scale(p.x, 0, from, to)
		y, ys := p.scale(p.y, 1, bottom, top)
		for _, v := range xs {
			fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dV%d"/>`, x(v), top, bottom)
			text(x(v), bottom+16, "middle", fmt.Sprintf("%.4g", v))
		}
		for _, v := range ys {
			fmt.Fprintf(&b, `<path class="grid" d="M%.1f %.1fH%.1f"/>`, from, y(v), to)
			text(from-6, y(v)+4, "end", fmt.Sprintf("%.4g", v))
		}
		text((from+to)/2, bottom+34, "middle", p.x.label)
		text(from, top-12, "start", p.y.label)
		for k, s := range p.series {
			look := palette[s.color%len(palette)]
			if len(s.points) == 1 {
				at, beside, anchor := x(s.points[0][0]), 8.0, "start"
				if at > (from+to)/2 {
					beside, anchor = -8, "end"
				}
				fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`, at, y(s.points[0][1]), look.color)
				text(at+beside, y(s.points[0][1])+4, anchor, s.name)
				continue
			}
			line := "M"
			for _, at := range s.points {
				line += fmt.Sprintf(" %.1f %.1f", x(at[0]), y(at[1]))
			}
			legend = 24
			name := left + k*(width-left)/len(p.series)
			if i == 0 {
				line += fmt.Sprintf("M%d %dh24", name, bottom+54)
				text(float64(name+30), bottom+58, "start", s.name)
			}
			fmt.Fprintf(&b, `<path stroke="%s" stroke-dasharray="%s" d="%s"/>`+"\n", look.color, look.dashes, line)
		}
	}
	return fmt.Sprintf(chartHead, width, bottom+44+legend) + b.String() + "</svg>\n"
}

// scale returns an axis's places between two in the picture, and its ticks: round numbers,
// the first and last of which enclose all values.
func (p *panel) scale(a axis, coordinate int, begin, end float64) (place func(float64) float64, ticks []float64) {
	least, most := math.Inf(1), a.from
	for _, s := range p.series {
		for _, at := range s.points {
			least, most = min(least, at[coordinate]), max(most, at[coordinate])
		}
	}
	of := func(v float64) float64 { return v }
	if a.log {
		of = math.Log
		ticks = []float64{roundUp(least / 2.5)}
		for i := 0; i == 0 || ticks[i] < most; i++ {
			ticks = append(ticks, roundUp(1.5*ticks[i]))
		}
	} else {
		step := roundUp(max(most-a.from, 1e-9) / 6)
		for i := 0; i < 2 || ticks[i-1] < most; i++ {
			ticks = append(ticks, a.from+float64(i)*step)
		}
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
