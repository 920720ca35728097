package replica

// Bus carries messages between replicas. It may lose, duplicate, delay and reorder them,
// and without the key, somebody who can write to it can do no more than that.
type Bus interface {
	// Open joins the bus. Messages to all replicas and to this instance are passed
	// to receive, which returns at once, may be called from several goroutines and
	// does not keep them.
	Open(instance uint32, receive func(message []byte)) (Line, error)
}

// Line is a replica's place on a bus. Its methods are called from one goroutine.
type Line interface {
	// Publish sends a message of less than 350 KiB to an instance; to is 0: to all. It
	// does not wait, and may keep the message. An error only means that the message is
	// lost.
	Publish(to uint32, message []byte) error
	// Connected reports whether there is a bus, as far as is known. It does not wait.
	Connected() bool
	// Close leaves the bus.
	Close() error
}
