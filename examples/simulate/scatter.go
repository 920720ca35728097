package main

import (
	"errors"
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

	core "github.com/endpick/endpick/internal/lab/evaluate"
)

// plotPoints limits the points of a panel; of more rows, every n-th is drawn.
const plotPoints = 4000

// scatterFile draws one panel per latency, predicted against actual, in milliseconds on
// logarithmic axes. The file name's extension determines the format.
func scatterFile(path string, r *core.Report) error {
	const panel = 5 * vg.Inch
	canvas, err := draw.NewFormattedCanvas(2*panel, panel, strings.TrimPrefix(filepath.Ext(path), "."))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	ttft, err := scatter("TTFT", r.TTFTPoints)
	if err != nil {
		return err
	}
	tpot, err := scatter("TPOT", r.TPOTPoints)
	if err != nil {
		return err
	}
	panels := [][]*plot.Plot{{ttft, tpot}}
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Millimeter * 5}
	for i, c := range plot.Align(panels, tiles, draw.New(canvas))[0] {
		panels[0][i].Draw(c)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(f)
	return errors.Join(err, f.Close())
}

func scatter(title string, points []core.Point) (*plot.Plot, error) {
	if len(points) == 0 {
		return nil, fmt.Errorf("no %s was predicted, so there is nothing to plot", title)
	}
	step := len(points)/plotPoints + 1
	var shown plotter.XYs
	low, high := math.Inf(1), 0.0
	for i := 0; i < len(points); i += step {
		at := plotter.XY{X: points[i].Actual, Y: points[i].Predicted}
		shown = append(shown, at)
		low, high = min(low, at.X, at.Y), max(high, at.X, at.Y)
	}
	p := plot.New()
	p.Title.Text = title
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
