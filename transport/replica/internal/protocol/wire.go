package protocol

import "encoding/binary"

// writer appends to a message.
type writer struct{ b []byte }

func (w *writer) byte(v byte)   { w.b = append(w.b, v) }
func (w *writer) uint(v uint64) { w.b = binary.AppendUvarint(w.b, v) }
func (w *writer) int(v int)     { w.b = binary.AppendVarint(w.b, int64(v)) }
func (w *writer) hash(v uint64) { w.b = binary.LittleEndian.AppendUint64(w.b, v) }
func (w *writer) id(v uint32)   { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *writer) text(s string) { w.uint(uint64(len(s))); w.b = append(w.b, s...) }
func (w *writer) count(v int)   { w.uint(uint64(max(v, 0))) }
func (w *writer) hashes(h []uint64) {
	w.count(len(h))
	for _, v := range h {
		w.hash(v)
	}
}

// reader parses a message. Missing values are zero and set bad, which callers check
// once, at the end of an operation.
type reader struct {
	b     []byte
	bad   bool
	whole int // blocks of requests that stand for more than was read
}

func (r *reader) more() bool { return len(r.b) > 0 && !r.bad }

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// within reads a number of at most most; a larger one sets bad.
func (r *reader) within(most uint64) uint64 {
	v := r.uint()
	if v > most {
		r.bad = true
		return 0
	}
	return v
}

// near reads a number between 0 and maxTokens that is sent as the difference to another.
func (r *reader) near(to int) int {
	v, n := binary.Varint(r.b)
	if n <= 0 || v < -maxTokens || v > maxTokens {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return min(max(to+int(v), 0), maxTokens)
}

func (r *reader) hash() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) id() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) text() string { return string(r.take(r.within(maxName))) }

// hashes appends hashes to dst.
func (r *reader) hashes(dst []uint64) []uint64 {
	n := r.within(maxChain)
	b := r.take(8 * n)
	for ; len(b) > 0; b = b[8:] {
		dst = append(dst, binary.LittleEndian.Uint64(b))
	}
	return dst
}
