package sim

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Fix makes a run and returns its requests as they arrived, so that other policies
// can be compared on them: in some workloads the next request depends on who has
// been answered, and a policy could be lucky.
func Fix(cfg Config) (Workload, error) {
	if cfg.Workload == nil {
		return nil, &ConfigError{"Workload", "is nil"}
	}
	kept := &recorder{of: cfg.Workload}
	cfg.Workload = kept
	if _, err := Run(cfg); err != nil {
		return nil, err
	}
	return fixed(kept.requests), nil
}

// A recorder is a workload that records its requests.
type recorder struct {
	of       Workload
	source   Source
	requests []Request
	now      time.Duration // time of the latest arrival or end
}

func (r *recorder) Start(seed uint64) (Source, error) {
	source, err := r.of.Start(seed)
	r.source, r.requests, r.now = source, nil, 0
	return r, err
}

func (r *recorder) Next() (time.Duration, bool) { return r.source.Next() }

func (r *recorder) Take() Request {
	at, _ := r.source.Next()
	request := r.source.Take()
	kept := request
	r.now = max(r.now, at) // a request that waited for an answer is late
	kept.Arrival = r.now
	r.requests = append(r.requests, kept)
	return request
}

func (r *recorder) Done(request *Request, now time.Duration) {
	r.now = max(r.now, now)
	r.source.Done(request, now)
}

// fixed are requests at fixed times, independent of one another.
type fixed []Request

func (r fixed) Start(uint64) (Source, error) { return &fixedSource{r}, nil }

type fixedSource struct{ todo []Request }

func (s *fixedSource) Next() (time.Duration, bool) {
	if len(s.todo) == 0 {
		return 0, false
	}
	return s.todo[0].Arrival, true
}

func (s *fixedSource) Take() Request {
	request := s.todo[0]
	s.todo = s.todo[1:]
	return request
}

func (*fixedSource) Done(*Request, time.Duration) {}

// Oracle is a policy that knows the future. For one request after the other, it tries
// each server, with earlier requests on the servers it has chosen for them and later
// ones where the Config's policy sends them, and takes the server with the lowest mean
// E2E over all requests of the run. No policy knows as much. A better result may still
// be possible, since later requests could go elsewhere.
//
// Each try repeats the run from its beginning: there is a run for each request and
// server, so it should be short. The workload should be [Fix]ed. progress is called
// when a request has its server; it may be nil.
func Oracle(cfg Config, progress func()) (plain, best *Report, err error) {
	if plain, err = Run(cfg); err != nil {
		return nil, nil, err
	}
	best = plain
	taken := map[int]*probe{}
	for number := range plain.Requests {
		reports := make([]*Report, len(plain.Endpoints))
		errs := make([]error, len(plain.Endpoints))
		var next atomic.Int64
		var wg sync.WaitGroup
		for range min(runtime.GOMAXPROCS(0), len(reports)) {
			wg.Go(func() {
				for {
					i := int(next.Add(1)) - 1
					if i >= len(reports) {
						return
					}
					probes := map[int]*probe{number: {force: plain.Endpoints[i].ID}}
					for n, p := range taken {
						probes[n] = &probe{force: p.force}
					}
					reports[i], errs[i] = runProbed(cfg, probes)
				}
			})
		}
		wg.Wait()
		choice := ""
		for i, r := range reports {
			if errs[i] != nil {
				return nil, nil, errs[i]
			}
			// Strictly better: if there is no gain, the policy's own choice stands.
			if r.Completed >= best.Completed && r.E2E.Mean < best.E2E.Mean {
				best, choice = r, plain.Endpoints[i].ID
			}
		}
		if choice != "" {
			taken[number] = &probe{force: choice}
		}
		if progress != nil {
			progress()
		}
	}
	return plain, best, nil
}
