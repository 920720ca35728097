package slo

import (
	"cmp"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// HeadroomConfig configures a [Headroom]. The zero value is the paper's
// configuration.
type HeadroomConfig struct {
	// TTFTWeight is the share of TTFT in the combined headroom, in (0, 1); TPOT
	// has the rest. Zero: 0.8 (Predicted Latency, "Latency-based scoring").
	TTFTWeight float64
	// UpperBound compares the upper bounds of predictions with the targets, instead
	// of expected latencies, so that a target is not met by luck. What meets it also
	// meets the target in expectation, because a bound is never below the expected
	// value.
	UpperBound bool
	// OutputTokens is used where Request.ExpectedOutputTokens is unknown.
	// Zero: 300, the mean of the paper's production workload.
	OutputTokens int
	// DisableRunning considers only the request's own targets, and ignores those
	// of the requests that are already running on the endpoint.
	DisableRunning bool
}

func (c *HeadroomConfig) validate() error {
	c.TTFTWeight = cmp.Or(c.TTFTWeight, 0.8)
	if !(c.TTFTWeight > 0 && c.TTFTWeight < 1) {
		return check.Bad("slo.HeadroomConfig.TTFTWeight", "is %v, outside (0, 1)", c.TTFTWeight)
	}
	return check.Default("slo.HeadroomConfig.OutputTokens", &c.OutputTokens, 300)
}

// Headroom measures how far a prediction stays below the targets of the request
// itself, as a share (SLO − predicted)/SLO of each (Predicted Latency,
// "Latency-based scoring"), and of the requests that are already running on the
// endpoint. It observes the latter through the stages that use it: those made by
// [NewBestFit], [NewTier] and [NewLatencyAdmitter] may share one.
//
// The TPOT target of a running request counts if it was expected to be met when
// the request was routed, by the expected latency. A target that could not be met
// there, or for which nothing was predicted, is ignored, because keeping others
// away would not help.
//
// In a response that is not streamed, neither the first token nor the time per
// token can be seen: the whole latency is compared with the TTFT target, and a
// TPOT target is ignored.
//
// Make one with [NewHeadroom]. It is safe for concurrent use and belongs to one
// router.
type Headroom struct {
	config  HeadroomConfig
	running running
}

// NewHeadroom returns a Headroom, or an [endpick.ConfigError].
func NewHeadroom(config HeadroomConfig) (*Headroom, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Headroom{config: config, running: running{disabled: config.DisableRunning}}, nil
}

// orDefault returns h, or a Headroom with the default config if h is nil.
func (h *Headroom) orDefault() *Headroom {
	if h == nil {
		h, _ = NewHeadroom(HeadroomConfig{}) // the zero config is valid
	}
	return h
}

// fit is the headroom of one request on one candidate.
type fit struct {
	// Known is false if there is a target for a latency that is not
	// predicted; the other fields then mean nothing.
	Known bool
	// TTFT and TPOT are (SLO − predicted)/SLO, as far as the request has a target for them.
	TTFT, TPOT float64
	// Combined is their weighted sum. The weight of a dimension without a
	// target goes to the other.
	Combined float64
	// Deficit is Σ w·max(0, −share): surplus in one dimension never pays for a
	// deficit in the other. Here TPOT's share is measured against the strictest
	// target among the request's own and those of the requests that run on the
	// endpoint; it has TPOT's weight even if the request itself has no target
	// for TPOT.
	Deficit float64
}

// Meets reports whether every target is expected to be met.
func (f *fit) Meets() bool { return f.Known && f.Deficit == 0 }

// asked returns the dimensions in which the request has a target that can be
// measured.
func asked(req *endpick.Request) endpick.Latencies {
	var t endpick.Latencies
	if req.SLO.TTFT > 0 {
		t |= endpick.TTFT
	}
	if req.SLO.TPOT > 0 && req.Stream {
		t |= endpick.TPOT
	}
	return t
}

// measure is what is common to all candidates of one request. Times are in
// nanoseconds.
type measure struct {
	running                *running // locked for reading; nil if not needed
	upper                  bool     // compares upper bounds
	stream                 bool
	asked                  endpick.Latencies
	ttftTarget, tpotTarget float64
	perTTFT, perTPOT       float64 // reciprocals of the targets
	ttftWeight, tpotWeight float64
	outputTokens           float64
}

// measure begins; end ends it.
func (h *Headroom) measure(req *endpick.Request, upper bool) measure {
	m := measure{
		upper:        upper,
		stream:       req.Stream,
		asked:        asked(req),
		ttftTarget:   float64(req.SLO.TTFT),
		tpotTarget:   float64(req.SLO.TPOT),
		ttftWeight:   h.config.TTFTWeight,
		tpotWeight:   1 - h.config.TTFTWeight,
		outputTokens: h.outputTokens(req),
	}
	m.perTTFT, m.perTPOT = 1/m.ttftTarget, 1/m.tpotTarget
	switch m.asked {
	case endpick.TTFT:
		m.ttftWeight = 1
	case endpick.TPOT:
		m.tpotWeight = 1
	}
	if h.running.held.Load() != 0 {
		m.running = &h.running
		m.running.mu.RLock()
	}
	return m
}

func (m *measure) end() {
	if m.running != nil {
		m.running.mu.RUnlock()
	}
}

// fit writes the candidate's headroom into f. Returning it by value would cost
// as much as the rest.
func (m *measure) fit(c *endpick.Candidate, f *fit) {
	*f = fit{}
	p := clean(&c.Prediction, m.upper)
	if m.asked&endpick.TTFT != 0 {
		first, ok := p.ttft, p.has&endpick.TTFT != 0
		if !m.stream {
			first, ok = p.whole(m.outputTokens)
		}
		if !ok {
			return
		}
		f.TTFT = (m.ttftTarget - first) * m.perTTFT
		f.Combined = m.ttftWeight * f.TTFT
		f.Deficit = m.ttftWeight * max(-f.TTFT, 0)
	}
	missed := 0.0 // deficit of TPOT, as a share of the target
	if m.asked&endpick.TPOT != 0 {
		if p.has&endpick.TPOT == 0 {
			return
		}
		f.TPOT = (m.tpotTarget - p.tpot) * m.perTPOT
		f.Combined += m.tpotWeight * f.TPOT
		missed = max(-f.TPOT, 0)
	}
	// Running requests are slowed down to the same TPOT. Without a prediction of
	// it, their targets don't count.
	if m.running != nil && p.has&endpick.TPOT != 0 {
		if strictest := m.running.strictest(c.Ref); strictest > 0 {
			missed = max(missed, p.tpot/strictest-1)
		}
	}
	f.Deficit += m.tpotWeight * missed
	f.Known = true
}

func (h *Headroom) outputTokens(req *endpick.Request) float64 {
	return cmp.Or(req.ExpectedPerResponse(), float64(h.config.OutputTokens))
}
