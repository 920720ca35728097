// Package protocol is how replicas tell each other what they do: a state machine
// without a connection and without a clock.
//
// Each replica writes a log of its own: which request it has routed where, when its
// first token came, how it ended, which endpoints failed it. [Node] collects what
// happens in batches, numbered from 1, which a bus carries to all others; a replica
// applies the batches of another in their order, each once. Whatever a bus does to them
// has one of three results. A batch that was applied is not applied again. One that is
// early waits, for a moment and within a bound. One that is missing makes the receiver
// ask for a snapshot, which is the state at a batch, so that what follows can be applied
// to it; one that joins begins with the same question. A replica is who it was when it
// started ([Node] draws an instance): a restarted one is another.
//
// A snapshot is believed only if it answers a question that was asked, and every message
// carries a tag that only those can make who have the key. So what is not from a
// replica, or was recorded earlier, changes nothing.
//
// Names of endpoints, models and tenants are sent once and then stand for a number.
// Blocks are sent once by whoever is first: hashes are chained, and the hash of a block
// that all have seen stands for the whole head before it ([chains]). A receiver that has
// not seen it says so, and is told the whole.
package protocol
