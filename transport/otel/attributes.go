package otel

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// The semantic conventions for generative AI, spelled out because they are not
// stable.
const (
	operationKey   = attribute.Key("gen_ai.operation.name")
	providerKey    = attribute.Key("gen_ai.provider.name")
	modelKey       = attribute.Key("gen_ai.request.model")
	maxTokensKey   = attribute.Key("gen_ai.request.max_tokens")
	streamKey      = attribute.Key("gen_ai.request.stream")
	inputKey       = attribute.Key("gen_ai.usage.input_tokens")
	outputKey      = attribute.Key("gen_ai.usage.output_tokens")
	cachedKey      = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	firstChunkKey  = attribute.Key("gen_ai.response.time_to_first_chunk") // seconds
	serverKey      = attribute.Key("server.address")
	portKey        = attribute.Key("server.port")
	statusKey      = attribute.Key("http.response.status_code")
	errorTypeKey   = attribute.Key("error.type")
	pathKey        = attribute.Key("url.path")
	maxStringBytes = 256
)

// operations are those of the conventions, by path suffix.
var operations = []struct{ suffix, name string }{
	{"/chat/completions", "chat"},
	{"/messages", "chat"},
	{"/responses", "chat"},
	{"/completions", "text_completion"},
	{"/generate", "text_completion"},
	{"/embeddings", "embeddings"},
}

// operationOf is the operation of a request, which the conventions require.
func operationOf(path string) string {
	path = strings.TrimSuffix(path, "/")
	for _, o := range operations {
		if strings.HasSuffix(path, o.suffix) {
			return o.name
		}
	}
	return "request"
}

