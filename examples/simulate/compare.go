package main

import (
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/sim"
	"github.com/endpick/endpick/internal/lab/traffic"
)

// compare is the program without a verb: policies side by side.
func compare(args []string, stdout, stderr io.Writer) error {
	o, err := readOptions(args, stderr)
	if err != nil {
		return err
	}
	results, err := o.run(stderr)
	if err != nil {
		return err
	}
	if o.plot != "" {
		if err := os.WriteFile(o.plot, []byte(overRates(results).svg()), 0o666); err != nil {
			return err
		}
	}
	if o.format == "json" {
		return writeJSON(stdout, results)
	}
	return writeTable(stdout, results, o.overview())
}

// overRates draws what users notice first, and why.
func overRates(results []*result) chart {
	const rate = "requests per second"
	ttft, hits := panel{x: rate, y: "TTFT p95 in seconds", log: true}, panel{x: rate, y: "prefix hits in %"}
	add := func(p *panel, g *group, y float64) {
		if n := len(p.series); n == 0 || p.series[n-1].name != g.policy {
			p.series = append(p.series, series{name: g.policy, color: n})
		}
		if at := &p.series[len(p.series)-1]; y > 0 || !p.log {
			at.points = append(at.points, [2]float64{g.mean(func(r *row) float64 { return r.Rate }), y})
		}
	}
	for _, g := range groupsOf(results) {
		add(&ttft, &g, g.mean(func(r *row) float64 { return r.TTFT.P95 / 1000 }))
		add(&hits, &g, 100*g.mean(func(r *row) float64 { return r.PrefixHitRatio }))
	}
	return chart{ttft, hits}
}

// cell is one run.
type cell struct {
	sweep  *sweep
	policy string
	rate   float64
	seed   uint64
}

// load is the name of the rate, if it has one.
func (c *cell) load() string {
	if c.sweep.loads == nil {
		return ""
	}
	return c.sweep.loads[slices.Index(c.sweep.rates, c.rate)]
}

// cells are the runs in the order of their results.
func (o *options) cells() []cell {
	var cells []cell
	for i := range o.sweeps {
		s := &o.sweeps[i]
		for _, policy := range o.policies {
			for _, rate := range s.rates {
				for _, seed := range o.seeds {
					cells = append(cells, cell{s, policy, rate, seed})
				}
			}
		}
	}
	return cells
}

// config is the simulation of a cell.
func (o *options) config(c cell) (sim.Config, error) {
	x := o.experiment
	x.Scenario = c.sweep.scenario
	if c.sweep.scaled {
		x.RateScale = c.rate
	} else {
		x.Rate = c.rate
		if x.Requests == 0 && x.Duration == 0 {
			x.Requests = defaultRequests
		}
	}
	cfg, err := x.Config()
	if err != nil {
		return cfg, err
	}
	if o.mixed != nil {
		cfg.Fleet = servers(o.mixed)
		for i := range cfg.Fleet {
			cfg.Fleet[i].Engine.Blocks = x.Engine.Blocks
		}
	}
	cfg.Seed = c.seed
	return cfg, configure(&cfg, c.policy)
}

// run makes all runs and returns their results in the order of the cells.
func (o *options) run(stderr io.Writer) ([]*result, error) {
	cells := o.cells()
	results := make([]*result, len(cells))
	return results, inParallel(len(cells), stderr, func(i int) (err error) {
		results[i], err = o.runCell(cells[i])
		return err
	})
}

// inParallel calls f with 0 to n-1, on all cores, until one fails, and returns the first
// error in their order. A terminal sees how many are done.
func inParallel(n int, terminal io.Writer, f func(i int) error) error {
	errs := make([]error, n)
	var next, done atomic.Int64
	var failed atomic.Bool
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !failed.Load(); i = int(next.Add(1)) - 1 {
				if errs[i] = f(i); errs[i] != nil {
					failed.Store(true)
				}
				traffic.Progress(terminal, int(done.Add(1)), n, "runs")
			}
		})
	}
	wg.Wait()
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return errs[i]
}

func (o *options) runCell(c cell) (*result, error) {
	cfg, err := o.config(c)
	if err != nil {
		return nil, err
	}
	var meter *predictionMeter
	cfg.Router = func() (endpick.Config, error) {
		config, err := newPolicy(c.policy)
		meter = watch(&config)
		return config, err
	}
	report, err := sim.Run(cfg)
	if err != nil {
		return nil, err
	}
	r := newResult(c, report)
	r.row.Predictions = meter.report()
	return r, nil
}
