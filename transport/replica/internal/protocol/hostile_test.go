package protocol

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// evil is a replica that has the key and sends anything.
type evil struct {
	*world
	victim   *replica
	instance uint32
	sealer   *sealer
	batches  uint64
}

func newEvil(t require.TestingT) *evil {
	w := newWorld(t)
	e := &evil{world: w, victim: w.join(1, true), instance: 666, sealer: newSealer("secret")}
	e.say(e.batch(nil))
	e.snapshot([]byte{0})
	require.True(t, e.victim.Peers()[0].Live)
	return e
}

func (e *evil) say(message []byte) {
	e.victim.Receive(e.now, e.sealer.seal(message))
	e.take(e.victim)
}

func (e *evil) header(kind byte) writer {
	var w writer
	w.byte(kind)
	w.id(e.instance)
	return w
}

// batch returns its next batch.
func (e *evil) batch(ops []byte) []byte {
	e.batches++
	w := e.header(kindBatch)
	w.uint(e.batches)
	return append(w.b, ops...)
}

// snapshot answers the victim's question.
func (e *evil) snapshot(state []byte) {
	w := e.header(kindPart)
	w.id(1)
	w.hash(e.victim.peers[e.instance].question)
	w.uint(e.batches)
	w.count(0)
	w.count(1)
	w.text("evil")
	e.say(append(w.b, state...))
}

// as lets another replica begin to speak.
func (e *evil) as(instance int) {
	e.instance, e.batches = uint32(instance), 0
	e.say(e.batch(nil))
}

// ask asks a replica for a snapshot and for blocks.
func (e *evil) ask(to uint32) {
	w := e.header(kindAsk)
	w.id(to)
	w.hash(7)
	w.text("evil")
	e.say(w.b)
	w = e.header(kindWant)
	w.id(to)
	w.uint(0)
	e.say(w.b)
}

// names defines an endpoint and a class, both as number 0.
func names() writer {
	var w writer
	writeEndpoint(&w, 0, "a")
	writeClass(&w, 0, &Class{Model: "m"})
	return w
}

// routed writes a request of three tokens.
func routed(w *writer, flags byte) {
	w.byte(opRouted | flags)
	for _, v := range []int{0, 0, 3, 0, 0} { // endpoint, class, input, prefix, output
		w.count(v)
	}
}

// requests are names, and as many requests.
func requests(n int) writer {
	w := names()
	for range n {
		routed(&w, 0)
	}
	return w
}

// A malformed message has no effect beyond its valid beginning.
func TestMalformed(t *testing.T) {
	huge := func(f func(*writer)) []byte {
		w := names()
		f(&w)
		return w.b
	}
	for name, ops := range map[string][]byte{
		"no such operation":              {0x0f},
		"a snapshot's operation":         {opOpen, 0, 0, 0, 0, 0, 0},
		"cut off":                        {opRouted},
		"an endpoint that has no number": huge(func(w *writer) { w.byte(opRouted); w.uint(1); w.b = append(w.b, 0, 1, 1, 1) }),
		"a class that has no number":     huge(func(w *writer) { w.byte(opRouted); w.uint(0); w.uint(9); w.b = append(w.b, 1, 1, 1) }),
		"numbers with gaps":              huge(func(w *writer) { writeEndpoint(w, 7, "b") }),
		"too many endpoints":             huge(func(w *writer) { writeEndpoint(w, maxEndpoints, "b") }),
		"too many classes":               huge(func(w *writer) { writeClass(w, maxClasses, &Class{}) }),
		"a long name":                    huge(func(w *writer) { writeEndpoint(w, 1, string(make([]byte, 256))) }),
		"a huge prompt": huge(func(w *writer) {
			w.byte(opRouted)
			w.uint(0)
			w.uint(0)
			w.uint(1 << 40)
			w.uint(0)
			w.uint(0)
		}),
		"more blocks than there are": huge(func(w *writer) { routed(w, hasBlocks); w.uint(5); w.hash(1) }),
		"too many blocks":            huge(func(w *writer) { routed(w, hasBlocks); w.hashes(make([]uint64, maxChain+1)) }),
		"a huge duration":            huge(func(w *writer) { routed(w, 0); w.b = append(w.b, opDone, 1, 0, 0); w.uint(1 << 62); w.uint(0) }),
		"a number without end":       {opFirst, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
		"huge outcomes":              huge(func(w *writer) { w.b = append(w.b, opOutcomes, 0, 200, 1, 0) }),
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvil(t)
			e.say(e.batch(requests(1).b))
			require.Equal(t, 1, e.victim.mirrored)
			e.say(e.batch(ops))
			assert.Equal(t, uint64(1), e.victim.Counts().Malformed)
			assert.False(t, e.victim.Peers()[0].Live, "it is not believed any more")
			e.tick(e.victim, 2*time.Second+time.Millisecond)
			assert.Zero(t, e.victim.mirrored)
			assert.Empty(t, e.victim.Peers())
			assert.Empty(t, e.victim.view)
		})
	}
}

