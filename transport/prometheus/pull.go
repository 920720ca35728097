package prometheus

import (
	"unicode/utf8"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo/delay"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	prom "github.com/prometheus/client_golang/prometheus"
)

// view is a snapshot of the sources.
type view struct {
	to        chan<- prom.Metric
	router    *endpick.Stats           // nil, like others: there is no such source
	endpoints []endpick.EndpointStatus // without removed ones
	departing int
	transport *transport.Stats
	queue     *transport.QueueStatus
	index     *prefix.IndexStats
	indexed   map[endpick.EndpointRef]*prefix.EndpointStats
	health    []predict.ModelHealth
	loads     []delay.Loads
	stands    []health.Status
}

func (s *Sources) view() *view {
	v := &view{indexed: map[endpick.EndpointRef]*prefix.EndpointStats{}}
	if s.Router != nil {
		v.router = new(s.Router.Stats())
		for _, e := range s.Router.Endpoints() {
			if e.Removed {
				v.departing++ // another endpoint may have its ID by now
			} else {
				v.endpoints = append(v.endpoints, e)
			}
		}
	}
	if s.Transport != nil {
		v.transport = new(s.Transport.Stats())
		if q, ok := s.Transport.Queue(); ok {
			v.queue = &q
		}
	}
	if s.Index != nil {
		v.index = new(s.Index.Stats())
		for i := range v.index.Endpoints {
			v.indexed[v.index.Endpoints[i].Ref] = &v.index.Endpoints[i]
		}
	}
	if s.Health != nil {
		v.stands = s.Health.Endpoints()
	}
	if s.Delay != nil {
		v.loads = s.Delay.Loads()
	}
	learned := map[string]bool{}
	for _, l := range s.Latencies {
		for _, h := range l.Health() {
			if !learned[h.Model] && utf8.ValidString(h.Model) {
				learned[h.Model] = true
				v.health = append(v.health, h)
			}
		}
	}
	return v
}

// pulled is a metric that is read when metrics are collected.
type pulled struct {
	desc    *prom.Desc
	collect func(v *view, d *prom.Desc)
}

func newPulled(name, help string, labels []string, collect func(v *view, d *prom.Desc)) *pulled {
	return &pulled{prom.NewDesc("endpick_"+name, help, labels, nil), collect}
}

func (v *view) send(d *prom.Desc, kind prom.ValueType, value float64, labels ...string) {
	v.to <- prom.MustNewConstMetric(d, kind, value, labels...)
}

// from makes a metric of a source, which may be nil.
func from[S any](kind prom.ValueType, of func(*view) *S, name, help string, value func(*S) float64) *pulled {
	return newPulled(name, help, nil, func(v *view, d *prom.Desc) {
		if s := of(v); s != nil {
			v.send(d, kind, value(s))
		}
	})
}

func ofRouter(v *view) *endpick.Stats        { return v.router }
func ofTransport(v *view) *transport.Stats   { return v.transport }
func ofQueue(v *view) *transport.QueueStatus { return v.queue }
func ofIndex(v *view) *prefix.IndexStats     { return v.index }

func perEndpoint(name, help string, value func(*endpick.EndpointStatus) (float64, bool)) *pulled {
	return newPulled("endpoint_"+name, help, []string{"endpoint"}, func(v *view, d *prom.Desc) {
		for i := range v.endpoints {
			if x, ok := value(&v.endpoints[i]); ok {
				v.send(d, prom.GaugeValue, x, v.endpoints[i].Candidate.Endpoint.ID)
			}
		}
	})
}

// reported is a signal, for those endpoints that report it.
func reported(signal endpick.Signals, value func(*endpick.Candidate) float64) func(*endpick.EndpointStatus) (float64, bool) {
	return func(s *endpick.EndpointStatus) (float64, bool) {
		return value(&s.Candidate), s.Candidate.Reported&signal != 0
	}
}

func inFlight(value func(*endpick.InFlight) int) func(*endpick.EndpointStatus) (float64, bool) {
	return func(s *endpick.EndpointStatus) (float64, bool) { return float64(value(&s.Candidate.InFlight)), true }
}

func perIndexed(name, help string, value func(*prefix.EndpointStats) int) *pulled {
	return newPulled("endpoint_"+name, help, []string{"endpoint"}, func(v *view, d *prom.Desc) {
		for i := range v.endpoints {
			if s := v.indexed[v.endpoints[i].Candidate.Ref]; s != nil {
				v.send(d, prom.GaugeValue, float64(value(s)), v.endpoints[i].Candidate.Endpoint.ID)
			}
		}
	})
}

