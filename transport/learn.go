package transport

import "sync"

const (
	// tokensPerByte is where learning starts: four bytes of English a token.
	tokensPerByte = 0.25
	// priorBytes is how much text that first guess is worth.
	priorBytes = 1024
	// keep is the share of what was learned that stays at each response, so
	// that about the last 64 count.
	keep = 1 - 1.0/64
	// maxModels bounds the models that are learned. The names come from
	// responses to requests that an engine has served, not from clients alone.
	maxModels = 4096
)

// rates is what has been learned of one model. The zero value knows nothing.
type rates struct {
	promptTokens, promptBytes float64
	outputTokens, outputBytes float64
	output, outputs           float64 // tokens of all responses, and how many
}

// prompt is the tokens of one byte of prompt. The overhead of chat templates is
// in it.
func (r rates) prompt() float64 {
	return (r.promptTokens + tokensPerByte*priorBytes) / (r.promptBytes + priorBytes)
}

// content is the tokens of one byte of response.
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

// learner keeps the rates of each model. It is safe for concurrent use.
type learner struct {
	mu     sync.RWMutex
	models map[string]rates
}

func (l *learner) rates(model string) rates {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.models[model]
}

// sample is what one response says of its model. Pairs in which either number
// is zero say nothing.
type sample struct {
	promptTokens, promptBytes int
	outputTokens, outputBytes int
	responses                 int // among which outputTokens are divided
}

func (l *learner) learn(model string, s sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, known := l.models[model]
	if !known && len(l.models) >= maxModels {
		return
	}
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
	if l.models == nil {
		l.models = map[string]rates{}
	}
	l.models[model] = r
}

// plausible keeps out what no tokenizer makes of a text: less than a token in
// 256 bytes. The upper bound leaves room for the template around a short one.
func plausible(tokens, bytes int) bool {
	return tokens > 0 && bytes > 0 && tokens <= 64*bytes && tokens >= bytes/256
}
