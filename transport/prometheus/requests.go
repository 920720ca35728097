package prometheus

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
	prom "github.com/prometheus/client_golang/prometheus"
)

// families are the metrics that are counted when requests end.
type families struct {
	ttft, tpot latencies

	requests                 *prom.CounterVec // by model, code, status and reason
	duration                 *prom.HistogramVec
	decision, predicting     prom.Histogram
	held                     prom.Histogram
	input, output            *prom.CounterVec // tokens by model
	prompt, expected, cached *prom.CounterVec // likewise
	mistaken                 *prom.CounterVec // likewise
	targeted, met            *prom.CounterVec // by model and latency
	targets                  *prom.GaugeVec   // likewise
	tenantRequests           *prom.CounterVec // by tenant and status
	tenantIn, tenantOut      *prom.CounterVec
	attempts                 *prom.CounterVec // by endpoint and result
}

func newFamilies() families {
	counter := func(name, help string, labels ...string) *prom.CounterVec {
		return prom.NewCounterVec(prom.CounterOpts{Name: "endpick_" + name, Help: help}, labels)
	}
	return families{
		ttft: newLatencies("ttft", "Time to first token", ttftBuckets),
		tpot: newLatencies("tpot", "Time per output token after the first", tpotBuckets),
		requests: counter("requests_total", "Requests that have ended, by the HTTP status that the client got, by how that has ended "+
			"(completed, refused with 4xx, failed with 5xx or in the middle of a response, or canceled), and by the reason unless they are completed.",
			"model", "code", "status", "reason"),
		duration:   prom.NewHistogramVec(histogram("request_duration_seconds", "Time from the arrival of a request to the end of its response, for requests that were served.", durationBuckets), []string{"model"}),
		decision:   prom.NewHistogram(histogram("decision_duration_seconds", "Time that the router took to choose an endpoint.", decisionBuckets)),
		predicting: prom.NewHistogram(histogram("prediction_duration_seconds", "Time that the predictor took to predict the latencies at all endpoints.", decisionBuckets)),
		held:       prom.NewHistogram(histogram("held_duration_seconds", "Time that requests have waited in the gateway queue.", heldBuckets)),
		input:      counter("input_tokens_total", "Prompt tokens of requests that were served.", "model"),
		output:     counter("output_tokens_total", "Tokens of responses, including those that were cut off.", "model"),

		prompt:   counter("prefix_prompt_tokens_total", "Tokens of prompts for which the engine has reported how much was cached.", "model"),
		expected: counter("prefix_expected_tokens_total", "Tokens of prompts with such a report that the index expected to be cached.", "model"),
		cached:   counter("prefix_cached_tokens_total", "Tokens of prompts with such a report that were cached.", "model"),
		mistaken: counter("prefix_mistaken_tokens_total", "Tokens by which the index was wrong about prompts with such a report, too many and too few added up.", "model"),

		targeted: counter("slo_requests_total", "Requests with a target for this latency.", "model", "latency"),
		met:      counter("slo_met_total", "Requests that have met their target for this latency, counted from their arrival.", "model", "latency"),
		targets:  prom.NewGaugeVec(prom.GaugeOpts{Name: "endpick_slo_target_seconds", Help: "The newest target for this latency."}, []string{"model", "latency"}),

		tenantRequests: counter("tenant_requests_total", "Requests of a tenant that have ended, by how.", "tenant", "status"),
		tenantIn:       counter("tenant_input_tokens_total", "Prompt tokens of a tenant's requests that were served.", "tenant"),
		tenantOut:      counter("tenant_output_tokens_total", "Tokens of a tenant's responses.", "tenant"),

		attempts: counter("endpoint_attempts_total", "Requests that were sent to an endpoint, by how that has ended.", "endpoint", "result"),
	}
}

func (f *families) all() []prom.Collector {
	return append(append(f.ttft.all(), f.tpot.all()...), f.requests, f.duration, f.decision, f.predicting, f.held,
		f.input, f.output, f.prompt, f.expected, f.cached, f.mistaken,
		f.targeted, f.met, f.targets, f.tenantRequests, f.tenantIn, f.tenantOut, f.attempts)
}

