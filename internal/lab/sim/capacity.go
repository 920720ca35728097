package sim

import (
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// CapacityRow is a line of the capacity table in the appendix of the
// predicted-latency paper: how much of a workload's working set a fleet can cache
// if system prompts are kept first and load is perfectly balanced.
type CapacityRow struct {
	SystemTokens   int64   `json:"system_tokens"`   // of all groups
	UserTokens     int64   `json:"user_tokens"`     // questions and answers of all users, all rounds
	CapacityTokens int64   `json:"capacity_tokens"` // of the fleet
	SystemFits     float64 `json:"system_fits"`     // share of the system tokens, in [0, 1]
	UserFits       float64 `json:"user_fits"`       // share of the user tokens in what is left
}

// AppendixRounds is the number of rounds of a conversation in the appendix: a
// fifth turn finds four before it.
const AppendixRounds = 4

// Capacity is the appendix's estimate for a workload on servers with so many
// blocks each.
func Capacity(c Conversations, servers, blocks, rounds int) CapacityRow {
	row := CapacityRow{
		SystemTokens:   int64(c.Groups) * int64(c.SystemTokens),
		UserTokens:     int64(c.Groups*c.UsersPerGroup) * int64(c.Question.Mean+c.Output.Mean) * int64(rounds),
		CapacityTokens: int64(servers) * int64(blocks) * BlockTokens,
	}
	share := func(have, need int64) float64 {
		if have >= need {
			return 1
		}
		return float64(have) / float64(need)
	}
	row.SystemFits = share(row.CapacityTokens, row.SystemTokens)
	row.UserFits = share(max(0, row.CapacityTokens-row.SystemTokens), row.UserTokens)
	return row
}

// Pressure is the effect of a rate of requests on the cache of one server.
type Pressure struct {
	QPS       float64   `json:"qps"`
	Requests  int       `json:"requests"`
	HitRatio  float64   `json:"hit_ratio"` // share of prompt tokens found in the cache
	Filled    float64   `json:"filled"`    // share of blocks that hold a prefix at the end
	Evictions Evictions `json:"evictions"` // in blocks
}

// CachePressure is the appendix's simulation: one server, requests at each rate for
// a fixed time (100 s in the paper), each served instantly, so that a rate only
// stands for a number of requests.
func CachePressure(c Conversations, qps []float64, duration time.Duration, blocks int, seed uint64) ([]Pressure, error) {
	var out []Pressure
	for _, rate := range qps {
		c.Arrivals, c.Duration, c.Requests = ConstantRate(rate), duration, 0
		source, err := c.Start(seed)
		if err != nil {
			return nil, err
		}
		server, err := newInstant(blocks)
		if err != nil {
			return nil, err
		}
		p := Pressure{QPS: rate}
		for now, ok := source.Next(); ok; now, ok = source.Next() {
			request := source.Take()
			p.Requests++
			if err := server.serve(now, &request); err != nil {
				return nil, err
			}
			source.Done(&request, now)
		}
		t := server.Totals()
		p.HitRatio = ratio(t.PrefixHitTokens, t.PrefixQueryTokens)
		p.Filled = float64(server.Load(duration).CachedBlocks) / float64(server.Config().Blocks)
		p.Evictions = Evictions{t.EvictedSystem, t.EvictedUser, t.EvictedOther}
		out = append(out, p)
	}
	return out, nil
}

// instant is a server that answers instantly: a prefix cache by itself.
type instant struct {
	*engine.Engine
	events []engine.Event
}

func newInstant(blocks int) (*instant, error) {
	e, err := engine.New(engine.Config{
		Profile: engine.Profile{Name: "instant", StepMicros: 1e-6}, Blocks: blocks, MaxBatchedTokens: 1 << 20,
	})
	return &instant{Engine: e}, err
}

// serve takes a request from its first token to its last.
func (s *instant) serve(now time.Duration, r *Request) error {
	err := s.Submit(now, engine.Request{
		PromptTokens: r.InputTokens, OutputTokens: r.OutputTokens,
		Blocks: r.Blocks, SystemTokens: r.SystemTokens, UserTokens: r.UserTokens,
	})
	if err != nil {
		return err
	}
	for at, busy := s.NextEvent(); busy; at, busy = s.NextEvent() {
		s.events = s.Advance(at, s.events[:0])
	}
	return nil
}
