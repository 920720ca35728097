package main

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// The palette of Okabe and Ito, which colour-blind people can tell apart.
var palette = []color.RGBA{
	{0x00, 0x72, 0xB2, 0xFF}, {0xD5, 0x5E, 0x00, 0xFF}, {0x00, 0x9E, 0x73, 0xFF}, {0xCC, 0x79, 0xA7, 0xFF},
}

// draw plots the curve on logarithmic axes; the path's extension determines the format.
func (c *curve) draw(path string) error {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = c.X, c.Y
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i := range c.Series {
		s := &c.Series[i]
		points := make(plotter.XYs, len(s.Points))
		for j, at := range s.Points {
			points[j] = plotter.XY{X: at.X, Y: max(at.Y, 1e-6)}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		line.Color, line.Width = palette[i%len(palette)], vg.Points(1.4)
		dots.Color, dots.Radius = palette[i%len(palette)], vg.Points(2)
		p.Add(line, dots)
		p.Legend.Add(s.Name, line, dots)
	}
	// A single point would have no range.
	p.X.Max, p.Y.Max = max(p.X.Max, p.X.Min*1.1), max(p.Y.Max, p.Y.Min*1.1)
	return p.Save(14*vg.Centimeter, 9*vg.Centimeter, path)
}
