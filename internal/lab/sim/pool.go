package sim

import (
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

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

// newPool makes one cache as large as those of all servers together.
func newPool(servers []server) (*instant, error) {
	blocks := 0
	for i := range servers {
		blocks += servers[i].engine.Config().Blocks
	}
	return newInstant(blocks)
}

// warmShare is the share of a prompt from which on it counts as warm, for the index as
// for an engine: that of the predicted-latency paper's affinity gate.
const warmShare = 0.8

// coldYetWarm reports whether the engine held a prompt that the index took for cold.
func coldYetWarm(input, matched, cached int) bool {
	warm := warmShare * float64(input)
	return float64(matched) < warm && float64(cached) >= warm
}
