package sim

// Report is the result of a run. Every figure is a function of the Config and
// the seed.
type Report struct {
	Policy string `json:"policy"` // the policy's name
	Seed   uint64 `json:"seed"`

	// Requests arrived = Completed + Rejected.
	Requests  int `json:"requests"`
	Completed int `json:"completed"`
	Rejected  int `json:"rejected"` // by an admitter, for lack of an endpoint, or because no server can hold it
	TooLong   int `json:"too_long"` // of the rejected ones, those that no server can hold
	Retried   int `json:"retried"`  // attempts after the first

	TTFT Summary `json:"ttft_ms"` // arrival to first token
	TPOT Summary `json:"tpot_ms"` // time per output token after the first, of requests with more than one
	E2E  Summary `json:"e2e_ms"`  // arrival to last token

	Seconds        float64 `json:"seconds"`          // first arrival to last completion
	OfferedRPS     float64 `json:"offered_rps"`      // arrivals, first to last
	ThroughputRPS  float64 `json:"throughput_rps"`   // requests completed over Seconds
	OutputTPS      float64 `json:"output_tps"`       // output tokens of completed requests over Seconds
	PrefixHitRatio float64 `json:"prefix_hit_ratio"` // share of prompt tokens found in a cache
	// ColdYetWarm is the share of prompts that the engine had in its cache although the
	// router's index did not expect it: each with a threshold of four fifths of the
	// prompt. Nil: the policy has no index.
	ColdYetWarm *float64 `json:"cold_yet_warm,omitempty"`
	Preemptions int64    `json:"preemptions"`
	Jain        float64  `json:"jain"` // fairness over tenants, by output tokens of completed requests (BLIS)
	// Imbalance is the mean, over the windows up to the last arrival, of the standard
	// deviation between servers of the time spent on prefill, as a share of the mean;
	// for a shorter run, over the whole run. 0: all servers prefill alike.
	Imbalance float64 `json:"imbalance"`

	// SLOAttainment is the share of requests with an SLO that met it; nil if none had
	// one. A rejected or lost request has not met it.
	SLOAttainment *float64 `json:"slo_attainment"`
	GoodputRPS    float64  `json:"goodput_rps"` // requests that met their SLO, or had none, over Seconds
	Classes       []Class  `json:"classes,omitempty"`

	Evictions int64          `json:"evictions"` // blocks
	Realised  Realised       `json:"realised"`
	Endpoints []ServerReport `json:"endpoints"`
}

// Class has the figures of one SLO class.
type Class struct {
	Name       string  `json:"name"`
	Requests   int     `json:"requests"`
	Met        int     `json:"met"`
	Attainment float64 `json:"attainment"`
	GoodputRPS float64 `json:"goodput_rps"`
}

// Realised has the means of the generated workload.
type Realised struct {
	InputMean  float64 `json:"input_mean"`
	InputStd   float64 `json:"input_std"`
	OutputMean float64 `json:"output_mean"`
	OutputStd  float64 `json:"output_std"`
}

// outcome is how a request ended.
type outcome uint8

const (
	noEndpoint outcome = iota // the zero value: no endpoint to try
	completed
	rejected
	tooLong
)

// finish makes the report.
func (r *run) finish() *Report {
	t := &r.tally
	rep := &Report{
		Policy: t.policy, Seed: r.cfg.Seed,
		Requests: t.requests, Completed: t.outcomes[completed],
		Rejected: t.outcomes[rejected] + t.outcomes[tooLong] + t.outcomes[noEndpoint],
		TooLong:  t.outcomes[tooLong], Retried: t.retried,
		TTFT: summarize(t.ttft), TPOT: summarize(t.tpot), E2E: summarize(t.e2e),
		Jain: t.jain(),
	}
	rep.Realised.InputMean, rep.Realised.InputStd = t.input.meanStd()
	rep.Realised.OutputMean, rep.Realised.OutputStd = t.output.meanStd()
	if span := (t.lastArrival - t.firstArrival).Seconds(); span > 0 {
		rep.OfferedRPS = float64(t.requests-1) / span
	}
	rep.Seconds = max(0, t.lastCompletion-t.firstArrival).Seconds()
	if rep.Seconds > 0 {
		rep.ThroughputRPS = float64(rep.Completed) / rep.Seconds
		rep.OutputTPS = float64(t.outputTokens) / rep.Seconds
	}
	t.classReports(rep)
	if t.indexed {
		share := ratio(t.coldYetWarm, t.prefilled)
		rep.ColdYetWarm = &share
	}
	var prefill []float64
	var hit, asked int64
	for i := range r.servers {
		s := &r.servers[i]
		own := s.engine.Totals()
		hit, asked = hit+own.PrefixHitTokens, asked+own.PrefixQueryTokens
		rep.Preemptions += own.Preemptions
		rep.Evictions += own.Evicted
		rep.Endpoints = append(rep.Endpoints, ServerReport{
			ID: s.Endpoint.ID, Completed: s.requests, Preemptions: own.Preemptions,
			PrefixHitRatio: ratio(own.PrefixHitTokens, own.PrefixQueryTokens),
			BusySeconds:    own.Busy.Seconds(), PrefillSeconds: own.PrefillBusy.Seconds(),
		})
		prefill = append(prefill, own.PrefillBusy.Seconds())
	}
	rep.PrefixHitRatio = ratio(hit, asked)
	rep.Imbalance = t.imbalance(prefill)
	return rep
}

// ServerReport has the figures of one server.
type ServerReport struct {
	ID             string  `json:"id"`
	Completed      int     `json:"completed"`
	Preemptions    int64   `json:"preemptions"`
	PrefixHitRatio float64 `json:"prefix_hit_ratio"`
	BusySeconds    float64 `json:"busy_seconds"`
	PrefillSeconds float64 `json:"prefill_seconds"`
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
