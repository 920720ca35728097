package replica

import (
	"slices"
	"time"
)

// Status describes a replica's exchange with the others.
type Status struct {
	// Running says that Run is running.
	Running bool
	// Connected says that the bus is connected, as far as is known.
	Connected bool
	// Instance identifies this replica to others, from the start of Run to its end.
	Instance uint32
	// Peers are the other replicas that have sent something within Config.Forget.
	// Empty: the router knows only its own requests.
	Peers []Peer

	// What this replica has sent.
	Shared        uint64 // requests
	Blocks        uint64 // blocks of prompts and responses that had to be sent with them
	Unshared      uint64 // requests that were not shared: over 16,384 in flight, or names over 255 bytes
	Sent          uint64 // messages
	SentBytes     uint64 // their bytes, without the bus's overhead
	SnapshotBytes uint64 // of these, in snapshots
	Restarts      uint64 // how often it started over as another instance, because Run could not keep up

	// What it has received.
	Mirrored      uint64 // requests of others that were counted here
	Unmirrored    uint64 // requests that were not: too many, or at an endpoint that is unknown here
	Received      uint64 // messages
	ReceivedBytes uint64
	Missed        uint64 // messages that arrived too fast to be handled, or were too long
	Snapshots     uint64 // snapshots loaded, when joining and after gaps
	UnknownBlocks uint64 // requests with unreadable blocks, which were requested
	Refused       uint64 // messages with a wrong tag: of a replica with another key, or forged
	Malformed     uint64 // invalid messages: of another version
	TooMany       uint64 // messages of replicas beyond the 64th
}

// Peer is another replica.
type Peer struct {
	Name     string
	Instance uint32
	// Live says that its requests are known here. They are not for a moment after
	// either of the two has joined.
	Live bool
	// Behind says that some of its messages are currently missing.
	Behind bool
	// Age is how long ago its last message arrived, as of the status, which is at
	// most a quarter of a second old.
	Age time.Duration
	// InFlight is how many of its requests are counted here.
	InFlight int
}

// Alone reports whether the router knows only its own requests.
func (s *Status) Alone() bool {
	return !slices.ContainsFunc(s.Peers, func(p Peer) bool { return p.Live })
}

// Status returns the current status. It is cheap and may be called often.
func (r *Replica) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Peers = slices.Clone(s.Peers)
	return s
}
