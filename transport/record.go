package transport

import (
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/recording"
)

// record reports a request that has ended; x is nil if it was never sent.
func (rt *roundTrip) record(x *exchange, status endpick.Status, code int) {
	if rt.charged {
		rt.settle(x, status)
	}
	if rt.t.config.Record == nil && rt.observer == nil {
		return
	}
	r := rt.summary(x, status, code)
	if rt.observer != nil {
		rt.observe(x, r)
	}
	if rt.t.config.Record == nil {
		return
	}
	defer rt.t.d.guard(rt.in, "Config.Record")
	for _, b := range rt.request.Blocks {
		r.Blocks = append(r.Blocks, recording.Hash(b))
	}
	rt.t.config.Record(r)
}

// summary is the record of the request without its blocks.
func (rt *roundTrip) summary(x *exchange, status endpick.Status, code int) recording.Request {
	millis := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	end := rt.t.d.now()
	r := recording.Request{
		Version: recording.Version, Prompt: rt.sketch, Salt: rt.salt, Adapter: rt.request.Adapter,
		Time: rt.start, Model: rt.model, Status: status.String(), HTTP: code, Attempts: rt.attempts,
		Stream: rt.request.Stream, InputTokens: rt.request.InputTokens, Estimated: true, MaxTokens: rt.maxTokens, Responses: rt.request.Responses,
		BlockTokens: rt.request.BlockTokens, Tenant: recording.NameHash(rt.request.Tenant), Session: recording.NameHash(rt.request.Session),
		Priority: rt.request.Priority, SLOTTFTMillis: millis(rt.slo.TTFT), SLOTPOTMillis: millis(rt.slo.TPOT),
	}
	if x != nil {
		x.mu.Lock()
		if x.ended {
			end = x.endAt
		}
		x.mu.Unlock()
		seen := x.meter.Seen()
		r.Endpoint = x.lease.Endpoint().ID
		r.OutputTokens, r.CachedTokens = seen.OutputTokens, seen.CachedTokens
		if seen.Reported {
			r.InputTokens, r.Estimated = seen.InputTokens, false
		}
		if !seen.FirstToken.IsZero() {
			ttft := millis(seen.FirstToken.Sub(rt.start))
			r.TTFTMillis = &ttft
		}
	}
	r.E2EMillis = millis(end.Sub(rt.start))
	return r
}