// short limits a string that comes from a client.
func short(s string) string {
	if len(s) > maxStringBytes {
		s = s[:maxStringBytes]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func seconds(key string, d time.Duration) attribute.KeyValue {
	return attribute.Float64("endpick."+key, d.Seconds())
}

// describe sets the attributes that are known at the end.
func describe(span trace.Span, r *transport.Observation) {
	all := []attribute.KeyValue{
		statusKey.Int(r.Code()), inputKey.Int(r.InputTokens), outputKey.Int(r.OutputTokens), streamKey.Bool(r.Stream),
		attribute.String("endpick.status", r.Status),
		attribute.Int("endpick.attempts", len(r.Attempts)),
		seconds("held", r.Held),
	}
	add := func(known bool, a attribute.KeyValue) {
		if known {
			all = append(all, a)
		}
	}
	add(r.Model != "", modelKey.String(short(r.Model)))
	add(r.MaxTokens > 0, maxTokensKey.Int(r.MaxTokens))
	add(r.Tenant != "", attribute.String("endpick.tenant", short(r.Tenant)))
	if r.CachedTokens != nil {
		all = append(all, cachedKey.Int(*r.CachedTokens))
	}
	if r.TTFTMillis != nil {
		all = append(all, firstChunkKey.Float64(*r.TTFTMillis/1e3))
	}
	ttft, tpot, e2e := r.Latencies()
	for _, l := range []struct {
		name string
		transport.Latency
	}{{"ttft", ttft}, {"tpot", tpot}, {"e2e", e2e}} {
		add(l.Predicted > 0, seconds("predicted."+l.name, l.Predicted))
		add(l.Actual > 0, seconds("measured."+l.name, l.Actual))
	}
	for _, which := range []struct {
		name string
		endpick.Latencies
		target float64
	}{{"ttft", endpick.TTFT, r.SLOTTFTMillis}, {"tpot", endpick.TPOT, r.SLOTPOTMillis}} {
		if asked, met := r.Target(which.Latencies); asked {
			all = append(all, attribute.Float64("endpick.slo."+which.name, which.target/1e3), attribute.Bool("endpick.slo."+which.name+".met", met))
		}
	}
	if a := r.Last(); a != nil {
		all = append(all, server(a.Candidate.Endpoint)...)
		all = append(all, attribute.Int("endpick.prefix.matched_tokens", a.Candidate.PrefixTokens), seconds("decision.duration", a.Decision))
	}
	span.SetAttributes(append(all, decision(r.Receipt)...)...)
	attempts(span, r)
	fail(span, r)
}

// server is where the request went, without the credentials in its address.
func server(e *endpick.Endpoint) []attribute.KeyValue {
	all := []attribute.KeyValue{attribute.String("endpick.endpoint", e.ID)}
	if u, err := transport.Target(e, &url.URL{}); err == nil {
		all = append(all, serverKey.String(u.Hostname()))
		if port, err := strconv.Atoi(u.Port()); err == nil {
			all = append(all, portKey.Int(port))
		}
	}
	return all
}

// decision is the receipt of the last decision.
func decision(r *endpick.Receipt) []attribute.KeyValue {
	if r == nil || r.Number == 0 {
		return nil
	}
	all := []attribute.KeyValue{
		attribute.String("endpick.policy", r.Policy),
		attribute.Int64("endpick.decision.number", int64(r.Number)),
		attribute.Int("endpick.decision.candidates", len(r.Verdicts)),
	}
	removed := 0
	for i := range r.Verdicts {
		if r.Verdicts[i].RemovedBy != "" {
			removed++
		}
	}
	all = append(all, attribute.Int("endpick.decision.removed", removed))
	if r.Chosen < 0 {
		return all
	}
	v := &r.Verdicts[r.Chosen]
	c := &v.Candidate
	all = append(all,
		attribute.Float64("endpick.decision.score", v.Score), attribute.Float64("endpick.decision.regret", r.Regret),
		attribute.StringSlice("endpick.decision.scorers", r.Scorers), attribute.Float64Slice("endpick.decision.scores", v.Scores),
		attribute.Float64("endpick.load.waiting", c.Waiting), attribute.Float64("endpick.load.running", c.Running),
		attribute.Float64("endpick.load.kv_usage", c.KVUsage), attribute.Int("endpick.load.prefill_tokens", c.InFlight.PrefillTokens),
	)
	if r.RunnerUp >= 0 {
		up := &r.Verdicts[r.RunnerUp]
		all = append(all, attribute.String("endpick.decision.runner_up", up.Candidate.Endpoint.ID),
			attribute.Float64("endpick.decision.runner_up.score", up.Score))
	}
	return all
}

// attempts adds an event for each attempt, if there were several.
func attempts(span trace.Span, r *transport.Observation) {
	for i := range r.Attempts {
		a := &r.Attempts[i]
		if len(r.Attempts) == 1 && a.Err == nil {
			return
		}
		about := []attribute.KeyValue{
			attribute.String("endpick.endpoint", a.Candidate.Endpoint.ID), attribute.String("endpick.result", string(a.Result)),
		}
		if a.HTTP > 0 {
			about = append(about, statusKey.Int(a.HTTP))
		}
		if a.Err != nil {
			about = append(about, attribute.String("endpick.error", short(a.Err.Error())))
		}
		at := time.Now().Add(-time.Since(a.At)) // the router's clock goes on from how it was set at the start
		span.AddEvent("endpick.attempt", trace.WithTimestamp(at), trace.WithAttributes(about...))
	}
}

// fail marks failed and refused requests. Those that are refused, or whose client leaves, are no
// failures of the service.
func fail(span trace.Span, r *transport.Observation) {
	kind, text := strconv.Itoa(r.Code()), "the endpoint has failed the request"
	switch {
	case r.Status == endpick.Completed.String():
		return
	case r.Status == endpick.Canceled.String():
		kind = "canceled"
	case r.Err != nil:
		text = r.Err.Error()
	case r.Code() < 400:
		kind, text = "broken", "the response broke off"
	}
	span.SetAttributes(errorTypeKey.String(kind))
	if r.Status == endpick.Failed.String() {
		span.SetStatus(codes.Error, short(text))
	}
}
