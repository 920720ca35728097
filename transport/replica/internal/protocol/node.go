package protocol

import (
	"time"
)

// Config configures a [Node]. All fields except Secret and Instance may be left out.
type Config struct {
	// Instance is who this replica is, from its start to its end: drawn at random,
	// never 0.
	Instance uint32
	// Name is what others show of it.
	Name string
	// Secret is what tags are made with.
	Secret string
	// ShareBlocks tells others what endpoints hold, beside their load.
	ShareBlocks bool
	// Blocks is how many blocks are known by their hash.
	Blocks int
	// Forget is how long a replica may be silent before what it has told is forgotten.
	Forget time.Duration
	// Draw draws a number that nobody can guess.
	Draw func() uint64
}

// Counts is what a node has done.
type Counts struct {
	Shared    uint64 // requests of this replica that others were told of
	Blocks    uint64 // of them, those that had to be sent
	Unshared  uint64 // requests that were not told: too many in flight, or names too long
	Applied   uint64 // batches of others
	Repeated  uint64 // messages that came again, or too late to matter
	Asked     uint64 // questions for a snapshot
	Snapshots uint64 // that were taken in
	Answered  uint64 // that were given
	Repairs   uint64 // requests whose blocks were told anew, whole
	Wanted    uint64 // requests of others whose blocks were not known
	Overflows uint64 // batches that got too long and were let go

	Refused    uint64 // messages whose tag was wrong: of another key, or of nobody
	Malformed  uint64 // messages that made no sense
	Unmirrored uint64 // requests of others that were too many
	Crowded    uint64 // messages of replicas that were too many
}

// Node is the protocol of one replica. It has no clock and no connection, and is not safe
// for concurrent use: the caller tells it what happens and when, sends the messages of
// Out and does the Effects.
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

// New returns a node that has told nothing yet.
func New(config Config) *Node {
	return &Node{
		config: config, instance: config.Instance, sealer: newSealer(config.Secret),
		chains: newChains(config.Blocks), log: newLog(config.ShareBlocks), peers: map[uint32]*peer{},
		snapshots: pace{most: maxSnapshots}, repairs: pace{most: maxRepairs}, wants: pace{most: maxWants},
	}
}

func (n *Node) draw() uint64 { return n.config.Draw() }

func (n *Node) effect(e Effect) { n.effects = append(n.effects, e) }

// Drain returns what is to be sent and to be done since the last call, both in order.
func (n *Node) Drain() ([]Message, []Effect) {
	out, effects := n.out, n.effects
	n.out, n.effects = nil, nil
	return out, effects
}

// Flush ends a batch if there is anything in it.
func (n *Node) Flush(now time.Time) {
	if len(n.log.pending.b) > 0 {
		n.flush()
		n.beatAt = now
	}
}

// Tick is to be called now and then, some ten times a second.
func (n *Node) Tick(now time.Time) {
	for _, p := range n.sorted() {
		silent := now.Sub(p.heardAt)
		if silent < 0 {
			p.heardAt = now // the clock was set back
		}
		switch missed := now.Sub(p.missedAt); {
		case silent > n.config.Forget:
			n.forget(p)
		case !p.live:
			n.ask(now, p)
		case !p.missedAt.IsZero() && (missed > gapPatience || missed < 0):
			n.ask(now, p)
		}
		n.wantAgain(now, p)
	}
	if since := now.Sub(n.beatAt); since >= HeartbeatEvery || since < 0 || n.beatAt.IsZero() {
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

// Receive takes in a message. It keeps no part of it.
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

// peer is the one of that instance, which may be new; nil: there are too many.
func (n *Node) peer(now time.Time, instance uint32) *peer {
	p := n.peers[instance]
	if p == nil {
		if len(n.peers) >= maxPeers && !n.yield() {
			n.counts.Crowded++
			return nil
		}
		p = newPeer(instance, now)
		n.peers[instance] = p
	}
	return p
}

// yield gives up the peer that has gone longest without a word of which anything is
// known: what a recording brings back of replicas that have gone keeps nobody out.
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
