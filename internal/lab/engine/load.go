package engine

import "time"

// Load is the state of an engine at a moment.
type Load struct {
	Waiting int // requests in the queue
	Running int // requests in the batch
	// KVUsage is the share of blocks that sequences hold, in [0, 1]; idle cached
	// blocks do not count, as in vLLM's kv_cache_usage_perc.
	KVUsage float64
}

// Totals are counts since the engine was made.
type Totals struct {
	Completed         int64
	PrefixQueryTokens int64 // prompt tokens of requests that were in a batch
	PrefixHitTokens   int64 // those found in the cache
	PrefillTokens     int64 // prompt tokens computed, including those after preemptions
	OutputTokens      int64 // tokens generated
	Preemptions       int64
	Busy              time.Duration // time with a batch running
	PrefillBusy       time.Duration // the additional time of batches due to their prompt chunks
	Evicted           int64         // cached blocks that made room for others

	busy, prefillBusy picos
}

// Load returns the state just before now.
func (e *Engine) Load(now time.Duration) Load {
	e.catchUp(now, false)
	return Load{
		Waiting: len(e.waiting),
		Running: len(e.running),
		KVUsage: 1 - float64(e.cache.available())/float64(e.cache.blocks),
	}
}

// Totals returns the counts as of the latest call with a time.
func (e *Engine) Totals() Totals {
	t := e.totals
	t.Busy, t.PrefillBusy = t.busy.up(), t.prefillBusy.up()
	t.busy, t.prefillBusy = 0, 0
	t.Evicted = e.cache.evicted
	return t
}
