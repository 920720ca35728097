package slo

import (
	"fmt"
	"strings"
	"time"

	"github.com/endpick/endpick"
)

// coldKVUsage is the KV-cache usage below which an endpoint is cold:
// predictions for it don't count against a request (the constant of the Gateway
// API Inference Extension's admitter).
const coldKVUsage = 0.02

// NewLatencyAdmitter returns an admitter that rejects a sheddable request (one
// with a priority below 0) with an [UnattainableError] if no endpoint is expected
// to meet its SLO. It admits every request while any endpoint is idle or cold, and
// rejects none for lack of a prediction (GIE, "SLO enforcement").
//
// It measures by h; nil: a Headroom with the default config. It uses expected
// latencies even if h has an UpperBound, which is for choosing and not for
// refusing. It belongs to one router.
func NewLatencyAdmitter(h *Headroom) endpick.Admitter {
	return &latencyAdmitter{headroom: h.orDefault()}
}

type latencyAdmitter struct {
	headroom *Headroom
}

func (a *latencyAdmitter) Observer() any { return &a.headroom.running }

// UnattainableError says by how much the SLO of a request was out of reach.
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

// Refusal is what the client learns; see [endpick.Admitter].
func (e *UnattainableError) Refusal() (message string, retryAfter time.Duration) {
	return "no server can meet the latency targets of the request", 0
}

func (a *latencyAdmitter) Admit(req *endpick.Request, candidates []endpick.Candidate) error {
	if req.Priority >= 0 || asked(req) == 0 || len(candidates) == 0 {
		return nil
	}
	m := a.headroom.measure(req, false)
	defer m.end()
	var f, best fit
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
