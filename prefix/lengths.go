package prefix

// lengths learns how much longer an endpoint's prompts are by the host's count than by the
// engine's. A host without a tokenizer guesses, and the size of a KV cache is in the engine's
// tokens: where prompts seem half as long again as they are, the cache holds half as many blocks
// again as it seems to. The last thousand or so prompts count, by their length.
//
// What makes prompts seem longer than they are only makes an endpoint be trusted with more
// blocks, at most twice as many.
type lengths struct{ host, engine float64 }

const (
	lengthsFade  = 1 - 1./1024
	mostOverrate = 2
)

// add records a prompt's length by the host's count and by the engine's, 0 if it is not known.
func (l *lengths) add(host, engine int) {
	if host <= 0 || engine <= 0 {
		return
	}
	l.host = float64(l.host*lengthsFade) + float64(host)
	l.engine = float64(l.engine*lengthsFade) + float64(engine)
}

// ratio is 1 if nothing is known, or if prompts seem too short: then too many blocks are expected,
// which the engine's reports correct.
func (l *lengths) ratio() float64 {
	if l.engine == 0 {
		return 1
	}
	return min(max(l.host/l.engine, 1), mostOverrate)
}
