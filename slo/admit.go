package slo

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/endpick/endpick"
)

// ErrUnattainable: no endpoint can meet the SLO and the request can be shed.
var ErrUnattainable = errors.New("slo: SLO out of reach")

// coldKVUsage is the KV-cache usage below which an endpoint is cold:
// predictions for it don't count against a request (the constant of the Gateway
// API Inference Extension's admitter).
const coldKVUsage = 0.02

// LatencyAdmitter rejects a sheddable request (one with a priority below 0)
// if no endpoint is expected to meet its SLO. It admits every request while
// any endpoint is idle or cold, and rejects none for lack of a prediction
// (GIE, "SLO enforcement").
//
// It uses expected latencies, whatever the [Bound] of the Headroom, which is
// for choosing and not for refusing. A LatencyAdmitter is safe for concurrent
// use and belongs to one router.
type LatencyAdmitter struct {
	headroom *Headroom
}

// NewLatencyAdmitter returns an admitter that measures by h. Nil: a Headroom
// with the default config.
func NewLatencyAdmitter(h *Headroom) *LatencyAdmitter {
	return &LatencyAdmitter{headroom: h.orDefault()}
}

// Observer returns the Headroom, which observes leases.
func (a *LatencyAdmitter) Observer() any { return a.headroom }

// UnattainableError says by how much the SLO of a request was out of reach.
// It matches ErrUnattainable.
type UnattainableError struct {
	// SLO is what was asked for.
	SLO endpick.SLO
	// TTFT and TPOT are the lowest that any endpoint was expected to have; for
	// a response that is not streamed, TTFT is the whole latency. Zero: not
	// asked for. They may be those of two endpoints, and within the SLO: then
	// no endpoint meets both targets, or the request would break the target of
	// a running request.
	TTFT, TPOT time.Duration
	Endpoints  int // that could have taken the request
}

func (e *UnattainableError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "slo: SLO out of reach of %d endpoints:", e.Endpoints)
	if e.TTFT > 0 {
		fmt.Fprintf(&b, " TTFT %v, at best %v;", e.SLO.TTFT, e.TTFT)
	}
	if e.TPOT > 0 {
		fmt.Fprintf(&b, " TPOT %v, at best %v;", e.SLO.TPOT, e.TPOT)
	}
	return strings.TrimSuffix(b.String(), ";")
}

// Unwrap returns ErrUnattainable.
func (e *UnattainableError) Unwrap() error { return ErrUnattainable }

// Admit implements [endpick.Admitter].
func (a *LatencyAdmitter) Admit(req *endpick.Request, candidates []endpick.Candidate) error {
	if req.Priority >= 0 || asked(req) == 0 || len(candidates) == 0 {
		return nil
	}
	m := a.headroom.measure(req, Expected)
	defer m.end()
	var f, best Fit
	for i := range candidates {
		c := &candidates[i]
		if c.BatchSize() == 0 || c.KVUsage < coldKVUsage {
			return nil
		}
		m.fit(c, &f)
		if !f.Known || f.Meets() {
			return nil
		}
		if i == 0 {
			best = f
		}
		best.TTFT, best.TPOT = max(best.TTFT, f.TTFT), max(best.TPOT, f.TPOT)
	}
	err := &UnattainableError{SLO: req.SLO, Endpoints: len(candidates)}
	if m.asked&endpick.TTFT != 0 {
		err.TTFT = predicted(req.SLO.TTFT, best.TTFT)
	}
	if m.asked&endpick.TPOT != 0 {
		err.TPOT = predicted(req.SLO.TPOT, best.TPOT)
	}
	return err
}

// predicted converts a share of headroom back to a latency, at least 1 ns.
func predicted(target time.Duration, share float64) time.Duration {
	return max(time.Duration(float64(target)*(1-share)), 1)
}
