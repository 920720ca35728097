package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
)

func newRun(cfg Config) (*run, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, timers: newTimers(onEngine + len(cfg.Fleet)), byID: map[string]int{}}
	r.tally.init(cfg.Window)
	for i := range cfg.Fleet {
		s := server{Server: cfg.Fleet[i]}
		s.Engine.CacheEvents = s.Engine.CacheEvents || cfg.Events != nil
		e, err := engine.New(s.Engine)
		if err != nil {
			return nil, fmt.Errorf("sim: Fleet[%d]: %w", i, err)
		}
		s.engine, s.up = e, !s.Absent
		s.describe()
		r.byID[s.Endpoint.ID] = i
		r.servers = append(r.servers, s)
	}
	for i := range cfg.Routers {
		rc, err := cfg.Router()
		if err != nil {
			return nil, err
		}
		rc.Clock = r.clock
		rc.Seed = max(engine.Mix(cfg.Seed)^uint64(i), 1) // zero would be a random one
		if rc.LeaseTimeout == 0 {
			rc.LeaseTimeout = engine.MaxTime // nothing is lost here, however long it waits
		}
		rc.Endpoints = nil
		for i := range r.servers {
			if r.servers[i].up {
				rc.Endpoints = append(rc.Endpoints, r.servers[i].Endpoint)
			}
		}
		router, err := endpick.New(rc)
		if err != nil {
			return nil, err
		}
		r.tally.policy, r.tally.indexed = rc.Policy.Name, rc.Policy.Matcher != nil
		r.routers = append(r.routers, router)
		if cfg.ReportInterval == 0 {
			r.watches = append(r.watches, newWatch(router, len(r.servers), rc.ReportMaxAge))
		}
		r.subscribe(router, rc.Policy.Matcher)
	}
	var err error
	if r.source, err = cfg.Workload.Start(cfg.Seed); err != nil {
		return nil, err
	}
	r.changes = slices.Clone(cfg.Changes)
	slices.SortStableFunc(r.changes, func(a, b Change) int { return cmp.Compare(a.At, b.At) })
	r.armChange()
	r.armArrival()
	r.timers.set(onWindow, cfg.Window, true)
	r.timers.set(onMeter, cfg.MeterInterval, true)
	r.timers.set(onReport, 0, cfg.ReportInterval > 0)
	return r, nil
}

// describe fills in the endpoint's description from the server.
func (s *server) describe() {
	if s.Undescribed {
		return
	}
	cfg := s.engine.Config()
	setDefault(&s.Endpoint.MaxSequences, cfg.MaxSequences)
	setDefault(&s.Endpoint.KVTokens, cfg.Blocks*cfg.BlockTokens)
	if s.Endpoint.Variant == "" {
		s.Endpoint.Variant = cfg.Profile.Name
	}
}