func TestMalformedSnapshots(t *testing.T) {
	open := func(w *writer, number uint64) {
		w.byte(opOpen)
		w.b = append(w.b, 0, 0, 3, 0, 0)
		w.uint(number)
	}
	for name, make := range map[string]func(w *writer){
		"a request twice":       func(w *writer) { open(w, 1); open(w, 1) },
		"one that is to come":   func(w *writer) { open(w, 5) },
		"numbers start over":    func(w *writer) { w.b = append([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 1}, w.b[1:]...) },
		"a log's operation":     func(w *writer) { routed(w, 0) },
		"the end is missing":    func(w *writer) { w.byte(opOpen) },
		"a head without a tail": func(w *writer) { w.byte(opHolds | hasBlocks); w.b = append(w.b, 0, 0, 1, 1, 1, 0, 200) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvil(t)
			e.say(e.batch(requests(1).b))
			e.batches += 3 // so that batches are missing
			e.say(e.batch(nil))
			e.tick(e.victim, time.Second)
			w := writer{[]byte{5}}
			w.b = append(w.b, names().b...)
			make(&w)
			e.snapshot(w.b)
			assert.Equal(t, uint64(1), e.victim.Counts().Malformed)
			assert.Equal(t, 1, e.victim.mirrored)
			assert.Equal(t, uint64(1), e.victim.Counts().Snapshots)
		})
	}
}

