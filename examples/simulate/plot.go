package main

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
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
	logarithmic              // the data, in powers of ten
)

// series is the line of one policy.
type series struct {
	policy int // its index, for the colour
	points plotter.XYs
}

// The palette of Okabe and Ito, which colour-blind people can tell apart, without
// its yellow; the lines of further policies are dashed.
var palette = []color.RGBA{
	{0x00, 0x72, 0xB2, 0xFF}, {0xD5, 0x5E, 0x00, 0xFF}, {0x00, 0x9E, 0x73, 0xFF}, {0xCC, 0x79, 0xA7, 0xFF},
	{0xE6, 0x9F, 0x00, 0xFF}, {0x56, 0xB4, 0xE9, 0xFF}, {0x22, 0x22, 0x22, 0xFF}, {0x8C, 0x8C, 0x8C, 0xFF},
}

var dashes = [][]vg.Length{nil, {6, 3}, {2, 2}, {8, 2, 2, 2}}

func lineStyle(policy int) draw.LineStyle {
	return draw.LineStyle{Color: palette[policy%len(palette)], Width: 1.6, Dashes: dashes[policy/len(palette)%len(dashes)]}
}

const (
	plotWidth  = 400
	plotHeight = 250
)

var gridColor = color.RGBA{0xE4, 0xE4, 0xE4, 0xFF}

// svg draws the chart; it is empty if there is nothing to draw.
func (c *chart) svg() (template.HTML, error) {
	p := newPlot(c.x, c.y)
	p.Add(&plotter.Grid{Vertical: draw.LineStyle{Color: gridColor, Width: 0.6}, Horizontal: draw.LineStyle{Color: gridColor, Width: 0.6}})
	drawn := false
	for _, s := range c.series {
		var points plotter.XYs
		for _, at := range s.points {
			if math.IsNaN(at.X+at.Y) || c.scaleX == logarithmic && at.X <= 0 || c.scaleY == logarithmic && at.Y <= 0 {
				continue
			}
			points = append(points, at)
		}
		if len(points) == 0 {
			continue
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return "", err
		}
		line.LineStyle = lineStyle(s.policy)
		p.Add(line)
		if c.marks {
			dots, err := plotter.NewScatter(points)
			if err != nil {
				return "", err
			}
			dots.GlyphStyle = draw.GlyphStyle{Color: line.Color, Radius: 2.4, Shape: draw.CircleGlyph{}}
			p.Add(dots)
		}
		drawn = true
	}
	if !drawn {
		return "", nil
	}
	c.scaleX.apply(&p.X)
	c.scaleY.apply(&p.Y)
	return render(p)
}

// apply sets the bounds of an axis that has seen the data.
func (s scale) apply(a *plot.Axis) {
	switch s {
	case share:
		a.Min, a.Max = 0, 1
	case logarithmic:
		a.Scale, a.Tick.Marker = plot.LogScale{}, logTicks{}
		a.Min, a.Max = logBound(a.Min, false), logBound(a.Max, true)
	default:
		if s == fromZero {
			a.Min = 0
		}
		room := (a.Max - a.Min) / 25
		if room == 0 {
			room = max(math.Abs(a.Max)/10, 1e-3)
		}
		if s == free {
			a.Min -= room
		}
		a.Max += room
	}
}

// logBound is the nearest of 1, 2 and 5 times the powers of ten beyond x.
func logBound(x float64, up bool) float64 {
	power := math.Pow(10, math.Floor(math.Log10(x)))
	bound := power
	for _, digit := range []float64{1, 2, 5, 10} {
		if up && digit*power > x {
			return digit * power
		}
		if !up && digit*power < x {
			bound = digit * power
		}
	}
	return bound
}

func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font.Variant, a.Tick.Label.Font.Variant = "Sans", "Sans"
		a.Label.TextStyle.Font.Size, a.Tick.Label.Font.Size = 10, 9
		a.Label.Padding = 3
		a.LineStyle.Color, a.Tick.LineStyle.Color = color.Gray{0x99}, color.Gray{0x99}
	}
	return p
}

// render returns the plot as an HTML element: without prologue, fixed size and
// namespaces, which HTML does not need.
func render(p *plot.Plot) (template.HTML, error) {
	canvas := vgsvg.New(plotWidth, plotHeight)
	p.Draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return "", err
	}
	_, body, ok := strings.Cut(b.String(), "<svg")
	_, body, ok2 := strings.Cut(body, ">")
	if !ok || !ok2 {
		return "", fmt.Errorf("the plot is not an SVG")
	}
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %d %d" role="img">`, plotWidth, plotHeight) + body), nil
}

// logTicks are at 1, 2 and 5 times the powers of ten, and at all digits if there is
// room.
type logTicks struct{}

// Ticks implements [plot.Ticker].
func (logTicks) Ticks(least, most float64) (ticks []plot.Tick) {
	digits := []float64{1, 2, 5}
	if most/least <= 5 {
		digits = []float64{1, 2, 3, 4, 5, 6, 7, 8, 9}
	}
	for power := math.Pow(10, math.Floor(math.Log10(least))); power <= most; power *= 10 {
		for _, digit := range digits {
			at := digit * power
			if at < least*(1-1e-9) || at > most*(1+1e-9) {
				continue
			}
			tick := plot.Tick{Value: at}
			if digit == 1 || most/least <= 3000 {
				tick.Label = strconv.FormatFloat(at, 'g', 6, 64)
			}
			ticks = append(ticks, tick)
		}
	}
	return ticks
}
