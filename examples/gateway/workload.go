package main

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// workload describes the traffic: conversations that start at random moments,
// each in one of several groups that share a long system prompt, each turn with
// the whole history before it.
type workload struct {
	duration       time.Duration // during which conversations start
	rate           float64       // requests a second, in the mean
	groups         int
	systemTokens   int // lengths are in tokens of the embedded servers, four bytes each
	questionTokens int
	outputTokens   int // in the mean; uniform, from half of it to half more
	turns          int
	think          time.Duration // mean pause before the next turn; exponential, at most five times this
	seed           uint64
}

// conversation is one user's.
type conversation struct {
	start  time.Duration
	system string
	turns  []turn
}

type turn struct {
	think    time.Duration // after the answer before; zero for the first turn
	question string
	output   int // tokens to generate
}

// longest is the most tokens that a conversation comes to, the few of its
// message headers included.
func (w *workload) longest() int {
	perTurn := w.questionTokens + w.outputTokens*3/2 + 16
	return w.systemTokens + w.turns*perTurn + 16
}

// conversations is the same list for the same workload, ordered by start.
func (w *workload) conversations() []conversation {
	random := rand.New(rand.NewPCG(w.seed, 0x656e647069636b))
	systems := make([]string, w.groups)
	for i := range systems {
		systems[i] = words(random, w.systemTokens)
	}
	var all []conversation
	between := float64(time.Second) * float64(w.turns) / w.rate
	for at := time.Duration(0); ; {
		at += time.Duration(random.ExpFloat64() * between)
		if at >= w.duration {
			return all
		}
		c := conversation{start: at, system: systems[random.IntN(w.groups)]}
		for i := range w.turns {
			t := turn{question: words(random, w.questionTokens), output: (w.outputTokens+1)/2 + random.IntN(w.outputTokens+1)}
			if i > 0 {
				t.think = time.Duration(min(random.ExpFloat64(), 5) * float64(w.think))
			}
			c.turns = append(c.turns, t)
		}
		all = append(all, c)
	}
}

// words is text of so many tokens, of four bytes each as the servers count.
func words(random *rand.Rand, tokens int) string {
	var b strings.Builder
	for range tokens {
		b.WriteByte(' ')
		for range 3 {
			b.WriteByte('a' + byte(random.IntN(26)))
		}
	}
	return b.String()
}

// cold returns the conversations with system prompts of their own: no server has
// seen the first block of one, whatever ran before.
func cold(conversations []conversation) []conversation {
	head := strconv.FormatUint(rand.Uint64(), 36)
	all := slices.Clone(conversations)
	for i := range all {
		all[i].system = head + all[i].system
	}
	return all
}
