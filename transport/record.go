package transport

import (
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/recording"
)

// record reports a request that has ended; x is nil if it was never sent.
func (tr *trip) record(x *exchange, status endpick.Status, code int) {
	if tr.charged {
		tr.settle(x, status)
	}
	if tr.t.config.Record == nil && tr.seen == nil {
		return
	}
	r := tr.summary(x, status, code)
	if tr.seen != nil {
		tr.observe(x, r)
	}
	if tr.t.config.Record == nil {
		return
	}
	defer tr.t.guard(tr.in, "Config.Record")
	for _, b := range tr.Request.Blocks {
		r.Blocks = append(r.Blocks, recording.Hash(b))
	}
	tr.t.config.Record(r)
}

// summary is the record of the request without its blocks.
func (tr *trip) summary(x *exchange, status endpick.Status, code int) recording.Request {
	millis := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	end := tr.t.now()
	r := recording.Request{
		Version: recording.Version, Prompt: tr.sketch, Salt: tr.salt, Adapter: tr.Request.Adapter,
		Time: tr.start, Model: tr.model, Status: status.String(), HTTP: code, Attempts: tr.Attempts,
		Stream: tr.Request.Stream, InputTokens: tr.Request.InputTokens, Estimated: true, MaxTokens: tr.maxTokens, Responses: tr.Request.Responses,
		BlockTokens: tr.Request.BlockTokens, Tenant: recording.NameHash(tr.Request.Tenant), Session: recording.NameHash(tr.Request.Session),
		Priority: tr.Request.Priority, SLOTTFTMillis: millis(tr.slo.TTFT), SLOTPOTMillis: millis(tr.slo.TPOT),
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
			ttft := millis(seen.FirstToken.Sub(tr.start))
			r.TTFTMillis = &ttft
		}
	}
	r.E2EMillis = millis(end.Sub(tr.start))
	return r
}
