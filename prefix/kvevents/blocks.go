package kvevents

import (
	"hash/maphash"

	"github.com/endpick/endpick/prefix/precise"
)

// The parts of blocks: names, token ids and extra keys.

// names reads the hashes of blocks.
func (d *Decoder) names(r reader) ([]precise.Hash, bool) {
	n, ok := r.array()
	if !ok {
		return nil, false
	}
	from := len(d.hashes)
	for range n {
		h, ok := d.hash(&r)
		if !ok {
			return nil, false
		}
		d.hashes = append(d.hashes, h)
	}
	return d.hashes[from:len(d.hashes):len(d.hashes)], true
}

// hash reads one name: a number or bytes, depending on the engine.
func (d *Decoder) hash(r *reader) (precise.Hash, bool) {
	if n, _, ok := r.integer(); ok {
		return precise.Hash(n), true
	}
	b, ok := r.text()
	return precise.Hash(maphash.Bytes(d.seed, b)), ok
}

// ids reads token ids. Engines with speculative decoding by pairs (EAGLE) key blocks by
// pairs of a token and the next one.
func (d *Decoder) ids(r reader) ([]uint32, bool) {
	if r.b == nil {
		return nil, true
	}
	n, ok := r.array()
	if !ok {
		return nil, false
	}
	from := len(d.tokens)
	for range n {
		// Nearly all ids have one of these two forms.
		if len(r.b)-r.i > 2 && r.b[r.i] == 0xcd {
			d.tokens = append(d.tokens, uint32(r.b[r.i+1])<<8|uint32(r.b[r.i+2]))
			r.i += 3
			continue
		}
		pair, isPair := 0, false
		if r.i < len(r.b) && r.b[r.i] >= 0x90 && r.b[r.i] < 0xa0 {
			if pair, isPair = r.array(); pair == 0 {
				return nil, false
			}
		}
		id, ok := r.small()
		if !ok {
			return nil, false
		}
		d.tokens = append(d.tokens, uint32(id))
		for range pair - 1 {
			if isPair && !r.skip() {
				return nil, false
			}
		}
	}
	return d.tokens[from:len(d.tokens):len(d.tokens)], true
}

// extra reads the content of blocks other than tokens: a list or nothing for each. Of
// the strings in the first block of a prompt, one is the salt unless it is the adapter;
// media, and anything unknown, make a block foreign.
func (d *Decoder) extra(r reader, w *wire, e *precise.Event) bool {
	if r.b == nil {
		return true
	}
	blocks, ok := r.array()
	if !ok {
		return false
	}
	from := len(d.foreign)
	any := false
	for block := range blocks {
		foreign := false
		if !r.null() {
			n, ok := r.array()
			if !ok {
				return false
			}
			for range n {
				f, ok := d.extraKey(&r, block == 0 && !w.hasParent, e)
				if !ok {
					return false
				}
				foreign = foreign || f
			}
		}
		any = any || foreign
		d.foreign = append(d.foreign, foreign)
	}
	if any {
		e.Foreign = d.foreign[from:len(d.foreign):len(d.foreign)]
	}
	return true
}

// extraKey reads one item, and reports whether it is anything but an adapter or a salt.
func (d *Decoder) extraKey(r *reader, first bool, e *precise.Event) (foreign, ok bool) {
	switch r.kind() {
	case kindString:
		s, ok := r.text()
		return d.plainKey(s, first, e), ok
	case kindMap:
		n, ok := r.mapping()
		if !ok {
			return false, false
		}
		var tag, value []byte
		for range n {
			key, ok := r.text()
			if !ok {
				return false, false
			}
			isText := r.kind() == kindString
			v, ok := r.value()
			if !ok {
				return false, false
			}
			switch {
			case string(key) == "type" && isText:
				tag, _ = v.text()
			case isText:
				value, _ = v.text()
			}
		}
		switch string(tag) {
		case "lora", "LoRAKey":
			e.Adapter = string(value)
			return false, true
		case "cache_salt", "CacheSaltKey":
			e.Salt = string(value)
			return false, true
		}
		return true, true
	}
	return true, r.skip()
}

func (d *Decoder) plainKey(s []byte, first bool, e *precise.Event) (foreign bool) {
	switch {
	case string(s) == e.Adapter:
		return false
	case first && e.Salt == "":
		e.Salt = string(s)
		return false
	}
	return string(s) != e.Salt
}
