package protocol

import "time"

// Limits of what others may make a replica keep or do. Messages beyond them are malformed.
const (
	maxName      = 255       // bytes of an endpoint's ID, a model, an adapter, a tenant
	maxEndpoints = 4096      // with a number in one log
	maxClasses   = 1024      // kinds of requests with a number
	maxChain     = 8192      // blocks of one request; of a longer prompt, the head is shared
	maxOpen      = 16_384    // requests in flight of one replica
	maxMirrored  = 65_536    // of all others together
	maxPeers     = 64        // replicas
	maxRecent    = 4096      // ended requests whose blocks a snapshot may hold
	maxWhole     = 1 << 21   // blocks of the requests in a message or a snapshot, with those that they share
	maxPending   = 256 << 10 // bytes of a batch
	maxHeld      = 1 << 20   // bytes of early batches of one replica
	maxHeldCount = 1024
	partBytes    = 48 << 10 // of a snapshot
	maxParts     = 96
	blockBudget  = 256 << 10 // bytes of ended requests' blocks in a snapshot

	maxTokens   = 1 << 24
	maxDuration = time.Hour
	maxOutcomes = 20 // of one endpoint that count in one batch: as many as health remembers

	// Rates, per second, of what others can request.
	maxSnapshots = 8
	maxRepairs   = 16
	maxWants     = 32

	maxWanted = 64 // requests of one replica whose blocks are requested
	wantTries = 5
)

// Durations on the wire are in units of this.
const tick = 100 * time.Microsecond

// Tokens per block, which may be a fraction, are sent in parts of this.
const blockParts = 64

// Times of the protocol.
const (
	// HeartbeatEvery is the longest silence of a live replica.
	HeartbeatEvery = 250 * time.Millisecond
	// gapPatience is how long a missing batch may still arrive.
	gapPatience = 100 * time.Millisecond
	askEvery    = 250 * time.Millisecond
	wantEvery   = time.Second
	askMost     = 4 * time.Second
)
