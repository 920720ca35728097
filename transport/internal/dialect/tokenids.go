package dialect

import "bytes"

// maxHashedTokens is the length of the longest head of a prompt that is hashed,
// longer than any context.
const maxHashedTokens = 1 << 22

// tokenIDs reads an array of token ids, up to maxHashedTokens of them, or only
// counts them. There must be at least one.
func tokenIDs(v []byte, keep bool) (ids []uint32, n int, ok bool) {
	if len(v) == 0 || v[0] != '[' {
		return nil, 0, false
	}
	if keep {
		ids = make([]uint32, 0, min(bytes.Count(v, comma)+1, len(v)/2, maxHashedTokens))
	}
	for i := skipSpace(v, 1); i < len(v); {
		if v[i] == ']' {
			return ids, n, n > 0
		}
		start, id := i, 0
		for i < len(v) && i < start+9 && v[i]-'0' < 10 {
			id = 10*id + int(v[i]-'0')
			i++
		}
		if i > start && i+1 < len(v) && v[i] == ',' && v[i+1] > ' ' { // the common case
			i++
			n++
			if keep && n <= maxHashedTokens {
				ids = append(ids, uint32(id))
			}
			continue
		}
		if i == start || i < len(v) && !isDelimiter(v[i]) { // too long, a float, or no id
			if i = skipValue(v, start); i < 0 {
				return nil, 0, false
			}
			if id, ok = count(v[start:i]); !ok {
				return nil, 0, false
			}
		}
		n++
		if keep && n <= maxHashedTokens {
			ids = append(ids, uint32(id))
		}
		if i = skipSpace(v, i); i < len(v) && v[i] == ',' {
			i = skipSpace(v, i+1)
		}
	}
	return nil, 0, false
}