func TestEverythingIsBounded(t *testing.T) {
	t.Run("requests of one", func(t *testing.T) {
		e := newEvil(t)
		e.say(e.batch(requests(maxOpen + 10).b))
		assert.Equal(t, maxOpen, e.victim.mirrored)
		assert.Equal(t, uint64(10), e.victim.Counts().Unmirrored)
	})
	t.Run("requests of all", func(t *testing.T) {
		e := newEvil(t)
		w := requests(maxOpen)
		for i := range 6 {
			e.as(1000 + i)
			e.snapshot([]byte{0})
			e.say(e.batch(w.b))
		}
		assert.Equal(t, maxMirrored, e.victim.mirrored)
		e.tick(e.victim, time.Minute)
		assert.Zero(t, e.victim.mirrored)
		assert.Empty(t, e.victim.view)
	})
	t.Run("replicas", func(t *testing.T) {
		e := newEvil(t)
		for i := range maxPeers - 1 {
			e.as(1000 + i)
			if i > 0 {
				e.snapshot([]byte{0})
			}
		}
		require.Len(t, e.victim.Peers(), maxPeers)
		e.as(5000)
		assert.Len(t, e.victim.Peers(), maxPeers)
		assert.NotNil(t, e.victim.peers[5000], "it comes in the place of the one that has said nothing else")
		assert.Nil(t, e.victim.peers[1000])
		e.snapshot([]byte{0})
		e.as(5001)
		assert.Nil(t, e.victim.peers[5001], "all are there")
		assert.Equal(t, uint64(1), e.victim.Counts().Crowded)
	})
	t.Run("early batches", func(t *testing.T) {
		e := newEvil(t)
		e.batches++
		for range 3 * maxHeldCount {
			e.say(e.batch(nil))
		}
		assert.Len(t, e.victim.peers[666].early, maxHeldCount)
	})
	t.Run("a part of a snapshot", func(t *testing.T) {
		e := newEvil(t)
		e.batches++
		e.say(e.batch(nil))
		e.tick(e.victim, time.Second)
		e.snapshot(make([]byte, partBytes+1))
		e.snapshot(append([]byte{0}, bytes.Repeat(requests(0).b, partBytes/len(requests(0).b)-1)...))
		assert.EqualValues(t, 1, e.victim.Counts().Malformed)
		assert.EqualValues(t, 2, e.victim.Counts().Snapshots)
	})
	t.Run("early bytes", func(t *testing.T) {
		e := newEvil(t)
		e.batches++
		for range 100 {
			e.say(e.batch(make([]byte, 100<<10)))
		}
		assert.Len(t, e.victim.peers[666].early, 10)
		assert.LessOrEqual(t, e.victim.peers[666].heldBytes, maxHeld)
	})
	t.Run("blocks", func(t *testing.T) {
		c := newChains(0)
		for i := range 40 {
			blocks := numbered(i, maxChain)
			c.add(blocks)
			got, ok := c.head(nil, blocks[maxChain-1], maxChain)
			require.True(t, ok)
			require.Equal(t, blocks, got)
		}
		assert.LessOrEqual(t, c.len(), 4*maxChain)
	})
	t.Run("questions", func(t *testing.T) {
		e := newEvil(t)
		e.bus = nil
		for range 100 {
			e.ask(1)
		}
		assert.Equal(t, uint64(maxSnapshots), e.victim.Counts().Answered)
	})
	t.Run("heads", func(t *testing.T) {
		e := newEvil(t)
		w := names()
		routed(&w, hasBlocks)
		w.hashes(numbered(0, maxChain))
		for range 2 * maxWhole / maxChain {
			routed(&w, hasBlocks|hasParent)
			w.hash(maxChain)
			w.hashes(nil)
		}
		e.victim.Receive(e.now, e.sealer.seal(e.batch(w.b)))
		_, effects := e.victim.Drain()
		require.Len(t, effects, 1+2*maxWhole/maxChain, "all count as load")
		blocks := 0
		for i := range effects {
			blocks += len(effects[i].Request.Blocks)
		}
		require.Equal(t, maxWhole+maxChain, blocks)
	})
	t.Run("heads of its own", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.join(1, true), w.join(2, true)
		blocks := numbered(0, maxWhole/maxRecent*2)
		for i := range maxRecent {
			ref := ref(i)
			blocks[len(blocks)-1] = uint64(i) << 32
			a.Routed(ref, "a", &endpick.Request{InputTokens: 10}, 0, blocks)
			a.Done(ref, &Outcome{Outcome: endpick.Outcome{Status: endpick.Completed}})
		}
		a.log.pending.b = nil
		s, ok := b.readState(a.snapshot())
		require.True(t, ok)
		require.Len(t, s.holds, maxRecent/2, "the newest")
		for i, h := range s.holds {
			require.EqualValues(t, maxRecent/2+i, h.number)
			require.Equal(t, h.number<<32, h.effect.Request.Blocks[len(blocks)-1])
		}
	})
	t.Run("its own", func(t *testing.T) {
		w := newWorld(t)
		a := w.join(1, true)
		for range maxOpen {
			w.route(a, "a", "m", nil)
		}
		a.Routed(ref(1<<30), "a", &endpick.Request{}, 0, nil)
		a.Routed(ref(1<<31), string(make([]byte, 256)), &endpick.Request{}, 0, nil)
		assert.Equal(t, uint64(2), a.Counts().Unshared)
		a.Flush(w.now)
		out, _ := a.Drain()
		assert.Len(t, out, 1)
		assert.Less(t, len(out[0].Payload), 350<<10)
	})
	t.Run("a batch that is too long", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.join(1, true), w.join(2, true)
		w.calm(time.Second)
		for i := range 5 {
			a.Routed(ref(i), "a", &endpick.Request{InputTokens: 10 + i}, 0, numbered(i+1, maxChain+100))
		}
		a.Flush(w.now)
		out, _ := a.Drain()
		assert.Empty(t, out)
		assert.Equal(t, uint64(1), a.Counts().Overflows)
		w.plain = true // its own checks do not understand these blocks
		b.reported = nil
		w.calm(time.Second)
		assert.Len(t, b.reported, 5, "it is found out, and asked for")
		assert.Equal(t, 5, b.mirrored)
	})
}

