package prefix

// Conversation is the prompt of a chat request.
type Conversation struct {
	Tools    []string
	Messages []Message
}

// AppendChat appends the block hashes of a conversation to dst, and returns the length of
// the hashed text, too.
func AppendChat(dst []uint64, seed Seed, c *Conversation) (blocks []uint64, bytes int) {
	var h Hasher
	h.Reset(seed, dst)
	for _, tool := range c.Tools {
		h.WriteTool(tool)
	}
	for i := range c.Messages {
		h.WriteMessage(&c.Messages[i])
	}
	return h.Blocks(), h.Len()
}

// Listener is what the router calls.
type Listener = observer

// Listen returns the listener of an index.
func Listen(x *Index) Listener { return observer{x} }
