package replica

import "time"

// Status is how a replica stands with the others.
type Status struct {
	// Running says that Run is.
	Running bool
	// Connected says that there is a bus, as far as is known.
	Connected bool
	// Instance is this replica from the start of Run to its end, by which others know it.
	Instance uint32
	// Peers are the other replicas that were heard of within Config.Forget. None: the
	// router knows its own requests alone.
	Peers []Peer

	// What this replica has told.
	Shared        uint64 // requests
	Blocks        uint64 // blocks of prompts and responses that had to be sent for them
	Unshared      uint64 // requests that were not told: over 16,384 in flight, or names over 255 bytes
	Sent          uint64 // messages
	SentBytes     uint64 // in them, without what the bus adds
	SnapshotBytes uint64 // of these, in snapshots
	Restarts      uint64 // times that it has begun anew as another, because Run could not keep up

	// What it was told.
	Mirrored      uint64 // requests of others that were counted here
	Unmirrored    uint64 // that were not: too many, or at an endpoint that is not here
	Received      uint64 // messages
	ReceivedBytes uint64
	Missed        uint64 // messages that came too fast to be taken in, or were too long
	Snapshots     uint64 // taken in, at the beginning and where something was missing
	UnknownBlocks uint64 // requests whose blocks could not be read, and were asked for
	Refused       uint64 // messages with a wrong tag: of a replica with another key, or of nobody
	Malformed     uint64 // messages that make no sense: of another version
	TooMany       uint64 // messages of replicas beyond the 64th
}

// Peer is another replica.
type Peer struct {
	Name     string
	Instance uint32
	// Live says that what it does is known here. It is not yet, for a moment, when one of
	// the two has just come.
	Live bool
	// Behind says that some of it is missing at the moment.
	Behind bool
	// Age is how long ago something new of it came, at the time of the status, which is
	// at most a quarter of a second old.
	Age time.Duration
	// InFlight are its requests that are counted here.
	InFlight int
}

// Alone reports whether the router knows its own requests alone.
func (s *Status) Alone() bool {
	for _, p := range s.Peers {
		if p.Live {
			return false
		}
	}
	return true
}

// Status returns how the replica stands. It takes a moment and may be called often.
func (r *Replica) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Peers = append([]Peer(nil), s.Peers...)
	return s
}
