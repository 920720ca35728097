package dialect

import "sync"

const (
	// tokensPerByte is the initial value: four bytes of English per token.
	tokensPerByte = 0.25
	// priorBytes is the weight of the initial value, in bytes of text.
	priorBytes = 1024
	// keep is the share of what was learned that remains after each response, so
	// that about the last 64 count.
	keep = 1 - 1.0/64
	// Of the first fewOutputs responses any length is believed, later as much as maxStretch
	// times the mean.
	fewOutputs, maxStretch = 16, 16
	// maxModels limits the models that are learned and, with maxName, the memory
	// of their names to half a megabyte.
	maxModels = 1024
)

// rates is what has been learned about one model. The zero value knows nothing.
type rates struct {
	prompts, contents ratio   // prompts have the overhead of chat templates
	output, outputs   float64 // tokens of a response, summed over requests, and their number
	used              uint64  // when, by the learner's clock
}

// ratio is of tokens to bytes.
type ratio struct{ tokens, bytes float64 }

func (r ratio) perByte() float64 {
	return (r.tokens + tokensPerByte*priorBytes) / (r.bytes + priorBytes)
}

func (r *ratio) learn(tokens, bytes int) {
	if plausible(tokens, bytes) {
		// A long text has no more votes than some pages.
		weight := min(1, maxVote/float64(bytes))
		r.tokens, r.bytes = r.tokens*keep+weight*float64(tokens), r.bytes*keep+weight*float64(bytes)
	}
}

const maxVote = 4 << 10 // bytes of one text

// plausible rejects what no tokenizer makes of a text: less than a token per 256 bytes, or more
// than two a byte, besides the template around it.
func plausible(tokens, bytes int) bool {
	return tokens > 0 && bytes > 0 && tokens <= 2*bytes+1024 && tokens >= bytes/256
}

// meanOutput is the mean length of a response in tokens; 0 if unknown.
func (r rates) meanOutput() float64 { return r.output / max(r.outputs, 1) }

// sample is what one response says about its model. Pairs with a zero say
// nothing.
type sample struct {
	promptTokens, promptBytes int
	outputTokens, outputBytes int
	responses                 int // responses that share outputTokens
}

// learner keeps the rates of each model. A model gets its place when a response
// has said something about it, and replaces the one that has not been used for
// longest. It is safe for concurrent use.
type learner struct {
	mu     sync.Mutex
	uses   uint64 // number of uses, as a clock
	models map[string]rates
}

func (l *learner) rates(model string) rates {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.models[model]
	if ok {
		l.use(model, &r)
	}
	return r
}

func (l *learner) use(model string, r *rates) {
	l.uses++
	r.used = l.uses
	l.models[model] = *r
}

// learn learns from the response to a successful request.
func (l *learner) learn(model string, s sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.models[model]
	r := before
	r.prompts.learn(s.promptTokens, s.promptBytes)
	r.contents.learn(s.outputTokens, s.outputBytes)
	if n := float64(s.responses); n > 0 && s.outputTokens > 0 {
		each := float64(s.outputTokens) / n
		if r.outputs >= fewOutputs { // then one request more changes the mean by a quarter at most
			each = min(each, maxStretch*r.meanOutput())
		}
		r.output, r.outputs = r.output*keep+each, r.outputs*keep+1
	}
	if r == before {
		return // it has said nothing
	}
	if l.models == nil {
		l.models = map[string]rates{}
	}
	l.use(model, &r)
	if len(l.models) > maxModels {
		oldest := model
		for name, other := range l.models {
			if other.used < l.models[oldest].used {
				oldest = name
			}
		}
		delete(l.models, oldest)
	}
}
