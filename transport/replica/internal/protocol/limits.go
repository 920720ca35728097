package protocol

import "time"

// What others may make a replica keep, or do. A message that is beyond is malformed.
const (
	maxName      = 255       // bytes of an endpoint's ID, a model, an adapter, a tenant
	maxEndpoints = 4096      // that have a number in one log
	maxClasses   = 1024      // kinds of requests that have one
	maxChain     = 8192      // blocks of one request: of a longer prompt the head is shared
	maxOpen      = 16_384    // requests in flight of one replica
	maxMirrored  = 65_536    // of all others together
	maxPeers     = 64        // replicas
	maxRecent    = 4096      // ended requests whose blocks a snapshot may hold
	maxPending   = 256 << 10 // bytes of a batch
	maxHeld      = 1 << 20   // bytes of batches that have come early, of one replica
	maxHeldCount = 1024
	partBytes    = 48 << 10 // of a snapshot
	maxParts     = 96
	blockBudget  = 256 << 10 // bytes of ended requests' blocks in a snapshot

	maxTokens   = 1 << 24
	maxDuration = time.Hour
	maxOutcomes = 20 // of one endpoint that count in one batch: what health remembers

	// The pace of what others can ask for, in each second.
	maxSnapshots = 8
	maxRepairs   = 16
	maxWants     = 32

	maxWanted = 64 // requests of one replica whose blocks are asked for
	wantTries = 5
)

// The unit of durations on the wire.
const tick = 100 * time.Microsecond

// The unit of tokens in a block, which may be a fraction.
const blockParts = 64

// Times of the protocol.
const (
	// HeartbeatEvery is the longest silence of a replica that is there.
	HeartbeatEvery = 250 * time.Millisecond
	// gapPatience is how long what is missing may still come.
	gapPatience = 100 * time.Millisecond
	askEvery    = 250 * time.Millisecond
	wantEvery   = time.Second
	askMost     = 4 * time.Second
)
