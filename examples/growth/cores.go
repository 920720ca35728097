package main

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// byCores measures how many decisions per second several goroutines make, relative to
// one. For comparison, it measures what the machine allows: routers that share nothing,
// and hashes.
func (p plan) byCores() ([]curve, error) {
	c := curve{Name: "cores", X: "goroutines", Y: "decisions a second, of one goroutine's"}
	for _, s := range []struct {
		name   string
		policy string
		tokens int
		each   bool // every goroutine has a router of its own
	}{
		{"lmetric, 16,384 tokens", "lmetric", prompt, false},
		{"lmetric, 2,048 tokens", "lmetric", 2048, false},
		{"the same, a router in each", "lmetric", 2048, true},
		{"predicted-latency, 16,384 tokens", "predicted-latency", prompt, false},
	} {
		fleets := make([]*fleet, runtime.GOMAXPROCS(0))
		for i := range fleets {
			if i > 0 && !s.each {
				fleets[i] = fleets[0].fork()
				continue
			}
			var err error
			if fleets[i], err = newFleet(setting{policy: s.policy, endpoints: 100, tokens: s.tokens, held: 0.1, blocks: 10000}); err != nil {
				return nil, err
			}
		}
		c.Series = append(c.Series, series{s.name, p.speedup(func(i int) func() { return fleets[i].op })})
	}
	c.Series = append(c.Series, series{"a hash in each", p.speedup(func(int) func() {
		data := make([]byte, 65536)
		return func() { xxhash.Sum64(data) }
	})})
	return []curve{c}, nil
}

// fork returns the same fleet for another goroutine.
func (f *fleet) fork() *fleet {
	g := *f
	g.prompt = append([]uint32(nil), f.prompt...)
	g.hashes = make([]uint64, 0, cap(f.hashes))
	g.number = forks.Add(1) << 24 // with its own prompts
	return &g
}

var forks atomic.Uint32

// speedup measures one goroutine up to one per core, interleaved.
func (p plan) speedup(each func(i int) func()) (points []point) {
	most := runtime.GOMAXPROCS(0)
	ops := make([]func(), most)
	for i := range ops {
		ops[i] = each(i)
		ops[i]()
	}
	best := make([]time.Duration, most+1)
	for range p.rounds * 10 {
		for n := 1; n <= most; n++ {
			if took := together(ops[:n]); best[n] == 0 || took < best[n] {
				best[n] = took
			}
		}
	}
	for n := 1; n <= most; n++ {
		points = append(points, point{float64(n), float64(n) * float64(best[1]) / float64(best[n])})
	}
	return points
}

// together makes each call repeatedly in a goroutine of its own, all starting at once,
// and returns how long the last one took.
func together(ops []func()) time.Duration {
	const times = 50
	var ready, done sync.WaitGroup
	var start atomic.Bool
	took := make([]time.Duration, len(ops))
	for i, op := range ops {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			for !start.Load() { // be on its core before it begins
			}
			began := time.Now()
			for range times {
				op()
			}
			took[i] = time.Since(began)
		})
	}
	ready.Wait()
	start.Store(true)
	done.Wait()
	longest := time.Duration(math.MinInt64)
	for _, d := range took {
		longest = max(longest, d)
	}
	return longest
}
