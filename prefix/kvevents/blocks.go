package kvevents

import (
	"hash/maphash"

	"github.com/endpick/endpick/prefix/precise"
)

// The parts of blocks: names, token ids and extra keys.

// names reads the hashes of blocks.
func (d *decoder) names(at int) ([]precise.Hash, bool) {
	d.r.seek(at)
	n, ok := d.r.array()
	if !ok || at == 0 {
		return nil, false
	}
	from := len(d.hashes)
	for range n {
		h, ok := d.hash()
		if !ok {
			return nil, false
		}
		d.hashes = append(d.hashes, h)
	}
	return d.hashes[from:len(d.hashes):len(d.hashes)], true
}

// hash reads one name: a number or bytes, depending on the engine.
func (d *decoder) hash() (precise.Hash, bool) {
	if n, ok := d.r.integer(); ok {
		return precise.Hash(n), true
	}
	b, ok := d.r.text()
	return precise.Hash(maphash.Bytes(d.seed, b)), ok
}

// ids reads token ids. Engines with speculative decoding by pairs (EAGLE) key blocks by
// pairs of a token and the next one.
func (d *decoder) ids(at int) ([]uint32, bool) {
	if at == 0 {
		return nil, true
	}
	r := &d.r
	r.seek(at)
	n, ok := r.array()
	if !ok {
		return nil, false
	}
	from := len(d.tokens)
	for range n {
		id, ok := r.small()
		pair := 1
		if !ok {
			if pair, ok = r.array(); !ok || pair == 0 {
				return nil, false
			}
			if id, ok = r.small(); !ok {
				return nil, false
			}
		}
		d.tokens = append(d.tokens, uint32(id))
		for range pair - 1 {
			if !r.skip() {
				return nil, false
			}
		}
	}
	return d.tokens[from:len(d.tokens):len(d.tokens)], true
}

// extra reads the content of blocks other than tokens: a list or nothing for each. Of
// the strings in the first block of a prompt, one is the salt unless it is the adapter;
// anything else, such as media, is other content.
func (d *decoder) extra(at int, w *wire, e *precise.Event) bool {
	if at == 0 {
		return true
	}
	r := &d.r
	r.seek(at)
	blocks, ok := r.array()
	if !ok {
		return false
	}
	from := len(d.others)
	any := false
	for block := range blocks {
		other := false
		if !r.null() {
			n, ok := r.array()
			if !ok {
				return false
			}
			for range n {
				o, ok := d.extraKey(block == 0 && !w.hasParent, e)
				if !ok {
					return false
				}
				other = other || o
			}
		}
		any = any || other
		d.others = append(d.others, other)
	}
	if any {
		e.Opaque = d.others[from:len(d.others):len(d.others)]
	}
	return true
}

// extraKey reads one item, and reports whether it is anything but an adapter or a salt.
func (d *decoder) extraKey(first bool, e *precise.Event) (other, ok bool) {
	r := &d.r
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
			if r.kind() != kindString {
				if !r.skip() {
					return false, false
				}
				continue
			}
			text, ok := r.text()
			if !ok {
				return false, false
			}
			if string(key) == "type" {
				tag = text
			} else {
				value = text
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

func (d *decoder) plainKey(s []byte, first bool, e *precise.Event) (other bool) {
	switch {
	case string(s) == e.Adapter:
		return false
	case first && e.Salt == "":
		e.Salt = string(s)
		return false
	}
	return string(s) != e.Salt
}