// perModel is a metric of each latency of each model that is learned.
func perModel(kind prom.ValueType, name, help string, value func(*predict.Health) float64) *pulled {
	return newPulled("prediction_"+name, help, []string{"model", "latency"}, func(v *view, d *prom.Desc) {
		for i := range v.health {
			h := &v.health[i]
			for _, l := range []struct {
				name string
				of   *predict.Health
			}{{"ttft", &h.TTFT}, {"tpot", &h.TPOT}, {"e2e", &h.E2E}} {
				if x := value(l.of); x == x && l.of.Labels > 0 { // NaN: not known yet
					v.send(d, kind, x, h.Model, l.name)
				}
			}
		}
	})
}

const (
	counter = prom.CounterValue
	gauge   = prom.GaugeValue
)

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// pull are the metrics that are read when metrics are collected. Unknown values
// are left out.
var pull = []*pulled{
	from(counter, ofRouter, "routed_total", "Leases opened: attempts that were given an endpoint.", func(s *endpick.Stats) float64 { return float64(s.Routed) }),
	from(counter, ofRouter, "mirrored_total", "Leases opened for requests that other routers have sent.", func(s *endpick.Stats) float64 { return float64(s.Mirrored) }),
	from(counter, ofRouter, "leases_reaped_total", "Leases that nobody has closed.", func(s *endpick.Stats) float64 { return float64(s.Reaped) }),
	from(counter, ofRouter, "bad_stage_results_total", "Results of stages that broke their contract and were not used.", func(s *endpick.Stats) float64 { return float64(s.StageErrors) }),
	from(counter, ofRouter, "filters_undecided_total", "Times that a filter had no opinion, because no candidate met it.", func(s *endpick.Stats) float64 { return float64(s.Undecided) }),
	from(counter, ofRouter, "stage_panics_total", "Panics of stages, each of which has cost a stage its say in one decision.", func(s *endpick.Stats) float64 { return float64(s.Panics) }),
	from(gauge, ofRouter, "open_leases", "Requests in flight.", func(s *endpick.Stats) float64 { return float64(s.OpenLeases) }),

	newPulled("endpoints", "Endpoints by state: those that take requests, are drained, or are gone with requests still open.", []string{"state"}, func(v *view, d *prom.Desc) {
		if v.router == nil {
			return
		}
		drained := 0
		for i := range v.endpoints {
			if v.endpoints[i].Draining {
				drained++
			}
		}
		v.send(d, gauge, float64(len(v.endpoints)-drained), "serving")
		v.send(d, gauge, float64(drained), "draining")
		v.send(d, gauge, float64(v.departing), "departing")
	}),
	from(gauge, ofTransport, "unhealthy_endpoints", "Endpoints that get less than their share, because they have failed of late.", func(s *transport.Stats) float64 { return float64(s.Unhealthy) }),
	from(counter, ofTransport, "retries_total", "Attempts after the first of a request, but for those at the rest of a stream.", func(s *transport.Stats) float64 { return float64(s.Retries) }),
	from(counter, ofTransport, "resumed_total", "Streams that broke off and went on at another server.", func(s *transport.Stats) float64 { return float64(s.Resumed) }),
	from(counter, ofTransport, "retries_denied_total", "Retries that there was no budget for.", func(s *transport.Stats) float64 { return float64(s.RetriesDenied) }),
	from(counter, ofTransport, "callback_panics_total", "Panics of the host's callbacks.", func(s *transport.Stats) float64 { return float64(s.Panics) }),

	from(gauge, ofQueue, "queue_requests", "Requests held in the gateway queue.", func(s *transport.QueueStatus) float64 { return float64(s.Requests) }),
	from(gauge, ofQueue, "queue_tokens", "Prompt tokens of the requests held in the gateway queue.", func(s *transport.QueueStatus) float64 { return float64(s.Tokens) }),
	from(gauge, ofQueue, "queue_bytes", "Memory that the requests held in the gateway queue take.", func(s *transport.QueueStatus) float64 { return float64(s.Bytes) }),
	from(gauge, ofQueue, "saturation_ratio", "How full the endpoints are; from 1 on requests are held.", func(s *transport.QueueStatus) float64 { return s.Saturation }),

	perEndpoint("serving", "Whether the endpoint takes requests (1) or is drained (0).", func(s *endpick.EndpointStatus) (float64, bool) {
		return is(!s.Draining), true
	}),
	perEndpoint("wake_seconds", "How long the endpoint takes to wake, where it may sleep: it may be out then, and is not broken.", func(s *endpick.EndpointStatus) (float64, bool) {
		return s.Candidate.Endpoint.WakeTime.Seconds(), s.Candidate.Endpoint.WakeTime > 0
	}),
	newPulled("endpoint_share_ratio", "Part of its usual traffic that the endpoint gets: 1 where it is well, 0 where it is out.", []string{"endpoint"}, func(v *view, d *prom.Desc) {
		for i := range v.stands {
			v.send(d, gauge, v.stands[i].Share, v.stands[i].Endpoint)
		}
	}),
	newPulled("endpoint_out", "Endpoints that are out, by the reason.", []string{"endpoint", "reason"}, func(v *view, d *prom.Desc) {
		for i := range v.stands {
			if s := &v.stands[i]; s.State.Out() {
				v.send(d, gauge, 1, s.Endpoint, s.State.String())
			}
		}
	}),
	perEndpoint("in_flight_requests", "Requests in flight at the endpoint, by the router's own account.", inFlight(func(f *endpick.InFlight) int { return f.Requests })),
	perEndpoint("prefill_tokens", "Prompt tokens that were routed to the endpoint and are not prefilled yet (Q).", inFlight(func(f *endpick.InFlight) int { return f.PrefillTokens })),
	perEndpoint("context_tokens", "Prompt tokens of the requests in flight at the endpoint.", inFlight(func(f *endpick.InFlight) int { return f.ContextTokens })),
	perEndpoint("waiting_requests", "Requests in the engine's queue, as reported and corrected (W).",
		reported(endpick.WaitingSignal, func(c *endpick.Candidate) float64 { return c.Waiting })),
	perEndpoint("running_requests", "Requests in the engine's batch, as reported and corrected (R).",
		reported(endpick.RunningSignal, func(c *endpick.Candidate) float64 { return c.Running })),
	perEndpoint("kv_usage_ratio", "Share of the engine's KV cache that is in use, as reported (K).",
		reported(endpick.KVUsageSignal, func(c *endpick.Candidate) float64 { return c.KVUsage })),
	perEndpoint("reporting", "Whether there is a current report of the engine.", func(s *endpick.EndpointStatus) (float64, bool) {
		return is(s.Candidate.Reported != 0), true
	}),

	from(gauge, ofIndex, "index_blocks", "Different blocks in the prefix index.", func(s *prefix.IndexStats) float64 { return float64(s.Blocks) }),
	from(gauge, ofIndex, "index_pairs", "Pairs of an endpoint and a block that the endpoint holds or is about to compute.", func(s *prefix.IndexStats) float64 { return float64(s.Pairs) }),
	from(gauge, ofIndex, "index_bytes", "Memory that the prefix index takes.", func(s *prefix.IndexStats) float64 { return float64(s.Bytes) }),
	from(counter, ofIndex, "index_evicted_total", "Pairs of an endpoint and a block that the index has forgotten for lack of room.", func(s *prefix.IndexStats) float64 { return float64(s.Evicted) }),
	from(counter, ofIndex, "index_strays_total", "Responses that did not continue the prompt as it was routed.", func(s *prefix.IndexStats) float64 { return float64(s.Strays) }),
	perIndexed("index_blocks", "Blocks that the engine is believed to hold.", func(s *prefix.EndpointStats) int { return s.Held + s.Kept }),
	perIndexed("index_capacity_blocks", "Blocks that the engine is trusted to hold.", func(s *prefix.EndpointStats) int { return s.Capacity }),

	newPulled("model_loads_total", "Times that a server has loaded a model for a request: it was nowhere in memory, the servers that had it were busy, or it was gone unexpectedly.", []string{"model", "reason"}, func(v *view, d *prom.Desc) {
		for _, l := range v.loads {
			v.send(d, counter, float64(l.Nowhere), l.Model, "nowhere")
			v.send(d, counter, float64(l.Busy), l.Model, "busy")
			v.send(d, counter, float64(l.Unexpected), l.Model, "unexpected")
		}
	}),
	newPulled("model_load_seconds", "How long these loads took.", []string{"model"}, func(v *view, d *prom.Desc) {
		for _, l := range v.loads {
			v.to <- prom.MustNewConstSummary(d, uint64(l.All()), l.Took.Seconds(), nil, l.Model)
		}
	}),

	perModel(gauge, "error_ratio", "Mean absolute percentage error of the last 1,000 predictions (MAPE).", func(h *predict.Health) float64 { return h.MAPE }),
	perModel(gauge, "error_p90_ratio", "Relative error that nine in ten predictions stay below.", func(h *predict.Health) float64 { return h.P90 }),
	perModel(gauge, "coverage_ratio", "Share of the predictions whose upper bound held; nine in ten should.", func(h *predict.Health) float64 { return h.Coverage }),
	perModel(gauge, "drift_ratio", "Newest prediction errors over those of the long run.", func(h *predict.Health) float64 { return h.Drift }),
	perModel(gauge, "samples", "Samples in the window that the model is fitted to.", func(h *predict.Health) float64 { return float64(h.Samples) }),
	perModel(counter, "labels_total", "Measured latencies taken in.", func(h *predict.Health) float64 { return float64(h.Labels) }),
	perModel(counter, "labels_dropped_total", "Measured latencies that came too fast to be kept.", func(h *predict.Health) float64 { return float64(h.Dropped) }),
	perModel(counter, "refits_total", "Times that the model was fitted.", func(h *predict.Health) float64 { return float64(h.Refits) }),
	perModel(gauge, "failing", "Whether the last fit went wrong.", func(h *predict.Health) float64 { return is(h.LastFail != nil) }),
}
