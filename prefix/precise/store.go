package precise

import (
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/internal/blockhash"
)

// node is a block of a prompt, by its name in requests, and who holds it. Nodes are
// kept as long as something refers to them: the next block, an engine's block, or a
// request that was just routed.
type node struct {
	key    uint64
	a, b   uint64 // the chain after the block, from which it continues; see scope
	parent uint32 // the previous block; 0: none
	set    uint32
	scope  uint32 // of the chain; 0: not known, because no event has given the block's tokens
	refs   uint32
}

// The most bytes that these take, with their places in maps: groups of eight
// places are at least 7/16 full, with one more byte for each place.
const (
	nodeWeight  = 72
	entryWeight = 64
	setWeight   = 80
	pairWeight  = 64
	tailWeight  = 88
	scopeWeight = 400
)

// store has the known blocks, whoever holds them.
type store struct {
	chunks [][]node
	free   []uint32
	keys   map[uint64]uint32
	sets   sets
	scopes scopes
}

const chunkLen = 512

func (s *store) init() {
	s.keys = map[uint64]uint32{}
	s.chunks = [][]node{make([]node, chunkLen)}
	for i := uint32(chunkLen - 1); i > 0; i-- {
		s.free = append(s.free, i)
	}
	s.sets.init()
	s.scopes.init()
}

func (s *store) at(id uint32) *node { return &s.chunks[id/chunkLen][id%chunkLen] }

func (s *store) weight() int64 {
	return int64(len(s.keys))*nodeWeight + int64(s.sets.live)*setWeight + int64(s.sets.total)*4 + int64(len(s.scopes.numbers))*scopeWeight
}

// take returns the node of a block, with one more reference to it.
func (s *store) take(key uint64, parent uint32) uint32 {
	id, ok := s.keys[key]
	if !ok {
		if len(s.free) == 0 {
			first := uint32(len(s.chunks) * chunkLen)
			s.chunks = append(s.chunks, make([]node, chunkLen))
			for i := uint32(chunkLen); i > 0; i-- {
				s.free = append(s.free, first+i-1)
			}
		}
		id = s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		*s.at(id) = node{key: key, parent: parent}
		s.keys[key] = id
		if parent != 0 {
			s.at(parent).refs++
		}
	}
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
		s.sets.release(n.set)
		s.scopes.give(n.scope)
		s.free = append(s.free, id)
		id, n.parent = n.parent, 0
	}
}

// set sets or clears bits of one feed for a block.
func (s *store) set(id, feed, bits uint32, there bool) {
	n := s.at(id)
	mask := s.sets.mask(n.set, feed)
	if there {
		mask |= bits
	} else {
		mask &^= bits
	}
	n.set = s.sets.change(n.set, feed, mask)
}

// scopes are the scopes of chains in use, numbered from 1.
type scopes struct {
	all     []scope
	free    []uint32
	numbers map[prefix.Scope]uint32
}

type scope struct {
	of     prefix.Scope
	secret **blockhash.Secret
	refs   int
}

func (s *scopes) init() {
	s.all = make([]scope, 1)
	s.numbers = map[prefix.Scope]uint32{}
}

// take returns the number of a scope, with one more reference to it.
func (s *scopes) take(of prefix.Scope) uint32 {
	number, ok := s.numbers[of]
	if !ok {
		number = uint32(len(s.all))
		if n := len(s.free); n > 0 {
			number, s.free = s.free[n-1], s.free[:n-1]
		} else {
			s.all = append(s.all, scope{})
		}
		s.all[number] = scope{of: of, secret: blockhash.SecretOf(of.Seed().Seed)}
		s.numbers[of] = number
	}
	s.all[number].refs++
	return number
}

func (s *scopes) give(number uint32) {
	if number == 0 {
		return
	}
	e := &s.all[number]
	if e.refs--; e.refs > 0 {
		return
	}
	delete(s.numbers, e.of)
	*e = scope{}
	s.free = append(s.free, number)
}
