package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/endpick/endpick/internal/dialect"
	"github.com/endpick/endpick/internal/hostile"
)

// shape is a hostile body with its cost.
type shape struct {
	hostile.Shape
	name string
	took time.Duration // time for parsing alone
}

// hostileBodies prints what the most expensive bodies cost, as a multiple of a simple
// one. It first only parses all shapes, which is fast, and then sends the worst as
// requests.
func hostileBodies(b *bench, o *options, w io.Writer) error {
	fmt.Fprintf(w, "| body | refused | read alone, times flat | as a request, times flat | shape |\n|---|---|---|---|---|\n")
	for _, size := range []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 31 << 20} {
		if size > o.most<<10 {
			break
		}
		flatRead := read(hostile.Flat, size, 20)
		worst := o.worstShapes(size)
		n := max(o.work*(16<<10)/(size+16<<10), 1)
		shapes := append([]shape{{Shape: hostile.Flat, name: "flat"}}, worst...)
		least := make([]time.Duration, len(shapes))
		status := make([]int, len(shapes))
		for i := range least {
			least[i] = math.MaxInt64
		}
		for range o.rounds {
			for i, s := range shapes {
				body := s.Body(size)
				used, err := b.endpick.costs(func() error {
					for range n {
						response, err := b.endpick.ask(s.Path, body, nil)
						if err != nil {
							return err
						}
						status[i] = response.StatusCode
					}
					return nil
				})
				if err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				least[i] = min(least[i], used)
			}
		}
		type row struct {
			shape
			status int
			ratio  float64
		}
		var rows []row
		for i, s := range shapes[1:] {
			rows = append(rows, row{s, status[i+1], float64(least[i+1]) / float64(least[0])})
		}
		slices.SortFunc(rows, func(a, b row) int { return int(math.Copysign(1, b.ratio-a.ratio)) })
		for _, r := range rows[:min(5, len(rows))] {
			refused := ""
			if r.status != http.StatusOK {
				refused = strconv.Itoa(r.status)
			}
			fmt.Fprintf(w, "| %d KiB | %s | %.1f | %.1f | %s |\n", size>>10, refused, float64(r.took)/float64(flatRead), r.ratio, r.name)
		}
	}
	fmt.Fprintln(w)
	return nil
}

// worstShapes are the worst of the named shapes and of random ones.
func (o *options) worstShapes(size int) []shape {
	var all []shape
	add := func(s hostile.Shape, name string) {
		all = append(all, shape{s, name, read(s, size, 1)})
	}
	for name, s := range hostile.Shapes() {
		add(s, name)
	}
	if o.worst == 0 {
		return all
	}
	r := rand.New(rand.NewPCG(o.seed, uint64(size)))
	for range min(o.search, max(o.search*(256<<10)/size, 10)) {
		s := hostile.Random(r)
		add(s, fmt.Sprintf("`%.30q … %.40q … %.20q`", s.Head, s.Item, s.Tail))
	}
	slices.SortFunc(all, func(a, b shape) int { return int(b.took - a.took) })
	all = all[:min(len(all), 4*o.worst)]
	for i := range all {
		all[i].took = read(all[i].Shape, size, 10)
	}
	slices.SortFunc(all, func(a, b shape) int { return int(b.took - a.took) })
	return all[:min(len(all), o.worst)]
}

// read is the least time that the dialect takes for a body, over so many tries.
func read(s hostile.Shape, size, tries int) time.Duration {
	body := s.Body(size)
	least := time.Duration(math.MaxInt64)
	for range tries {
		reader, err := dialect.NewReader(dialect.Config{})
		if err != nil {
			panic(err)
		}
		from := time.Now()
		call, err := reader.Read(dialect.Incoming{Method: http.MethodPost, Path: s.Path, Header: http.Header{}, Body: body})
		if err == nil && call.Prompt(context.Background()) == nil {
			call.Body()
		}
		least = min(least, time.Since(from))
	}
	return least
}
