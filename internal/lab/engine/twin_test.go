package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// twin is the model server of the package comment, step by step, token by token and block by block, on maps and slices.
type twin struct {
	cfg      Config
	costs    costs
	at       picos // end of the step in flight, or start of the next one
	inFlight bool
	waiting  []*twinSequence
	running  []*twinSequence
	refs     map[uint64]int // cached blocks
	idle     []uint64       // cached blocks with no references, least recently used first
	free     int
	totals   Totals
	events   []Event
}

type twinSequence struct {
	Request
	blocks   []uint64 // 0 is a private block
	shared   int      // leading blocks that are cached
	produced int
	computed int
	target   int // of the prefill; decoding if computed ≥ target
	chunk    int
	hit      int
	seen     bool
}

func (w *twin) submit(now time.Duration, r Request) {
	w.run(picos(now)*1000, false)
	if !w.inFlight && len(w.waiting)+len(w.running) == 0 {
		w.at = picos(now) * 1000
	}
	w.waiting = append(w.waiting, &twinSequence{Request: r, target: r.PromptTokens})
}

func (w *twin) run(until picos, inclusive bool) {
	for w.at < until || inclusive && w.at == until {
		switch {
		case w.inFlight:
			w.end()
		case len(w.waiting)+len(w.running) > 0:
			w.begin()
		default:
			return
		}
	}
}

func (w *twin) begin() {
	preempted := false
	if w.cfg.PrefillFirst {
		preempted = w.fill(false, true, false)
	}
	if !slices.ContainsFunc(w.running, func(s *twinSequence) bool { return s.chunk > 0 }) {
		w.fill(true, !w.cfg.PrefillFirst, preempted)
	}
	var decodes, prefills, tokens, context, pairs int
	for _, s := range w.running {
		tokens += s.chunk
		if s.computed >= s.target {
			decodes += s.chunk
			context += s.chunk * s.computed
		} else if s.chunk > 0 {
			prefills++
			for i := range s.chunk {
				pairs += s.computed + i + 1
			}
		}
	}
	w.inFlight = true
	w.at += w.costs.step(int64(tokens), int64(decodes+prefills), int64(context), int64(pairs))
}

// fill makes up a batch of decodes, of prompts, or of both.
func (w *twin) fill(decodes, prompts, preempted bool) bool {
	size := w.cfg.BlockTokens
	budget := w.cfg.MaxBatchedTokens
	for i := 0; i < len(w.running); i++ {
		s := w.running[i]
		chunk := 1
		if s.computed < s.target {
			chunk = min(s.target-s.computed, budget)
		}
		if s.computed < s.target && !prompts || s.computed >= s.target && !decodes {
			continue
		}
		for need := blocksFor(s.computed+chunk, size) - len(s.blocks); need > w.free+len(w.idle); {
			preempted = true
			last := w.running[len(w.running)-1]
			w.running = w.running[:len(w.running)-1]
			w.vacate(last)
			w.waiting = slices.Insert(w.waiting, 0, last)
			w.totals.Preemptions++
			w.emit(Preempted, last)
			if last == s {
				break
			}
		}
		if i == len(w.running) {
			break
		}
		w.grow(s, chunk)
		budget -= chunk
	}
	for prompts && !preempted && budget > 0 && len(w.waiting) > 0 && len(w.running) < w.cfg.MaxSequences {
		s := w.waiting[0]
		cached, idle := 0, 0
		for cached < len(s.Blocks) && cached < (s.target-1)/size {
			refs, ok := w.refs[s.Blocks[cached]]
			if !ok {
				break
			}
			if refs == 0 {
				idle++
			}
			cached++
		}
		chunk := min(s.target-cached*size, budget)
		if blocksFor(cached*size+chunk, size)-cached > w.free+len(w.idle)-idle {
			break
		}
		w.waiting = w.waiting[1:]
		w.running = append(w.running, s)
		for _, hash := range s.Blocks[:cached] {
			w.reference(hash)
			s.blocks = append(s.blocks, hash)
		}
		s.shared, s.computed = cached, cached*size
		if !s.seen {
			s.seen, s.hit = true, s.computed
			w.totals.PrefixHitTokens += int64(s.hit)
			w.totals.PrefixQueryTokens += int64(s.PromptTokens)
		}
		w.grow(s, chunk)
		budget -= chunk
	}
	return preempted
}

func (w *twin) grow(s *twinSequence, chunk int) {
	s.chunk = chunk
	for len(s.blocks) < blocksFor(s.computed+chunk, w.cfg.BlockTokens) {
		w.take()
		s.blocks = append(s.blocks, 0)
	}
	if s.computed < s.target {
		w.register(s, s.computed+chunk)
	}
}