// Messages with another key or none, cut off or changed, are rejected, and replaying a
// dead replica's messages brings nothing back.
func TestForgeries(t *testing.T) {
	e := newEvil(t)
	good := e.sealer.seal(e.batch(requests(1).b))
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1
		e.victim.Receive(e.now, bad)
	}
	for i := range good {
		e.victim.Receive(e.now, good[:i])
	}
	e.victim.Receive(e.now, newSealer("another").seal(slices.Clone(good[:len(good)-tagBytes])))
	assert.Equal(t, uint64(2*len(good)+1), e.victim.Counts().Refused)
	assert.Zero(t, e.victim.mirrored)
	e.victim.Receive(e.now, good)
	e.victim.Receive(e.now, good)
	e.take(e.victim)
	assert.Equal(t, 1, e.victim.mirrored)
	assert.Equal(t, uint64(1), e.victim.Counts().Repeated)

	// The replica ends, and an attacker replays what it has recorded.
	e.tick(e.victim, time.Minute)
	require.Empty(t, e.victim.Peers())
	for range 100 {
		e.victim.Receive(e.now, good)
		e.tick(e.victim, 100*time.Millisecond)
		require.Zero(t, e.victim.mirrored)
		for _, p := range e.victim.Peers() {
			require.False(t, p.Live)
		}
	}
}