// causes why requests were sent nowhere: the first that the error matches.
var causes = []struct {
	is     func(error) bool
	reason string
}{
	{matches(queue.ErrFull), "queue_full"},
	{matches(queue.ErrTimeout), "queue_timeout"},
	{matches(queue.ErrShed), "shed"},
	{matches(queue.ErrTooLarge), "too_large"},
	{as[*transport.BodyError], "too_large"},
	{as[*queue.RateLimitError], "rate_limited"},
	{overRequests, "quota_requests"},
	{as[*quota.Error], "quota_tokens"},
	{as[*queue.SaturatedError], "saturated"},
	{as[*slo.UnattainableError], "slo"},
	{as[*endpick.RejectedError], "rejected"},
	{as[*endpick.ContextError], "too_long"},
	{as[*endpick.NoEndpointError], "no_endpoint"},
	{as[*endpick.RequestError], "invalid"},
	{matches(transport.ErrRead), "invalid"},
	{matches(transport.ErrCoding), "invalid"},
	{matches(transport.ErrUnknownPath), "unknown_path"},
}

// matches reports whether an error matches a variable, and as whether it matches a type.
func matches(kind error) func(error) bool {
	return func(err error) bool { return errors.Is(err, kind) }
}

func as[T error](err error) bool {
	var kind T
	return errors.As(err, &kind)
}

func overRequests(err error) bool {
	var over *quota.Error
	return errors.As(err, &over) && over.Requests > 0
}

const (
	unknownModel = "unknown_model"
	unknownKey   = "unknown_key"
	left         = "client_left"
)

// reasonOf says why a request was not completed: what the last server has done with it, or why it
// was sent to none.
func reasonOf(r *transport.Observation) string {
	switch a := r.Last(); {
	case r.Completed():
		return ""
	case r.Code() == clientClosedRequest, r.Status == endpick.Canceled.String():
		return left
	case a != nil:
		return "server_" + string(a.Result)
	case as[*endpick.NoEndpointError](r.Err) && r.Code() == http.StatusNotFound:
		return unknownModel
	case r.Code() == http.StatusUnauthorized:
		return unknownKey
	}
	for _, c := range causes {
		if c.is(r.Err) {
			return c.reason
		}
	}
	return other
}

// clientClosedRequest is what transport.StatusOf returns for a client that went away.
const clientClosedRequest = 499

// code is a status as a label, limited because servers can answer anything.
func code(status int) string {
	if http.StatusText(status) == "" && status != clientClosedRequest {
		return other
	}
	return strconv.Itoa(status)
}

// Observe records a request that has ended; use it for transport.Config.Observe.
func (m *Metrics) Observe(r *transport.Observation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Completed() {
		if gone := m.models.add(r.Model); gone != "" {
			m.forgetModel(gone)
		}
		if gone := m.tenants.add(r.Tenant); gone != "" {
			m.forgetTenant(gone)
		}
	}
	f, model := &m.series, m.models.of(r.Model)
	f.requests.WithLabelValues(model, code(r.Code()), r.Status, reasonOf(r)).Inc()
	f.held.Observe(r.Held.Seconds())
	if r.Completed() {
		f.duration.WithLabelValues(model).Observe(r.E2EMillis / 1e3)
		f.input.WithLabelValues(model).Add(float64(r.InputTokens))
	}
	f.output.WithLabelValues(model).Add(float64(r.OutputTokens))
	m.observeTenant(r)
	m.observeAttempts(r)
	m.observeCache(model, r)
	ttft, tpot, _ := r.Latencies()
	f.ttft.observe(model, ttft)
	f.tpot.observe(model, tpot)
	m.compare(model, "ttft", r.SLOTTFTMillis, r, endpick.TTFT)
	m.compare(model, "tpot", r.SLOTPOTMillis, r, endpick.TPOT)
}