func (w *twin) take() {
	if w.free > 0 {
		w.free--
		return
	}
	hash := w.idle[0]
	w.idle = w.idle[1:]
	delete(w.refs, hash)
	w.totals.Evicted++
}

func (w *twin) register(s *twinSequence, tokens int) {
	for ; s.shared < len(s.Blocks) && s.shared < tokens/w.cfg.BlockTokens; s.shared++ {
		hash := s.Blocks[s.shared]
		if _, ok := w.refs[hash]; ok {
			w.free++
		} else {
			w.refs[hash] = 0
		}
		w.reference(hash)
		s.blocks[s.shared] = hash
	}
}

func (w *twin) reference(hash uint64) {
	if i := slices.Index(w.idle, hash); i >= 0 {
		w.idle = slices.Delete(w.idle, i, i+1)
	}
	w.refs[hash]++
}

func (w *twin) vacate(s *twinSequence) {
	w.register(s, s.computed)
	for _, hash := range slices.Backward(s.blocks) {
		if hash == 0 {
			w.free++
			continue
		}
		if w.refs[hash]--; w.refs[hash] == 0 {
			w.idle = append(w.idle, hash)
		}
	}
	s.blocks, s.shared, s.computed, s.chunk = nil, 0, 0, 0
	s.target = s.PromptTokens + s.produced
}

func (w *twin) end() {
	w.inFlight = false
	var done []*twinSequence
	for _, s := range w.running {
		if s.chunk == 0 {
			continue
		}
		prefill := s.computed < s.target
		if prefill {
			w.totals.PrefillTokens += int64(s.chunk)
		}
		s.computed += s.chunk
		s.chunk = 0
		if s.computed < s.target {
			continue
		}
		s.produced++
		w.totals.OutputTokens++
		if prefill && s.produced == 1 {
			w.emit(FirstToken, s)
		}
		if s.produced == s.OutputTokens {
			w.vacate(s)
			w.totals.Completed++
			w.emit(Completed, s)
			done = append(done, s)
		}
	}
	w.running = slices.DeleteFunc(w.running, func(s *twinSequence) bool { return slices.Contains(done, s) })
}

func (w *twin) emit(kind EventKind, s *twinSequence) {
	w.events = append(w.events, Event{kind, s.ID, w.at.up(), s.hit, s.produced})
}

func (w *twin) abort(now time.Duration, id uint64) {
	w.run(picos(now)*1000, false)
	for _, list := range []*[]*twinSequence{&w.running, &w.waiting} {
		if i := slices.IndexFunc(*list, func(s *twinSequence) bool { return s.ID == id }); i >= 0 {
			w.vacate((*list)[i])
			*list = slices.Delete(*list, i, i+1)
		}
	}
}

func (w *twin) held() (n int) {
	for _, s := range w.running {
		n += len(s.blocks) - s.shared
	}
	return n
}

func blocksFor(tokens, size int) int { return (tokens + size - 1) / size }

// cached lists the engine's cached blocks with their references, and the idle
// ones in the order in which they would be evicted.
func (e *Engine) cached() (refs map[uint64]int, idle []uint64) {
	refs = map[uint64]int{}
	for _, r := range e.cache.heads {
		for _, hash := range r.hashes {
			refs[hash] = r.refs
		}
	}
	for r := e.cache.ring.next; r != e.cache.ring; r = r.next {
		for _, hash := range slices.Backward(r.hashes) {
			idle = append(idle, hash)
		}
	}
	return refs, idle
}

// private counts the blocks of the engine's sequences that are not cached.
func (e *Engine) private() (n int64) {
	for _, s := range e.running {
		if s.state == decoding {
			n += e.blocksOf(s.computed+e.allocated-s.joined) - int64(s.cached)
		} else {
			n += s.private
		}
	}
	return n
}

// patterned returns hashes of n blocks whose contents repeat the lowest three
// bits of pattern, so that few patterns share heads of many lengths.
func patterned(pattern, n int) []uint64 {
	hashes, hash := make([]uint64, n), uint64(1)
	for i := range hashes {
		hash = hash*0x9e3779b97f4a7c15 + uint64(pattern>>(i%3)&1) + 1
		hash ^= hash >> 31
		hashes[i] = hash
	}
	return hashes
}

// equalSlices treats an empty slice and nil as equal.
func equalSlices[E any](t *rapid.T, want, got []E) {
	if len(want)+len(got) > 0 {
		require.Equal(t, want, got)
	}
}

