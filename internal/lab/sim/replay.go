package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// Deployment is one server with its data-parallel ranks, as a recording saw it.
type Deployment struct {
	// Engine is each rank. Prompts are recorded without their contents, so nothing is
	// found in its cache unless the records have blocks.
	Engine engine.Config
	// Ranks is the number of data-parallel ranks. 0 is 1. Requests go to them in turn,
	// because ranks in lockstep are loaded about equally.
	Ranks int
}

// Replay sends the records' requests to the deployment at their arrival times,
// and returns copies of the records with the simulated times of their first and
// last tokens.
func Replay(records []Record, d Deployment) ([]Record, error) {
	if len(records) == 0 {
		return nil, &ConfigError{"Replay", "has no records"}
	}
	source, err := (&Trace{Name: "recording", Records: records}).Start(0)
	if err != nil {
		return nil, err
	}
	d.Ranks = cmp.Or(d.Ranks, 1)
	if d.Ranks < 0 {
		return nil, &ConfigError{"Deployment.Ranks", fmt.Sprintf("%d is negative", d.Ranks)}
	}
	ranks := make([]*engine.Engine, d.Ranks)
	for i := range ranks {
		if ranks[i], err = engine.New(d.Engine); err != nil {
			return nil, err
		}
	}
	out := slices.Clone(records)
	var events []engine.Event
	arrived := 0
	for {
		next, at := -1, time.Duration(math.MaxInt64)
		if arrival, ok := source.Next(); ok {
			at = arrival
		}
		for i, e := range ranks {
			if t, ok := e.NextEvent(); ok && t < at {
				next, at = i, t
			}
		}
		if at == math.MaxInt64 {
			return out, nil
		}
		if next < 0 {
			request := source.Take()
			if len(request.Blocks) == 0 {
				// Unique contents, which it finds again after a preemption.
				request.Blocks = extend(nil, (request.InputTokens+request.OutputTokens)/BlockTokens, engine.Mix(uint64(request.Handle)))
			}
			rank := ranks[arrived%len(ranks)]
			arrived++
			err := rank.Submit(at, engine.Request{
				ID: uint64(request.Handle), PromptTokens: request.InputTokens,
				OutputTokens: request.OutputTokens, Blocks: request.Blocks,
			})
			if err != nil {
				return nil, err
			}
			continue
		}
		events = ranks[next].Advance(at, events[:0])
		for _, e := range events {
			switch e.Kind {
			case engine.FirstToken:
				out[e.ID].FirstTokenMillis = millis(e.At)
				out[e.ID].CachedTokens = &e.CachedTokens
			case engine.Completed:
				out[e.ID].LastTokenMillis = millis(e.At)
			}
		}
	}
}

// Fidelity says how well simulated latencies agree with observed ones.
type Fidelity struct {
	TTFT Agreement `json:"ttft"`
	ITL  Agreement `json:"itl"`
	E2E  Agreement `json:"e2e"`
}

// Agreement compares one latency over all requests. Errors are shares of the
// observed value, never negative.
type Agreement struct {
	MeanError float64 `json:"mean_error"` // of the mean
	P90Error  float64 `json:"p90_error"`  // of the 90th percentile
	MAPE      float64 `json:"mape"`       // mean over requests of the error of each
	MAE       float64 `json:"mae"`        // mean over requests of the absolute error, as a share of the mean observed
	Pearson   float64 `json:"pearson"`    // correlation over requests; 0 if one side does not vary
}

// Assess compares records with [Replay]'s. Requests of one token have no ITL.
// The error names the first record without times.
func Assess(observed, simulated []Record) (Fidelity, error) {
	if len(observed) != len(simulated) || len(observed) == 0 {
		return Fidelity{}, &ConfigError{"Assess", fmt.Sprintf("has %d records observed and %d simulated", len(observed), len(simulated))}
	}
	var seen, made [3][]float64
	for i := range observed {
		a, b := &observed[i], &simulated[i]
		if a.LastTokenMillis == 0 || b.LastTokenMillis == 0 {
			return Fidelity{}, &TraceError{"recording", i + 1, errors.New("has no time of the last token")}
		}
		for m, latency := range latencies {
			if latency(a) > 0 {
				seen[m] = append(seen[m], latency(a))
				made[m] = append(made[m], latency(b))
			}
		}
	}
	return Fidelity{agree(seen[0], made[0]), agree(seen[1], made[1]), agree(seen[2], made[2])}, nil
}

// latencies are TTFT, ITL and E2E of a record, in milliseconds.
var latencies = [3]func(*Record) float64{
	func(r *Record) float64 { return r.FirstTokenMillis - r.ArrivalMillis },
	func(r *Record) float64 {
		if r.FirstTokenMillis == 0 {
			return 0 // it did not stream
		}
		return (r.LastTokenMillis - r.FirstTokenMillis) / float64(max(r.OutputTokens-1, 1))
	},
	func(r *Record) float64 { return r.LastTokenMillis - r.ArrivalMillis },
}

func agree(observed, simulated []float64) (a Agreement) {
	if len(observed) == 0 {
		return a
	}
	n := float64(len(observed))
	mean, deviation := meanAndDeviation(observed)
	made, spread := meanAndDeviation(simulated)
	var product float64
	for i := range observed {
		off := math.Abs(simulated[i] - observed[i])
		a.MAPE += off / observed[i] / n
		a.MAE += off / mean / n
		product += (observed[i] - mean) * (simulated[i] - made) / n
	}
	if deviation > 0 && spread > 0 {
		a.Pearson = product / (deviation * spread)
	}
	x, y := summarize(slices.Clone(observed)), summarize(slices.Clone(simulated))
	a.MeanError = math.Abs(made-mean) / mean
	a.P90Error = math.Abs(y.P90-x.P90) / x.P90
	return a
}
