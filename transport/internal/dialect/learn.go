package dialect

import (
	"math"
	"sync"
	"sync/atomic"
)

const (
	// tokensPerByte is the initial value: four bytes of English per token.
	tokensPerByte = 0.25
	// priorBytes is the weight of the initial value, in bytes of text.
	priorBytes = 1024
	// keep is the share of what was learned that remains after each response, so
	// that about the last 64 count.
	keep = 1 - 1.0/64
	// maxModels limits the models that are learned and, with maxName, the memory
	// of their names to half a megabyte.
	maxModels = 1024
)

// rates is what has been learned about one model. The zero value knows nothing.
type rates struct {
	promptTokens, promptBytes float64
	outputTokens, outputBytes float64
	output, outputs           float64 // tokens of all responses, and their number
}

// prompt is the number of tokens per byte of prompt, including the overhead of
// chat templates.
func (r rates) prompt() float64 {
	return (r.promptTokens + tokensPerByte*priorBytes) / (r.promptBytes + priorBytes)
}

// content is the number of tokens per byte of response.
func (r rates) content() float64 {
	return (r.outputTokens + tokensPerByte*priorBytes) / (r.outputBytes + priorBytes)
}

// meanOutput is the mean length of a response in tokens; 0 if unknown.
func (r rates) meanOutput() float64 {
	if r.outputs == 0 {
		return 0
	}
	return r.output / r.outputs
}

// learner keeps the rates of each model. A model gets its place when a response
// has said something about it, and replaces the one that has not been used for
// longest. It is safe for concurrent use.
type learner struct {
	uses atomic.Uint64 // number of uses, as a clock

	mu     sync.RWMutex
	models map[string]*knownModel
}

type knownModel struct {
	rates rates
	used  atomic.Uint64
}

func (l *learner) rates(model string) rates {
	l.mu.RLock()
	defer l.mu.RUnlock()
	m := l.models[model]
	if m == nil {
		return rates{}
	}
	m.used.Store(l.uses.Add(1))
	return m.rates
}

// sample is what one response says about its model. Pairs with a zero say
// nothing.
type sample struct {
	promptTokens, promptBytes int
	outputTokens, outputBytes int
	responses                 int // responses that share outputTokens
}

// learn learns from the response to a successful request.
func (l *learner) learn(model string, s sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var r rates
	m := l.models[model]
	if m != nil {
		r = m.rates
	}
	before := r
	if plausible(s.promptTokens, s.promptBytes) {
		r.promptTokens = r.promptTokens*keep + float64(s.promptTokens)
		r.promptBytes = r.promptBytes*keep + float64(s.promptBytes)
	}
	if plausible(s.outputTokens, s.outputBytes) {
		r.outputTokens = r.outputTokens*keep + float64(s.outputTokens)
		r.outputBytes = r.outputBytes*keep + float64(s.outputBytes)
	}
	if s.outputTokens > 0 && s.responses > 0 {
		r.output = r.output*keep + float64(s.outputTokens)
		r.outputs = r.outputs*keep + float64(s.responses)
	}
	if r == before {
		return // it has said nothing
	}
	if m == nil {
		m = l.admit(model)
	}
	m.rates = r
	m.used.Store(l.uses.Add(1))
}

// admit makes a place for a model; l.mu is held.
func (l *learner) admit(model string) *knownModel {
	if l.models == nil {
		l.models = map[string]*knownModel{}
	}
	if len(l.models) >= maxModels {
		var oldest string
		since := uint64(math.MaxUint64)
		for name, m := range l.models {
			if used := m.used.Load(); used < since {
				oldest, since = name, used
			}
		}
		delete(l.models, oldest)
	}
	m := new(knownModel)
	l.models[model] = m
	return m
}

// plausible rejects what no tokenizer makes of a text: less than a token per
// 256 bytes. The upper limit leaves room for the template around a short text.
func plausible(tokens, bytes int) bool {
	return tokens > 0 && bytes > 0 && tokens <= 64*bytes && tokens >= bytes/256
}