// The engine does exactly what the twin does, to the picosecond: same events,
// same loads, same cached blocks in the same order of eviction.
func TestEngineMatchesTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			Profile: Profile{
				Name:       "drawn",
				StepMicros: rapid.Float64Range(0.001, 3).Draw(t, "step"), WeightMicros: rapid.Float64Range(0, 3).Draw(t, "weight"),
				TokenMicros: rapid.Float64Range(0, 1).Draw(t, "token"), SequenceMicros: rapid.Float64Range(0, 1).Draw(t, "sequence"),
				ContextNanos: rapid.Float64Range(0, 50).Draw(t, "context"), PairNanos: rapid.Float64Range(0, 5).Draw(t, "pair"),
			},
			BlockTokens:  rapid.IntRange(1, 5).Draw(t, "block"),
			Blocks:       rapid.IntRange(4, 60).Draw(t, "blocks"),
			MaxSequences: rapid.IntRange(1, 6).Draw(t, "sequences"),
			PrefillFirst: rapid.Bool().Draw(t, "prefill first"),
		}
		cfg.MaxBatchedTokens = cfg.MaxSequences + rapid.IntRange(0, 30).Draw(t, "budget")
		e := rig.Must(New(cfg))
		w := &twin{cfg: cfg, costs: newCosts(cfg.Profile), refs: map[uint64]int{}, free: cfg.Blocks}
		var now time.Duration
		var got []Event
		id := uint64(0)

		check := func() {
			load := e.Load(now)
			w.run(picos(now)*1000, false)
			equalSlices(t, w.events[:min(len(got), len(w.events))], got)
			require.Equal(t, len(w.waiting), load.Waiting, "waiting")
			require.Equal(t, len(w.running), load.Running, "running")
			require.Equal(t, int64(w.free), e.cache.free, "free blocks")
			refs, idle := e.cached()
			require.Equal(t, w.refs, refs)
			equalSlices(t, w.idle, idle)
			require.Equal(t, int64(w.held()), e.private(), "private blocks")
			require.Equal(t, int64(cfg.Blocks), e.cache.free+int64(len(refs))+e.private(), "blocks balance")
			totals := e.Totals()
			totals.Busy, totals.PrefillBusy = 0, 0
			require.Equal(t, w.totals, totals)
		}
		pass := func(t *rapid.T) { now += time.Duration(rapid.Int64Range(0, 100_000).Draw(t, "ns")) }
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				size := cfg.BlockTokens
				pass(t)
				r := Request{ID: id, PromptTokens: rapid.IntRange(1, cfg.Blocks*size).Draw(t, "prompt"), OutputTokens: rapid.IntRange(1, 40).Draw(t, "output")}
				full := (r.PromptTokens + r.OutputTokens) / size
				r.Blocks = patterned(rapid.IntRange(0, 7).Draw(t, "pattern"), rapid.IntRange(0, full).Draw(t, "hashed"))
				err := e.Submit(now, r)
				if r.PromptTokens+r.OutputTokens-1 > cfg.Blocks*size {
					require.ErrorAs(t, err, new(*TooLongError))
					return
				}
				require.NoError(t, err)
				w.submit(now, r)
				id++
			},
			"wait": func(t *rapid.T) {
				pass(t)
				check()
			},
			"advance": func(t *rapid.T) {
				now += time.Duration(rapid.Int64Range(0, 30_000).Draw(t, "ns"))
				got = e.Advance(now, got)
				w.run(picos(now)*1000, true)
				equalSlices(t, w.events, got)
				require.True(t, e.phase == busy || len(e.waiting)+len(e.running) == 0, "work conserving")
			},
			"jump": func(t *rapid.T) {
				at, ok := e.NextEvent()
				require.Equal(t, w.inFlight || len(w.waiting)+len(w.running) > 0 || len(w.events) > len(got), ok)
				if ok {
					now = max(now, at)
					got = e.Advance(now, got)
					w.run(picos(now)*1000, true)
					equalSlices(t, w.events, got)
				}
			},
			"step": func(t *rapid.T) {
				got = e.Advance(now, got)
				if at, ok := e.StepEnd(); ok {
					now = max(now, at)
					got = e.Advance(now, got)
				}
				w.run(picos(now)*1000, true)
				var running, wanted []int
				e.Running(func(id uint64, tokens int) { running = append(running, int(id), tokens) })
				for _, s := range w.running {
					wanted = append(wanted, int(s.ID), s.produced)
				}
				equalSlices(t, wanted, running)
			},
			"abort": func(t *rapid.T) {
				who := rapid.Uint64Range(0, id).Draw(t, "who")
				pass(t)
				if e.Abort(now, who) {
					w.abort(now, who)
				}
			},
			"": func(t *rapid.T) { check() },
		})
		for at, ok := e.NextEvent(); ok; at, ok = e.NextEvent() {
			now = max(now, at)
			got = e.Advance(now, got)
		}
		now += time.Second
		w.run(picos(now)*1000, true)
		equalSlices(t, w.events, got)
		check()
		require.Zero(t, e.Load(now).KVUsage)
	})
}
