package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
)

// setting is a fleet and the requests with which it is measured.
type setting struct {
	policy    string
	endpoints int
	tokens    int     // per prompt
	held      float64 // share of endpoints that hold the first quarter of the prompts
	blocks    int     // limit of the index per endpoint
	adapters  int     // served by each endpoint
}

// fleet is a router in the state of a busy one: every endpoint has reported, its part of
// the index is full, and the policy's models are trained.
type fleet struct {
	setting
	router *endpick.Router
	index  *prefix.Index
	ahead  time.Duration // of the clock, during training

	prompt  []uint32
	hashes  []uint64
	number  uint32
	ready   bool // in this state
	adapter string
	learned []byte // state of the models
	bytes   int64  // heap size
}

const model = "llama"

func newFleet(s setting) (*fleet, error) {
	var learned []byte
	if s.policy == "predicted-latency" {
		var err error
		if learned, err = trained(); err != nil {
			return nil, err
		}
	}
	before := heap()
	f := &fleet{setting: s, learned: learned, prompt: make([]uint32, s.tokens), hashes: make([]uint64, 0, s.tokens/prefix.BlockTokens)}
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	config.Seed, config.ReportMaxAge = 1, 1000*time.Hour
	config.Clock = func() time.Time { return time.Now().Add(f.ahead) }
	if s.policy == "marginal-delay" { // a response that takes no time would teach it nonsense
		began := time.Now()
		config.Clock = func() time.Time { return began.Add(f.ahead) }
	}
	for i := range s.endpoints {
		e := endpick.Endpoint{ID: fmt.Sprintf("e%d", i), Models: []string{model, fmt.Sprintf("e%d", i)}}
		for a := range s.adapters {
			e.Adapters = append(e.Adapters, fmt.Sprintf("adapter-%d", a))
		}
		config.Endpoints = append(config.Endpoints, e)
	}
	if s.adapters > 0 {
		f.adapter = fmt.Sprintf("adapter-%d", s.adapters/2)
	}
	if f.router, err = endpick.New(config); err != nil {
		return nil, err
	}
	if err := f.occupy(); err != nil {
		return nil, err
	}
	f.ready = true
	f.ahead += 2 * time.Minute // no endpoint is new any more
	f.bytes = heap() - before
	return f, nil
}

// config is the setting's policy, with an index of the setting's size.
func (f *fleet) config() (config endpick.Config, err error) {
	index := prefix.IndexConfig{BlocksPerEndpoint: f.blocks, MaxBytes: 4 << 30}
	switch f.setting.policy {
	case "predicted-latency":
		var latency *predict.Latency
		if latency, err = predict.Restore(predict.LatencyConfig{Synchronous: true}, f.learned); err == nil {
			config, err = preset.PredictedLatency(preset.PredictedLatencyConfig{Index: index, Learned: latency})
		}
	case "marginal-delay":
		config, err = preset.MarginalDelay(preset.MarginalDelayConfig{Index: index})
	default:
		config, err = preset.ByName(f.setting.policy)
		if err == nil && config.Policy.Matcher != nil {
			config.Policy.Matcher, err = prefix.NewIndex(index)
		}
	}
	f.index, _ = config.Policy.Matcher.(*prefix.Index)
	return config, err
}

