package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// plotPoints limits the points of a panel; of more rows, every n-th is drawn.
const plotPoints = 4000

// plotFile draws one panel per latency, predicted against actual, in milliseconds on logarithmic
// axes. The file name's extension determines the format.
func plotFile(path string, samples []sample, targets []*target) error {
	const panel = 5 * vg.Inch
	format := strings.TrimPrefix(filepath.Ext(path), ".")
	canvas, err := draw.NewFormattedCanvas(panel*vg.Length(len(targets)), panel, format)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var panels []*plot.Plot
	for _, t := range targets {
		p, err := scatter(samples, t)
		if err != nil {
			return err
		}
		panels = append(panels, p)
	}
	tiles := draw.Tiles{Rows: 1, Cols: len(panels), PadX: vg.Millimeter * 5}
	for i, c := range plot.Align([][]*plot.Plot{panels}, tiles, draw.New(canvas))[0] {
		panels[i].Draw(c)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		_ = f.Close() // the first error is returned
		return err
	}
	return f.Close()
}

func scatter(samples []sample, t *target) (*plot.Plot, error) {
	var points plotter.XYs
	for i := range samples {
		if _, ok := t.errorOf(samples, i); ok {
			points = append(points, plotter.XY{X: t.label(&samples[i]), Y: t.predicted[i]})
		}
	}
	step := len(points)/plotPoints + 1
	shown := points[:0]
	low, high := math.Inf(1), 0.0
	for i := 0; i < len(points); i += step {
		shown = append(shown, points[i])
		low = min(low, points[i].X, points[i].Y)
		high = max(high, points[i].X, points[i].Y)
	}
	if len(shown) == 0 {
		return nil, fmt.Errorf("no %s was predicted, so there is nothing to plot", t.name)
	}
	p := plot.New()
	p.Title.Text = strings.ToUpper(t.name)
	p.X.Label.Text, p.Y.Label.Text = "actual (ms)", "predicted (ms)"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	dots, err := plotter.NewScatter(shown)
	if err != nil {
		return nil, err
	}
	dots.Shape = draw.CircleGlyph{}
	dots.Radius = vg.Points(1)
	dots.Color = color.NRGBA{R: 30, G: 90, B: 200, A: 90}
	same, err := plotter.NewLine(plotter.XYs{{X: low, Y: low}, {X: high, Y: high}})
	if err != nil {
		return nil, err
	}
	p.Add(plotter.NewGrid(), dots, same)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = low, high, low, high
	return p, nil
}
