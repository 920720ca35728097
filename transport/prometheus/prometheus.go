package prometheus

import (
	"cmp"
	"sync"
	"sync/atomic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo/delay"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	prom "github.com/prometheus/client_golang/prometheus"
)

// Config configures Metrics. The zero value is a usable default.
type Config struct {
	// MaxModels and MaxTenants are how many of each get labels. Zero: 64.
	MaxModels, MaxTenants int
	// MaxEndpoints is how many endpoints get labels at one time. Zero: 10,000.
	MaxEndpoints int
}

func (c *Config) validate() error {
	return cmp.Or(
		check.Default("prometheus.Config.MaxModels", &c.MaxModels, 64),
		check.Default("prometheus.Config.MaxTenants", &c.MaxTenants, 64),
		check.Default("prometheus.Config.MaxEndpoints", &c.MaxEndpoints, 10_000),
	)
}

// Sources are queried when metrics are collected. Each may be nil; its metrics
// are then left out.
type Sources struct {
	Router    *endpick.Router
	Transport *transport.Transport
	// Health is that of the transport's Config. Nil: no metrics of single
	// endpoints' health.
	Health *health.Monitor
	Index  *prefix.Index // the policy's
	// Latencies are the policy's. If several learn a model, the first one counts.
	Latencies []predict.Latency
	// Delay is the policy's. Nil: no metrics of models that were loaded.
	Delay delay.Marginal
}

// Metrics holds the metrics of one transport and its router. If there are several
// in one process, register each with a label of its own
// (prometheus.WrapRegistererWith). Make one with [New]; it is safe for concurrent
// use.
type Metrics struct {
	config  Config
	sources atomic.Pointer[Sources]

	// mu guards the fields below, and is held while a series is written: a name
	// that has lost its label must not come back with an old one.
	mu        sync.Mutex
	models    names
	tenants   names
	endpoints map[string]bool // those with series
	series    families
}

// New returns metrics, all zero, or an [endpick.ConfigError].
func New(config Config) (*Metrics, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	m := &Metrics{
		config: config, series: newFamilies(),
		models: names{most: config.MaxModels}, tenants: names{most: config.MaxTenants},
		endpoints: map[string]bool{},
	}
	m.sources.Store(&Sources{})
	return m, nil
}

// Watch sets the sources. It may be called again when a policy has been replaced.
func (m *Metrics) Watch(s Sources) { m.sources.Store(&s) }

// NameTenants gives tenants labels before their first success, because the host knows them
// and their names are not invented. When all are taken, it replaces only tenants that are not named.
func (m *Metrics) NameTenants(all ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, tenant := range all {
		if m.tenants.of(tenant) == tenant {
			continue
		}
		if gone := m.tenants.add(tenant, all...); gone != "" {
			m.forgetTenant(gone)
		}
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prom.Desc) {
	for _, c := range m.series.all() {
		c.Describe(to)
	}
	for _, p := range pull {
		to <- p.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prom.Metric) {
	s := m.sources.Load()
	v := s.view()
	m.prune(v)
	for _, c := range m.series.all() {
		c.Collect(to)
	}
	v.to = to
	for _, p := range pull {
		p.collect(v, p.desc)
	}
}
