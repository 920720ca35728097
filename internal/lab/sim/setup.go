package sim

import (
	"cmp"
	"fmt"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
)

func newRun(cfg Config) (*run, error) {
	cfg.setDefaults()
	r := &run{cfg: cfg, timers: newTimers(onEngine + len(cfg.Fleet)), byID: map[string]int{}}
	r.tally.tenants, r.tally.classes = map[string]float64{}, map[string]*Class{}
	for i := range cfg.Fleet {
		s := server{Server: cfg.Fleet[i]}
		s.Engine.CacheEvents = s.Engine.CacheEvents || cfg.Events != nil
		e, err := engine.New(s.Engine)
		if err != nil {
			return nil, fmt.Errorf("sim: Fleet[%d]: %w", i, err)
		}
		s.engine = e
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
		rc.Seed = max(engine.Mix(cfg.Seed)^uint64(i), 1)          // zero would be a random one
		rc.LeaseTimeout = cmp.Or(rc.LeaseTimeout, engine.MaxTime) // nothing is lost here, however long it waits
		rc.Endpoints = nil
		for i := range r.servers {
			rc.Endpoints = append(rc.Endpoints, r.servers[i].Endpoint)
		}
		router, err := endpick.New(rc)
		if err != nil {
			return nil, err
		}
		r.tally.policy, r.tally.indexed = rc.Policy.Name, rc.Policy.Matcher != nil
		r.routers = append(r.routers, router)
		if err := r.subscribe(router, rc.Policy.Matcher); err != nil {
			return nil, err
		}
	}
	var err error
	if r.source, err = cfg.Workload.Start(cfg.Seed); err != nil {
		return nil, err
	}
	r.armArrival()
	r.timers.set(onWindow, imbalanceWindow, true)
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
	e := &s.Endpoint
	e.MaxSequences = cmp.Or(e.MaxSequences, cfg.MaxSequences)
	e.KVTokens = cmp.Or(e.KVTokens, cfg.Blocks*cfg.BlockTokens)
	e.Variant = cmp.Or(e.Variant, cfg.Profile.Name)
}