func (m *Metrics) compare(model, name string, millis float64, r *transport.Observation, which endpick.Latencies) {
	asked, met := r.Target(which)
	if !asked {
		return
	}
	f := &m.series
	f.targets.WithLabelValues(model, name).Set(millis / 1e3)
	f.targeted.WithLabelValues(model, name).Inc()
	if counter := f.met.WithLabelValues(model, name); met { // creates the series, because 0 is information, too
		counter.Inc()
	}
}

func (m *Metrics) observeTenant(r *transport.Observation) {
	if r.Tenant == "" {
		return
	}
	f, tenant := &m.series, m.tenants.of(r.Tenant)
	f.tenantRequests.WithLabelValues(tenant, r.Status).Inc()
	if r.Completed() {
		f.tenantIn.WithLabelValues(tenant).Add(float64(r.InputTokens))
	}
	f.tenantOut.WithLabelValues(tenant).Add(float64(r.OutputTokens))
}

// observeCache compares what the index expected of the endpoint with what the
// engine has reported.
func (m *Metrics) observeCache(model string, r *transport.Observation) {
	a := r.Last()
	if a == nil || r.CachedTokens == nil || !r.Completed() {
		return
	}
	f := &m.series
	expected, cached := max(a.Candidate.PrefixTokens, 0), min(max(*r.CachedTokens, 0), r.InputTokens)
	f.prompt.WithLabelValues(model).Add(float64(r.InputTokens))
	f.expected.WithLabelValues(model).Add(float64(expected))
	f.cached.WithLabelValues(model).Add(float64(cached))
	f.mistaken.WithLabelValues(model).Add(float64(max(expected-cached, cached-expected)))
}

var results = []transport.Result{
	transport.Served, transport.Unreachable, transport.Broken, transport.Erred, transport.Full, transport.Refused, transport.Canceled,
}

func (m *Metrics) observeAttempts(r *transport.Observation) {
	for i := range r.Attempts {
		a := &r.Attempts[i]
		m.series.decision.Observe(a.Decision.Seconds())
		id := a.Candidate.Endpoint.ID
		if !m.endpoints[id] {
			if len(m.endpoints) >= m.config.MaxEndpoints {
				id = other
			}
			m.endpoints[id] = true
			for _, result := range results { // so that the first failure is an increase
				m.series.attempts.WithLabelValues(id, string(result))
			}
		}
		m.series.attempts.WithLabelValues(id, string(a.Result)).Inc()
		if i == r.Serving {
			ttft, tpot, _ := r.Latencies()
			m.series.ttft.at(id, ttft)
			m.series.tpot.at(id, tpot)
		}
	}
}

// prune drops the series of endpoints that the router no longer has.
func (m *Metrics) prune(v *view) {
	if v.router == nil {
		return
	}
	there := make(map[string]bool, len(v.endpoints))
	for i := range v.endpoints {
		there[v.endpoints[i].Candidate.Endpoint.ID] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.endpoints {
		if !there[id] {
			delete(m.endpoints, id)
			for _, result := range results {
				m.series.attempts.DeleteLabelValues(id, string(result))
			}
			m.series.ttft.perEndpoint.DeleteLabelValues(id)
			m.series.tpot.perEndpoint.DeleteLabelValues(id)
		}
	}
}

func (m *Metrics) forgetModel(model string) {
	f := &m.series
	for _, v := range []interface{ DeletePartialMatch(prom.Labels) int }{
		f.ttft.actual, f.ttft.predicted, f.tpot.actual, f.tpot.predicted, f.requests, f.duration,
		f.input, f.output, f.prompt, f.expected, f.cached, f.mistaken, f.targeted, f.met, f.targets,
	} {
		v.DeletePartialMatch(prom.Labels{"model": model})
	}
}

func (m *Metrics) forgetTenant(tenant string) {
	f := &m.series
	for _, c := range []*prom.CounterVec{f.tenantRequests, f.tenantIn, f.tenantOut} {
		c.DeletePartialMatch(prom.Labels{"tenant": tenant})
	}
}
