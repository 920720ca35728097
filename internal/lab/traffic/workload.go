package traffic

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Workload describes the traffic: conversations that start at random times,
// each in one of several groups with a long shared system prompt, each turn
// with the whole history before it.
type Workload struct {
	Duration       time.Duration // during which conversations start
	Rate           float64       // mean requests per second
	Groups         int
	SystemTokens   int // lengths are in tokens of the embedded servers, four bytes each
	QuestionTokens int
	OutputTokens   int // mean; uniform, from half of it to half more
	Turns          int
	Think          time.Duration // mean pause before the next turn; exponential, at most five times this
	Seed           uint64
}

// Conversation is one user's.
type Conversation struct {
	start  time.Duration
	System string
	Turns  []turn
}

type turn struct {
	think    time.Duration // after the previous answer; zero for the first turn
	Question string
	output   int // tokens to generate
}

// Longest is the most tokens of a conversation, including those of message
// headers.
func (w *Workload) Longest() int {
	perTurn := w.QuestionTokens + w.OutputTokens*3/2 + 16
	return w.SystemTokens + w.Turns*perTurn + 16
}

// Conversations returns the same list for the same workload, ordered by start.
func (w *Workload) Conversations() []Conversation {
	random := rand.New(rand.NewPCG(w.Seed, 0x656e647069636b))
	systems := make([]string, w.Groups)
	for i := range systems {
		systems[i] = Words(random, w.SystemTokens)
	}
	var all []Conversation
	between := float64(time.Second) * float64(w.Turns) / w.Rate
	for at := time.Duration(0); ; {
		at += time.Duration(random.ExpFloat64() * between)
		if at >= w.Duration {
			return all
		}
		c := Conversation{start: at, System: systems[random.IntN(w.Groups)]}
		for i := range w.Turns {
			t := turn{Question: Words(random, w.QuestionTokens), output: (w.OutputTokens+1)/2 + random.IntN(w.OutputTokens+1)}
			if i > 0 {
				t.think = time.Duration(min(random.ExpFloat64(), 5) * float64(w.Think))
			}
			c.Turns = append(c.Turns, t)
		}
		all = append(all, c)
	}
}

// Words returns text of so many tokens, of four bytes each.
func Words(random *rand.Rand, tokens int) string {
	var b strings.Builder
	for range tokens {
		b.WriteByte(' ')
		for range 3 {
			b.WriteByte('a' + byte(random.IntN(26)))
		}
	}
	return b.String()
}

// Cold returns the conversations with new system prompts, so that no server has
// seen the first block of any, whatever ran before.
func Cold(conversations []Conversation) []Conversation {
	head := strconv.FormatUint(rand.Uint64(), 36)
	all := slices.Clone(conversations)
	for i := range all {
		all[i].System = head + all[i].System
	}
	return all
}
