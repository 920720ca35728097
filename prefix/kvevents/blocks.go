package kvevents

import (
	"hash/maphash"

	"github.com/endpick/endpick/prefix/precise"
)

// The parts of blocks: names, token ids and extra keys.

// maxItems limits the names and the token ids of an event, because they take several times the memory
// of the message. Package precise takes no more either.
const maxItems = 1 << 20

// items reads the head of an array of these; they follow.
func (d *decoder) items() int {
	n := d.array()
	if d.bad = d.bad || n > maxItems; d.bad {
		return 0
	}
	return n
}

// names reads the hashes of blocks.
func (d *decoder) names(at int) []precise.Hash {
	d.bad = d.bad || at == 0
	d.seek(at)
	d.hashes = d.hashes[:0]
	for range d.items() {
		d.hashes = append(d.hashes, d.hash())
	}
	return d.hashes
}

// hash reads one name: a number or bytes, depending on the engine.
func (d *decoder) hash() precise.Hash {
	if d.kind() == kindNumber {
		return precise.Hash(d.integer())
	}
	return precise.Hash(maphash.Bytes(d.seed, d.text()))
}

// ids reads token ids. Engines with speculative decoding by pairs (EAGLE) key blocks by
// pairs of a token and the next one.
func (d *decoder) ids(at int) []uint32 {
	if at == 0 {
		return nil
	}
	d.seek(at)
	d.tokens = d.tokens[:0]
	for range d.items() {
		others := 0
		if d.kind() == kindArray {
			others = d.array() - 1
			d.bad = d.bad || others < 0
		}
		d.tokens = append(d.tokens, uint32(d.small()))
		for ; others > 0; others-- {
			d.skip()
		}
	}
	return d.tokens
}

// extra reads the content of blocks other than tokens: a list or nothing for each. Of
// the strings in the first block of a prompt, one is the salt unless it is the adapter;
// anything else, such as media, is other content.
func (d *decoder) extra(w *wire) {
	if w.extra == 0 {
		return
	}
	d.seek(w.extra)
	d.others = d.others[:0]
	any := false
	for block := range d.array() {
		other := false
		if !d.null() {
			for range d.array() {
				other = d.extraKey(block == 0 && !w.HasParent, &w.Event) || other
			}
		}
		any = any || other
		d.others = append(d.others, other)
	}
	if any {
		w.Opaque = d.others
	}
}

// extraKey reads one item, and reports whether it is anything but an adapter or a salt.
func (d *decoder) extraKey(first bool, e *precise.Event) (other bool) {
	switch d.kind() {
	case kindString:
		s := d.text()
		if first && e.Salt == "" && string(s) != e.Adapter {
			e.Salt = string(s)
		}
		return string(s) != e.Adapter && string(s) != e.Salt
	case kindMap:
		var tag, value []byte
		for range d.mapping() {
			key := d.text()
			switch {
			case d.kind() != kindString:
				d.skip()
			case string(key) == "type":
				tag = d.text()
			default:
				value = d.text()
			}
		}
		switch string(tag) {
		case "lora", "LoRAKey":
			e.Adapter = string(value)
			return false
		case "cache_salt", "CacheSaltKey":
			e.Salt = string(value)
			return false
		}
		return true
	}
	d.skip()
	return true
}
