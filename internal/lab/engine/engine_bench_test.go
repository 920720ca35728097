package engine

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"
)

// conversations feeds one engine with scenario A of the predicted-latency paper at
// a tenth of a fleet's rate: a system prompt of 1,000 tokens shared by groups,
// questions of 30 and answers of 1,000 tokens, five turns, so that prompts grow.
// It returns the number of requests completed.
func conversations(e *Engine, turns int, perSecond float64) int {
	random := rand.New(rand.NewPCG(1, 2))
	const output = 1000
	type session struct {
		hashes []uint64
		turn   int
	}
	var sessions []session
	var arrivals timeline
	now := time.Duration(0)
	for id := range uint64(turns / 5) {
		now += time.Duration(random.ExpFloat64() / perSecond * 5 * float64(time.Second))
		hashes := chain(id+100, (1000+5*1030)/16)
		copy(hashes, chain(id%6, 62))
		sessions = append(sessions, session{hashes: hashes})
		arrivals = append(arrivals, arrival{now, id})
	}
	heap.Init(&arrivals)
	var events []Event
	completed := 0
	for {
		at, ok := e.NextEvent()
		if len(arrivals) > 0 && (!ok || arrivals[0].at <= at) {
			a := heap.Pop(&arrivals).(arrival)
			s := &sessions[a.id]
			prompt := 1000 + 30 + s.turn*1030
			if err := e.Submit(a.at, Request{
				ID: a.id, PromptTokens: prompt, OutputTokens: output,
				Blocks: s.hashes[:(prompt+output)/16], SystemTokens: 1000, UserTokens: 100_000,
			}); err != nil {
				panic(err)
			}
			continue
		}
		if !ok {
			return completed
		}
		events = e.Advance(at, events[:0])
		for _, event := range events {
			if event.Kind == Completed {
				completed++
				if s := &sessions[event.ID]; s.turn < 4 {
					s.turn++
					heap.Push(&arrivals, arrival{event.At + 5*time.Second, event.ID})
				}
			}
		}
	}
}

type arrival struct {
	at time.Duration
	id uint64
}

type timeline []arrival

func (t timeline) Len() int           { return len(t) }
func (t timeline) Less(i, j int) bool { return t[i].at < t[j].at }
func (t timeline) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timeline) Push(a any)        { *t = append(*t, a.(arrival)) }
func (t *timeline) Pop() any          { a := (*t)[len(*t)-1]; *t = (*t)[:len(*t)-1]; return a }

func BenchmarkConversations(b *testing.B) {
	for _, load := range []struct {
		name string
		rate float64
	}{{"rate=2", 2}, {"rate=6", 6}, {"rate=12", 12}} {
		b.Run(load.name, func(b *testing.B) {
			done := 0
			for b.Loop() {
				e := mustNew(b, Config{})
				done += conversations(e, 10_000, load.rate)
				t := e.Totals()
				b.ReportMetric(float64(t.Preemptions), "preemptions")
				b.ReportMetric(float64(t.PrefixHitTokens)/float64(t.PrefixQueryTokens), "hit")
				b.ReportMetric(float64(t.Steps), "steps")
			}
			b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
