package engine

import "slices"

// sequence is a request in the engine.
type sequence struct {
	id     uint64
	prompt int64
	output int64
	hashes []uint64
	seen   bool  // it was in a batch
	hit    int64 // prompt tokens found in the cache the first time

	state  state
	order  int64 // of admission; later ones are preempted first
	target int64 // tokens that must be in the cache before the next one can be generated
	chunk  int64 // prompt tokens of the current step

	// While decoding, these are the values when it joined; the engine's step counter
	// gives the rest.
	produced int64 // tokens generated
	computed int64 // tokens in the KV cache
	joined   int64
	finish   int64 // value of the step counter after its last token

	leaf    *run  // end of its path through the cache
	cached  int   // blocks on that path
	private int64 // its own blocks; while decoding only updated when it leaves
}

type state uint8

const (
	waiting state = iota
	prefilling
	decoding
)

// without removes a sequence from a list that has it.
func without(list []*sequence, s *sequence) []*sequence {
	i := slices.Index(list, s)
	return slices.Delete(list, i, i+1)
}

// endsBefore orders decoding sequences by their end; equal ones are in order of admission.
func endsBefore(a, b *sequence) bool {
	return a.finish < b.finish || a.finish == b.finish && a.order < b.order
}