// The bytes of a request, worked out by hand: a message begins with 1 for its kind, 4
// for its sender and 1 or more for its number; the tag has 8.
func TestBytes(t *testing.T) {
	w := newWorld(t)
	a := w.join(1, true)
	blocks := numbered(0, 105)
	flush := func() string {
		a.Flush(w.now)
		out, _ := a.Drain()
		require.Len(t, out, 1)
		require.Equal(t, "10"+"01000000", hex.EncodeToString(out[0].Payload[:5]))
		return hex.EncodeToString(out[0].Payload[5 : len(out[0].Payload)-tagBytes])
	}
	req := &endpick.Request{Model: "m", InputTokens: 1700, ExpectedOutputTokens: 100, Stream: true}
	a.Routed(ref(1), "a", req, 0, blocks[:1])
	assert.Equal(t, "01"+ // the first batch
		"00"+"00"+"0161"+ // endpoint 0 is a
		"11"+"00"+"016d"+"00"+"00"+ // class 0: streams of m, no adapter, no tenant
		"12"+"00"+"00"+"a40d"+"00"+"64"+ // routed: endpoint, class, 1700 tokens, none cached, 100 expected
		"01"+"0100000000000000", // one block
		flush())
	a.Routed(ref(2), "a", req, 16, blocks[:2])
	assert.Equal(t, "02"+"92"+"00"+"00"+"a40d"+"10"+"64"+
		"0100000000000000"+ // after this one
		"01"+"0200000000000000", flush())
	a.FirstToken(ref(1))
	a.FirstToken(ref(1))
	assert.Equal(t, "03"+"03"+"02", flush(), "the last but one has its first token")
	a.Done(ref(2), &Outcome{
		Outcome: endpick.Outcome{InputTokens: 1701, OutputTokens: 90, CachedTokens: 16, HasCachedTokens: true, Blocks: blocks[:4]},
		TTFT:    25 * time.Millisecond, Took: 2 * time.Second,
	})
	assert.Equal(t, "04"+"c4"+"01"+"02"+"5a"+"a09c01"+"fa01"+"00"+ // one more token, 90 tokens, 2 s, 25 ms, as many cached
		"02"+"0300000000000000"+"0400000000000000", flush())
	a.Done(ref(1), &Outcome{Outcome: endpick.Outcome{Status: endpick.Lost}})
	assert.Equal(t, "05"+"34"+"02"+"c71a"+"00"+"00"+"00", flush())
	assert.Equal(t, uint64(4), a.Counts().Blocks)

	// A whole request in one batch, with 100 known blocks and 5 new ones.
	a.Routed(ref(3), "a", req, 1600, blocks[:100])
	flush()
	before := a.Counts().Blocks
	a.Routed(ref(4), "a", req, 1600, blocks)
	a.FirstToken(ref(4))
	a.Done(ref(4), &Outcome{
		Outcome: endpick.Outcome{InputTokens: 1701, OutputTokens: 90, CachedTokens: 1600, HasCachedTokens: true},
		TTFT:    25 * time.Millisecond, Took: 2 * time.Second,
	})
	a.Flush(w.now)
	out, _ := a.Drain()
	require.Equal(t, before+5, a.Counts().Blocks)
	assert.Equal(t, 14+17+2+10+8*5, len(out[0].Payload)) // under 64 bytes, plus 8 for each new block
}

// FuzzReceive lets a replica with the key send anything, after a valid conversation: as
// a batch, as a snapshot and as any message.
func FuzzReceive(f *testing.F) {
	w := requests(1)
	f.Add(w.b)
	w.b = append(w.b, opFirst, 1, opDone, 1, 0, 0, 9, 3, opOutcomes, 0, 1, 1)
	f.Add(w.b)
	chained := names()
	routed(&chained, hasBlocks)
	chained.hashes([]uint64{1, 0x11})
	routed(&chained, hasBlocks|hasParent)
	chained.hash(0x11)
	chained.hashes([]uint64{0x111})
	f.Add(chained.b)
	f.Add([]byte{opBye})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		e := newEvil(t)
		check := func() {
			n := e.victim.Node
			open := 0
			for _, p := range n.peers {
				open += len(p.open)
				require.LessOrEqual(t, len(p.endpoints), maxEndpoints)
				require.LessOrEqual(t, len(p.classes), maxClasses)
				require.LessOrEqual(t, len(p.wanted), maxWanted)
			}
			require.Equal(t, open, n.mirrored)
			_, effects := n.Drain()
			for _, x := range effects {
				require.LessOrEqual(t, x.Request.InputTokens, maxTokens)
				require.LessOrEqual(t, len(x.Request.Blocks), maxChain)
				require.LessOrEqual(t, x.Outcome.Took, maxDuration)
				require.GreaterOrEqual(t, x.Outcome.CachedTokens, 0)
			}
		}
		receive := func(m []byte) {
			e.victim.Receive(e.now, e.sealer.seal(slices.Clone(m)))
			check()
		}
		receive(e.batch(b))
		receive(e.batch(b))
		receive(b)
		e.victim.ask(e.now.Add(time.Minute), e.victim.peer(e.now, e.instance))
		w := e.header(kindPart)
		w.id(1)
		w.hash(e.victim.peers[e.instance].question)
		w.uint(e.batches + 1)
		w.count(0)
		w.count(1)
		w.text("")
		receive(append(w.b, b...))
		e.now = e.now.Add(time.Minute)
		e.victim.Tick(e.now)
		check()
		require.Zero(t, e.victim.mirrored)
	})
}
