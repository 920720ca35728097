package protocol

// The kinds of messages. Each message begins with its kind and its sender.
const (
	kindBatch byte = 0x10 + iota // of a log, to all: number, operations
	kindAsk                      // requests a snapshot: to, question, name
	kindPart                     // of a snapshot: to, question, number of the last batch in it, part, parts, name, bytes
	kindWant                     // requests the blocks of a request: to, its number
)

// Message is a message to be sent.
type Message struct {
	To      uint32 // an instance; 0: all
	Payload []byte
}

// Instance is the sender that a message names, or 0 if it is malformed.
func Instance(payload []byte) uint32 {
	r := reader{b: payload}
	if k := r.byte(); k < kindBatch || k > kindWant {
		return 0
	}
	return r.id()
}

// IsSnapshot reports whether a message is part of a snapshot.
func IsSnapshot(payload []byte) bool { return len(payload) > 0 && payload[0] == kindPart }

func (n *Node) begin(kind byte) writer {
	w := writer{make([]byte, 0, 64)}
	w.byte(kind)
	w.id(n.instance)
	return w
}

func (n *Node) send(to uint32, w writer) {
	n.out = append(n.out, Message{to, n.sealer.seal(w.b)})
}

func (n *Node) sendAsk(p *peer) {
	w := n.begin(kindAsk)
	w.id(p.instance)
	w.hash(p.question)
	w.text(n.config.Name)
	n.send(p.instance, w)
}

func (n *Node) sendWant(p *peer, number uint64) {
	w := n.begin(kindWant)
	w.id(p.instance)
	w.uint(number)
	n.send(p.instance, w)
}

// sendSnapshot answers a request for one.
func (n *Node) sendSnapshot(to uint32, question uint64) {
	state := n.snapshot()
	parts := max((len(state)+partBytes-1)/partBytes, 1)
	for i := range parts {
		w := n.begin(kindPart)
		w.id(to)
		w.hash(question)
		w.uint(n.log.batches)
		w.count(i)
		w.count(parts)
		w.text(n.config.Name)
		w.b = append(w.b, state[i*partBytes:min((i+1)*partBytes, len(state))]...)
		n.send(to, w)
	}
}
