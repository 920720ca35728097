package engine

import "time"

// sequence is a request in the engine.
type sequence struct {
	id        uint64
	prompt    int64
	output    int64
	hashes    []uint64
	system    int // bounds of the kinds, in blocks
	user      int
	scheduled time.Duration // first time in a batch
	seen      bool          // it was in a batch
	hit       int64         // prompt tokens found in the cache the first time

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
	slot     int   // index in the heap of decoding sequences

	leaf    *run  // end of its path through the cache
	cached  int   // blocks on that path
	private int64 // its own blocks; while decoding only updated when it leaves

	prev, next *sequence
}

type state uint8

const (
	waiting state = iota
	prefilling
	decoding
)

// sequenceList is a doubly linked list of sequences; each is in one list at a
// time.
type sequenceList struct {
	first, last *sequence
	length      int
}

func (l *sequenceList) pushFront(s *sequence) { l.insert(s, nil, l.first) }
func (l *sequenceList) pushBack(s *sequence)  { l.insert(s, l.last, nil) }

func (l *sequenceList) insert(s, prev, next *sequence) {
	s.prev, s.next = prev, next
	if prev == nil {
		l.first = s
	} else {
		prev.next = s
	}
	if next == nil {
		l.last = s
	} else {
		next.prev = s
	}
	l.length++
}

func (l *sequenceList) remove(s *sequence) {
	if s.prev == nil {
		l.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		l.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
	l.length--
}

// finishHeap holds the decoding sequences, the one that ends first on top; equal
// ones are in order of admission.
type finishHeap []*sequence

func (h finishHeap) less(i, j int) bool {
	if h[i].finish != h[j].finish {
		return h[i].finish < h[j].finish
	}
	return h[i].order < h[j].order
}

func (h finishHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i, j
}

func (h *finishHeap) push(s *sequence) {
	s.slot = len(*h)
	*h = append(*h, s)
	h.up(s.slot)
}

func (h *finishHeap) remove(s *sequence) {
	i, last := s.slot, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h finishHeap) up(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h finishHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h.swap(i, child)
		i = child
	}
}
