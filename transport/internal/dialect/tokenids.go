package dialect

import "bytes"

// maxHashedTokens is the length of the longest head of a prompt that is hashed,
// longer than any context.
const maxHashedTokens = 1 << 22

// tokenIDs reads an array of token ids, up to maxHashedTokens of them, or only
// counts them. There must be at least one.
func tokenIDs(v []byte, keep bool) (ids []uint32, n int, ok bool) {
	if keep {
		ids = make([]uint32, 0, min(bytes.Count(v, comma)+1, len(v)/2, maxHashedTokens))
	}
	for c := elementsOf(v); c.element(); n++ {
		id, ok := count(c.value())
		if !ok {
			return nil, 0, false
		}
		if keep && n < maxHashedTokens {
			ids = append(ids, uint32(id))
		}
	}
	return ids, n, n > 0
}
