package engine_test

import (
	"fmt"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// A virtual clock that jumps from event to event.
func ExampleEngine() {
	e, err := engine.New(engine.Config{Profile: engine.Profile{Name: "10 ms a step", StepMicros: 10_000}})
	if err != nil {
		panic(err)
	}
	prompt := []uint64{11, 12, 13, 14} // four full blocks of 16 tokens
	for id := range uint64(2) {
		if err := e.Submit(time.Duration(id)*time.Second, engine.Request{ID: id, PromptTokens: 70, OutputTokens: 3, Blocks: prompt}); err != nil {
			panic(err)
		}
		for at, ok := e.NextEvent(); ok; at, ok = e.NextEvent() {
			for _, event := range e.Advance(at, nil) {
				fmt.Printf("%v: request %d: %v, %d tokens of its prompt from the cache\n", event.At, event.ID, event.Kind, event.CachedTokens)
			}
		}
	}
	// Output:
	// 10ms: request 0: first token, 0 tokens of its prompt from the cache
	// 30ms: request 0: completed, 0 tokens of its prompt from the cache
	// 1.01s: request 1: first token, 64 tokens of its prompt from the cache
	// 1.03s: request 1: completed, 64 tokens of its prompt from the cache
}
