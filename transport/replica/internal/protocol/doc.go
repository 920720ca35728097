// Package protocol is how replicas tell each other what they do: a state machine without
// a connection and without a clock.
//
// Each replica writes a log: which request it has routed where, when its first token
// came, how it ended, which endpoints failed it. [Node] collects events in batches,
// numbered from 1, which a bus carries to all others; a replica applies another's
// batches in order, each once. So whatever the bus does, a duplicate is ignored, an
// early batch waits for a moment and within a limit, and a missing one makes the
// receiver request a snapshot: the state after a batch, from which it can continue. A
// replica that joins begins with the same request. A restarted replica is a new one
// ([Node] draws an instance).
//
// A snapshot is only accepted if it answers a request, and every message has a tag that
// only holders of the key can make. So forged and replayed messages change nothing.
//
// Names of endpoints, models and tenants are sent once and then replaced by a number.
// Blocks are sent once, by the first replica that uses them: hashes are chained, and the
// hash of a block that all have seen stands for the whole head before it ([chains]). A
// receiver that has not seen it says so, and is sent the whole.
package protocol
