package precise

import (
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/internal/blockhash"
)

// The most bytes that these take, with their places in maps: groups of eight
// places are at least 7/16 full, with one more byte for each place.
const (
	nodeWeight   = 72
	entryWeight  = 64
	setWeight    = 80
	memberWeight = 4
	pairWeight   = 64
	tailWeight   = 120
	scopeWeight  = 400
)

// slots are values by number, which are reused. Number 0 stands for none.
type slots[T any] struct {
	chunks [][]T
	free   []uint32
}

const chunkLen = 512

// grow adds a chunk. It must be called once before anything else.
func (s *slots[T]) grow() {
	first := uint32(len(s.chunks) * chunkLen)
	s.chunks = append(s.chunks, make([]T, chunkLen))
	for at := first + chunkLen - 1; at > first; at-- {
		s.free = append(s.free, at)
	}
	if first > 0 {
		s.free = append(s.free, first)
	}
}

func (s *slots[T]) at(number uint32) *T { return &s.chunks[number/chunkLen][number%chunkLen] }

func (s *slots[T]) take() uint32 {
	if len(s.free) == 0 {
		s.grow()
	}
	last := len(s.free) - 1
	number := s.free[last]
	s.free = s.free[:last]
	return number
}

func (s *slots[T]) give(number uint32) { s.free = append(s.free, number) }

// node is a block of a prompt, by its name in requests, and who holds it. Nodes stay as
// long as something refers to them: the next block, an engine's block, or a promise.
type node struct {
	key    uint64
	a, b   uint64 // the chain after the block, from which it continues; see scope
	parent uint32 // the previous block; 0: none
	set    uint32
	scope  uint32 // of the chain; 0: not known, because no event has given the block's tokens
	refs   uint32
}

// store has the known blocks, whoever holds them.
type store struct {
	slots[node]
	keys   map[uint64]uint32
	sets   sets
	scopes scopes
	bytes  int64 // the most memory that events may take now
}

func (s *store) init() {
	s.grow()
	s.keys = map[uint64]uint32{}
	s.sets.grow()
	s.sets.sums = map[uint64]uint32{0: 0}
	s.scopes.grow()
	s.scopes.numbers = map[prefix.Scope]uint32{}
}

// take returns the node of a block, with one more reference to it.
func (s *store) take(key uint64, parent uint32) uint32 {
	id, ok := s.keys[key]
	if !ok {
		id = s.slots.take()
		*s.at(id) = node{key: key, parent: parent}
		s.keys[key] = id
		s.bytes += nodeWeight
		if parent != 0 {
			s.at(parent).refs++
		}
	}
	s.at(id).refs++
	return id
}

// hold takes one more reference to a node, which may be none.
func (s *store) hold(id uint32) uint32 {
	s.at(id).refs++
	return id
}

// give returns a reference.
func (s *store) give(id uint32) {
	for id != 0 {
		n := s.at(id)
		if n.refs--; n.refs > 0 {
			return
		}
		delete(s.keys, n.key)
		s.bytes -= nodeWeight
		s.release(n.set)
		s.giveScope(n.scope)
		s.slots.give(id)
		id = n.parent
	}
}

// scopes are the scopes of chains in use.
type scopes struct {
	slots[scope]
	numbers map[prefix.Scope]uint32
}

type scope struct {
	of     prefix.Scope
	secret **blockhash.Secret
	refs   int
}

// takeScope returns the number of a scope, with one more reference to it.
func (s *store) takeScope(of prefix.Scope) uint32 {
	number, ok := s.scopes.numbers[of]
	if !ok {
		number = s.scopes.take()
		*s.scopes.at(number) = scope{of: of, secret: blockhash.SecretOf(of.Seed().Seed)}
		s.scopes.numbers[of] = number
		s.bytes += scopeWeight
	}
	s.scopes.at(number).refs++
	return number
}

func (s *store) holdScope(number uint32) uint32 {
	s.scopes.at(number).refs++
	return number
}

func (s *store) giveScope(number uint32) {
	if number == 0 {
		return
	}
	e := s.scopes.at(number)
	if e.refs--; e.refs == 0 {
		delete(s.scopes.numbers, e.of)
		*e = scope{}
		s.scopes.give(number)
		s.bytes -= scopeWeight
	}
}
