package sim

import (
	"fmt"

	"github.com/endpick/endpick"
)

// Decision is a routing decision and its alternative: the same run, with this one
// request on the runner-up instead. Latencies are end to end, in milliseconds.
type Decision struct {
	Request     int     `json:"request"` // index in order of arrival, from 0
	Chosen      string  `json:"chosen"`
	RunnerUp    string  `json:"runner_up"`
	ScoreRegret float64 `json:"score_regret"` // best score minus the chosen one's
	Lead        float64 `json:"lead"`         // chosen score minus the runner-up's
	ChosenE2E   float64 `json:"chosen_e2e_ms"`
	RunnerUpE2E float64 `json:"runner_up_e2e_ms"`
	// OthersE2E is what the runner-up would have saved all other requests together;
	// negative: cost them.
	OthersE2E float64 `json:"others_e2e_ms"`
}

// Regret says how often, and by how much, a policy's runner-up would have been
// better.
type Regret struct {
	Decisions []Decision `json:"decisions"`
	Score     float64    `json:"score"`    // mean of ScoreRegret
	Own       float64    `json:"own_ms"`   // mean saving of the request itself, where positive
	Total     float64    `json:"total_ms"` // mean saving of all requests together, where positive
	Better    float64    `json:"better"`   // share of decisions whose runner-up is better for all together
}

// MeasureRegret samples decisions of a run, evenly spaced, and repeats the run for
// each with the runner-up in its place: samples + 2 runs in all. It leaves out
// decisions without a runner-up, and requests that were not completed both times.
func MeasureRegret(cfg Config, samples int) (*Regret, error) {
	if samples < 1 {
		return nil, &ConfigError{"samples", fmt.Sprintf("%d is below 1", samples)}
	}
	plain, err := Run(cfg)
	if err != nil {
		return nil, err
	}
	watch := map[int]*probe{}
	for i := range samples {
		watch[i*plain.Requests/samples] = &probe{receipt: &endpick.Receipt{}}
	}
	base, err := runProbed(cfg, watch)
	if err != nil {
		return nil, err
	}
	regret := &Regret{}
	for number := range base.Requests {
		p := watch[number]
		if p == nil || !p.done || p.receipt.RunnerUp < 0 {
			continue
		}
		chosen, other := p.receipt.Verdicts[p.receipt.Chosen], p.receipt.Verdicts[p.receipt.RunnerUp]
		again := &probe{force: other.Candidate.Endpoint.ID}
		changed, err := runProbed(cfg, map[int]*probe{number: again})
		if err != nil {
			return nil, err
		}
		if !again.done || changed.Completed != base.Completed {
			continue
		}
		saved := base.E2E.Mean*float64(base.Completed) - changed.E2E.Mean*float64(changed.Completed)
		regret.Decisions = append(regret.Decisions, Decision{
			Request: number, Chosen: chosen.Candidate.Endpoint.ID, RunnerUp: again.force,
			ScoreRegret: p.receipt.Regret, Lead: chosen.Score - other.Score,
			ChosenE2E: p.e2e, RunnerUpE2E: again.e2e, OthersE2E: saved - (p.e2e - again.e2e),
		})
	}
	n := float64(len(regret.Decisions))
	for _, d := range regret.Decisions {
		own := d.ChosenE2E - d.RunnerUpE2E
		regret.Score += d.ScoreRegret / n
		regret.Own += max(0, own) / n
		regret.Total += max(0, own+d.OthersE2E) / n
		if own+d.OthersE2E > 0 {
			regret.Better += 1 / n
		}
	}
	return regret, nil
}

// probe observes one request of a run, or forces it to a server.
type probe struct {
	receipt *endpick.Receipt // filled by the first decision; nil: not wanted
	force   string           // the server that the first decision must choose; empty: any
	done    bool             // completed
	e2e     float64          // milliseconds
}

func runProbed(cfg Config, probes map[int]*probe) (*Report, error) {
	r, err := newRun(cfg)
	if err != nil {
		return nil, err
	}
	r.probes = probes
	if err := r.loop(); err != nil {
		return nil, err
	}
	return r.finish(), nil
}

// first returns a receipt for the first decision of the request, or the servers to
// exclude to force it.
func (p *probe) first(r *run) (*endpick.Receipt, []string) {
	var excluded []string
	for i := range r.servers {
		if id := r.servers[i].Endpoint.ID; p.force != "" && id != p.force {
			excluded = append(excluded, id)
		}
	}
	return p.receipt, excluded
}

func (p *probe) completed(e2e float64) {
	if p != nil {
		p.done, p.e2e = true, e2e
	}
}
