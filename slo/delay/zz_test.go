package delay

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/endpick/endpick"
)

func BenchmarkNarrow(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		for _, kind := range []string{"random", "nowait", "same"} {
			m, _ := New(Config{})
			var cs []endpick.Candidate
			chance := rand.New(rand.NewPCG(1, 2))
			for i := range n {
				c := endpick.Candidate{Endpoint: &endpick.Endpoint{ID: fmt.Sprint(i)}, Ref: endpick.Ref{Slot: uint32(i), Generation: 1}, Waiting: float64(chance.IntN(8)), Running: float64(chance.IntN(64)), KVUsage: chance.Float64(), Reported: endpick.KVUsageSignal}
				if i < n/10 {
					c.PrefixTokens = 4096
				}
				if kind == "nowait" {
					c.Waiting = 0
				}
				if kind == "same" {
					c.Waiting, c.Running, c.PrefixTokens = 3, 20, 0
					if i == 0 {
						c.Running = 19
					}
				}
				cs = append(cs, c)
			}
			req := endpick.Request{InputTokens: 16384, Stream: true, Blocks: make([]uint64, 1024)}.At(time.Unix(1e9, 0), 1, 1)
			m.meet(cs)
			j := m.begin(&req, cs)
			b.Run(fmt.Sprint("survey/", kind, "/", n), func(b *testing.B) {
				for b.Loop() {
					j.turns = j.turns[:0]
					j.survey()
				}
			})
			b.Run(fmt.Sprint("narrow/", kind, "/", n), func(b *testing.B) {
				for b.Loop() {
					j.narrow()
				}
			})
			j.end()
		}
	}
}

func TestZZListed(t *testing.T) {
	m, _ := New(Config{})
	chance := rand.New(rand.NewPCG(1, 2))
	var cs []endpick.Candidate
	for i := range 10000 {
		cs = append(cs, endpick.Candidate{Endpoint: &endpick.Endpoint{ID: fmt.Sprint(i)}, Ref: endpick.Ref{Slot: uint32(i), Generation: 1}, Running: float64(chance.IntN(64)) + chance.Float64()})
	}
	req := endpick.Request{InputTokens: 16384, Stream: true}.At(time.Unix(1e9, 0), 1, 1)
	m.Filter(&req, cs)
	j := m.begin(&req, cs)
	j.survey()
	j.narrow()
	n := 0
	for _, p := range j.possible {
		if p.cost == p.cost {
			n++
		}
	}
	fmt.Println(len(j.possible), n)
}
