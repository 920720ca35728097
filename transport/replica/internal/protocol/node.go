package protocol

import "time"

// Config configures a [Node]. All fields except Secret and Instance are optional.
type Config struct {
	// Instance identifies this replica from its start to its end. It is drawn at
	// random, and never 0.
	Instance uint32
	// Name is how others show this replica.
	Name string
	// Secret is the key of the tags.
	Secret string
	// ShareBlocks shares what endpoints hold, in addition to their load.
	ShareBlocks bool
	// Blocks is how many blocks are known by their hash.
	Blocks int
	// Forget is how long a replica may be silent before its requests are forgotten.
	Forget time.Duration
	// Draw returns an unpredictable number.
	Draw func() uint64
}

// Counts counts what a node has done.
type Counts struct {
	Shared    uint64 // requests of this replica that were shared
	Blocks    uint64 // blocks of these that had to be sent
	Unshared  uint64 // requests that were not shared: too many in flight, or names too long
	Applied   uint64 // batches of others
	Repeated  uint64 // duplicate messages, and ones that came too late
	Asked     uint64 // requests for snapshots
	Snapshots uint64 // snapshots loaded
	Answered  uint64 // snapshots sent
	Repairs   uint64 // requests whose blocks were all sent again
	Wanted    uint64 // requests of others whose blocks were not known
	Overflows uint64 // batches dropped because they were too long

	Refused    uint64 // messages with a wrong tag: of another key, or forged
	Malformed  uint64 // invalid messages
	Unmirrored uint64 // requests of others beyond the limit
	Crowded    uint64 // messages of replicas beyond the limit
}

// Node is the protocol of one replica. It has no clock and no connection, and is not safe
// for concurrent use: the caller reports events and times, sends the Messages and applies
// the Effects of Drain.
type Node struct {
	config   Config
	instance uint32
	sealer   *sealer
	chains   *chains
	log      *log
	peers    map[uint32]*peer
	mirrored int // requests in flight of all others
	beatAt   time.Time

	out     []Message
	effects []Effect
	counts  Counts

	snapshots, repairs, wants pace
}

// New returns a node with an empty log.
func New(config Config) *Node {
	return &Node{
		config: config, instance: config.Instance, sealer: newSealer(config.Secret),
		chains: newChains(config.Blocks), log: newLog(config.ShareBlocks), peers: map[uint32]*peer{},
		snapshots: pace{most: maxSnapshots}, repairs: pace{most: maxRepairs}, wants: pace{most: maxWants},
	}
}

func (n *Node) effect(e Effect) { n.effects = append(n.effects, e) }

// Drain returns the messages to send and the effects to apply since the last call, both in
// order.
func (n *Node) Drain() ([]Message, []Effect) {
	out, effects := n.out, n.effects
	n.out, n.effects = nil, nil
	return out, effects
}

// Flush ends the current batch, if there is anything in it.
func (n *Node) Flush(now time.Time) {
	if len(n.log.pending.b) > 0 {
		n.flush()
		n.beatAt = now
	}
}

// Tick must be called regularly, some ten times a second.
func (n *Node) Tick(now time.Time) {
	for _, p := range n.sorted() {
		switch {
		case now.Sub(p.heardAt) > n.config.Forget:
			n.forget(p)
		case !p.live:
			n.ask(now, p)
		case !p.missedAt.IsZero() && now.Sub(p.missedAt) > gapPatience:
			n.ask(now, p)
		}
		n.wantAgain(now, p)
	}
	if now.Sub(n.beatAt) >= HeartbeatEvery || n.beatAt.IsZero() {
		n.flush()
		n.beatAt = now
	}
}

// Forget forgets all others, as if they were silent.
func (n *Node) Forget() {
	for _, p := range n.sorted() {
		n.forget(p)
	}
}

// Receive handles a message. It keeps no part of it.
func (n *Node) Receive(now time.Time, payload []byte) {
	from := Instance(payload)
	if from == n.instance {
		return
	}
	message, ok := n.sealer.open(payload)
	if !ok || from == 0 {
		n.counts.Refused++
		return
	}
	r := &reader{b: message}
	kind := r.byte()
	r.id()
	if kind != kindBatch && r.id() != n.instance {
		return // for another
	}
	switch kind {
	case kindBatch:
		number := r.uint()
		if r.bad || number == 0 {
			n.counts.Malformed++
		} else if p := n.peer(now, from); p != nil {
			n.batch(now, p, number, r.b)
		}
	case kindAsk:
		question := r.hash()
		name := r.text()
		if r.bad {
			n.counts.Malformed++
			return
		}
		if p := n.peer(now, from); p != nil {
			p.name = name
		}
		if n.snapshots.take(now) {
			n.counts.Answered++
			n.Flush(now)
			n.sendSnapshot(from, question)
		}
	case kindPart:
		if p := n.peers[from]; p != nil {
			n.part(now, p, r)
		}
	case kindWant:
		number := r.uint()
		if !r.bad && n.repairs.take(now) {
			n.repair(number)
		}
	}
}

// peer returns the peer of that instance, creating it if necessary; nil if there are too many.
func (n *Node) peer(now time.Time, instance uint32) *peer {
	p := n.peers[instance]
	if p == nil {
		if len(n.peers) >= maxPeers && !n.yield() {
			n.counts.Crowded++
			return nil
		}
		p = &peer{instance: instance, heardAt: now, early: map[uint64][]byte{}, open: map[uint64]*Lease{}}
		n.peers[instance] = p
	}
	return p
}

// yield makes room for a new peer by dropping the one that has been silent for
// longest, if nothing is known of it: so replayed messages of replicas that are
// gone keep nobody out.
func (n *Node) yield() bool {
	var oldest *peer
	for _, p := range n.sorted() {
		if !p.live && (oldest == nil || p.heardAt.Before(oldest.heardAt)) {
			oldest = p
		}
	}
	if oldest != nil {
		n.forget(oldest)
	}
	return oldest != nil
}