// occupy brings a new router into the state of a busy one.
func (f *fleet) occupy() error {
	chance := rand.New(rand.NewPCG(1, 2))
	trained := f.setting.policy == "predicted-latency" || f.setting.policy == "marginal-delay"
	for i := range f.endpoints {
		load := endpick.Load{Waiting: 1, Running: 8, KVUsage: 0.5}
		if trained {
			load = anyLoad(chance)
		}
		if err := f.router.Report(fmt.Sprintf("e%d", i), load); err != nil {
			return err
		}
	}
	switch f.setting.policy {
	case "marginal-delay":
		if err := f.train(chance, 500); err != nil {
			return err
		}
	case "predicted-latency":
		for range f.endpoints / 8 { // until the shortlist knows all endpoints
			if err := f.route(endpick.Request{Model: model}); err != nil {
				return err
			}
		}
	}
	if f.index == nil {
		return nil
	}
	holders := int(f.held * float64(f.endpoints))
	fresh := len(f.prompt) / prefix.BlockTokens * 3 / 4
	for i := range f.endpoints {
		f.prompt[0] = 0
		if i >= holders {
			f.prompt[0] = ^uint32(i) // a head of its own
		}
		for n := 0; n < f.blocks; n += max(fresh, 1) {
			if err := f.route(endpick.Request{Model: fmt.Sprintf("e%d", i)}); err != nil {
				return err
			}
		}
	}
	f.prompt[0] = 0
	return nil
}

func anyLoad(chance *rand.Rand) endpick.Load {
	return endpick.Load{Waiting: float64(chance.IntN(3)), Running: float64(chance.IntN(64)), KVUsage: chance.Float64()}
}

// train simulates responses from servers whose latencies depend on their loads.
func (f *fleet) train(chance *rand.Rand, times int) error {
	for range times {
		id := fmt.Sprintf("e%d", chance.IntN(f.endpoints))
		if err := f.router.Report(id, anyLoad(chance)); err != nil {
			return err
		}
		l, err := f.router.Route(endpick.Request{Model: model, Stream: true, InputTokens: 16 + chance.IntN(2*f.tokens)})
		if err != nil {
			return err
		}
		c, _ := l.Candidate()
		f.ahead += time.Duration(5e6 + 5e4*float64(c.InFlight.PrefillTokens) + 5e7*c.Waiting + 5e7*c.KVUsage + 1e6*c.Running)
		l.FirstToken()
		f.ahead += 99 * time.Duration(1e7+2e5*c.Running)
		l.Done(endpick.Outcome{OutputTokens: 100})
	}
	return nil
}

// op is a request from its tokens to its end: three quarters of the prompt are new each
// time, and evict as much from the index.
func (f *fleet) op() {
	if err := f.route(endpick.Request{Model: model, Adapter: f.adapter}); err != nil {
		panic(err) // the same request was routed before
	}
}

func (f *fleet) route(req endpick.Request) error {
	f.hash()
	req.Stream, req.InputTokens, req.Blocks = true, len(f.prompt), f.hashes
	l, err := f.router.Route(req)
	if err == nil {
		l.Done(endpick.Outcome{})
	}
	return err
}

var seed = prefix.Scope{Model: model}.Seed()

func (f *fleet) hash() {
	f.number++
	f.prompt[len(f.prompt)/4] = f.number
	if f.held == 0 && f.ready {
		f.prompt[0] = f.number // otherwise the endpoint of the first would hold a head of the next
	}
	f.hashes = f.hashes[:0]
	if f.index != nil {
		f.hashes = prefix.AppendTokens(f.hashes, seed, f.prompt)
	}
}

// trained is what the models of predicted-latency learn from 6,000 responses.
var trained = sync.OnceValues(func() ([]byte, error) {
	config, err := preset.PredictedLatency(preset.PredictedLatencyConfig{Latency: predict.LatencyConfig{Synchronous: true}})
	if err != nil {
		return nil, err
	}
	f := &fleet{setting: setting{endpoints: 20, tokens: prompt}}
	config.Clock = func() time.Time { return time.Unix(1_000_000, 0).Add(f.ahead) }
	for i := range f.endpoints {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprintf("e%d", i)})
	}
	if f.router, err = endpick.New(config); err != nil {
		return nil, err
	}
	if err := f.train(rand.New(rand.NewPCG(1, 2)), 6000); err != nil {
		return nil, err
	}
	return config.Policy.Predictor.(*predict.Latency).AppendBinary(nil)
})

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the second collection empties pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
