package kvevents

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/endpick/endpick/prefix/precise"
)

// wire is an event as it was sent, in whatever form.
type wire struct {
	tag, medium, lora, spec, salt, locality []byte
	hashes, tokens, extra                   int // positions of the values; 0: there is none
	parent                                  precise.Hash
	hasParent                               bool
	blockTokens, loraID, group, window      int
	hasLoRAID                               bool
}

// event reads the next event of a batch, from an array by position or from a map by name.
// It returns false if that is malformed, and may then be anywhere in it.
func (d *decoder) event(b *batch) bool {
	var w wire
	var ok bool
	switch d.r.kind() {
	case kindMap:
		ok = d.mapEvent(&w, b)
	case kindArray:
		ok = d.arrayEvent(&w, b)
	}
	if !ok {
		return false
	}
	end := d.r.at()
	e := precise.Event{Group: w.group, BlockTokens: w.blockTokens}
	switch string(w.tag) {
	case "BlockStored":
		ok = d.stored(&w, &e)
	case "BlockRemoved":
		e.Kind = precise.Removed
		e.Hashes, ok = d.names(w.hashes)
	case "AllBlocksCleared":
		e.Kind = precise.Cleared
	default:
		b.counts.UnknownEvents++
		return true
	}
	if !ok {
		return false
	}
	d.r.seek(end)
	if e.Tier, ok = tierOf(w.medium, w.locality); !ok {
		b.counts.UnknownMedia++
		return true
	}
	b.events = append(b.events, e)
	return true
}

func (d *decoder) mapEvent(w *wire, b *batch) bool {
	r := &d.r
	n, ok := r.mapping()
	if !ok {
		return false
	}
	for range n {
		key, ok := r.text()
		if !ok {
			return false
		}
		if r.null() {
			continue // as if it were absent
		}
		switch string(key) {
		case "type":
			w.tag, ok = r.text()
		case "block_hashes":
			w.hashes, ok = r.value()
		case "parent_block_hash":
			w.parent, ok = d.hash()
			w.hasParent = ok
		case "token_ids":
			w.tokens, ok = r.value()
		case "block_size":
			w.blockTokens, ok = r.small()
		case "lora_id":
			w.loraID, ok = r.small()
			w.hasLoRAID = ok
		case "lora_name":
			w.lora, ok = r.text()
		case "medium":
			w.medium, ok = r.text()
		case "extra_keys":
			w.extra, ok = r.value()
		case "group_idx", "component_id":
			w.group, ok = r.small()
		case "kv_cache_spec_kind", "component_type":
			w.spec, ok = r.text()
		case "kv_cache_spec_sliding_window":
			w.window, ok = r.small()
		case "locality":
			w.locality, ok = r.text()
		case "cache_salt":
			w.salt, ok = r.text()
		case "ownership", "session_id", "event_version", "remaining_copy_counts", "snapshot_version":
			ok = r.skip() // known, but not used
		default:
			b.counts.UnknownFields++
			ok = r.skip()
		}
		if !ok {
			return false
		}
	}
	return true
}

// arrayEvent reads an event by the positions of its fields. What follows the seventh
// field of a stored block differs, and is recognized by its type:
//
//	vLLM to 0.23:   lora_name, extra_keys, group_idx, kv_cache_spec_kind, window
//	SGLang 0.5.18:  a map of metadata
//	Dynamo:         lora_name, extra_keys, block_mm_infos, group_idx, ...
//	ATOM:           as vLLM, and the position of the first token
func (d *decoder) arrayEvent(w *wire, b *batch) bool {
	r := &d.r
	n, ok := r.array()
	if !ok || n == 0 {
		return false
	}
	if w.tag, ok = r.text(); !ok {
		return false
	}
	removed := string(w.tag) == "BlockRemoved"
	if !removed && string(w.tag) != "BlockStored" {
		i := 1
		if string(w.tag) == "AllBlocksCleared" && n > 1 && r.kind() == kindString {
			w.medium, ok = r.text()
			i++
		}
		for ; ok && i < n; i++ {
			ok = r.skip()
		}
		return ok
	}
	group := 0 // its position
	for i := 1; i < n; i++ {
		place := i
		if removed && i >= 2 {
			place = i + 4 // medium, and what follows extra_keys
			if i > 2 {
				place = i + 6
			}
		}
		if r.null() {
			continue
		}
		switch k := r.kind(); {
		case place == 1:
			w.hashes, ok = r.value()
		case place == 2:
			w.parent, ok = d.hash()
			w.hasParent = ok
		case place == 3:
			w.tokens, ok = r.value()
		case place == 4:
			w.blockTokens, ok = r.small()
		case place == 5:
			w.loraID, ok = r.small()
			w.hasLoRAID = ok
		case place == 6:
			w.medium, ok = r.text()
		case place == 7 && k == kindMap:
			ok = d.mapEvent(w, b)
		case place == 7:
			w.lora, ok = r.text()
		case place == 8:
			w.extra, ok = r.value()
		case k == kindString:
			w.spec, ok = r.text()
		case k == kindNumber && group == 0 && place <= 10:
			w.group, ok = r.small()
			group = place
		case k == kindNumber && group > 0 && place == group+2:
			w.window, ok = r.small()
		default:
			b.counts.UnknownFields++
			ok = r.skip()
		}
		if !ok {
			return false
		}
	}
	return true
}

func (d *decoder) stored(w *wire, e *precise.Event) bool {
	var ok bool
	if e.Hashes, ok = d.names(w.hashes); !ok {
		return false
	}
	if e.Tokens, ok = d.ids(w.tokens); !ok {
		return false
	}
	e.Parent, e.HasParent = w.parent, w.hasParent
	e.Adapter, e.Salt, e.Window = string(w.lora), string(w.salt), w.window
	if len(w.lora) == 0 && w.hasLoRAID {
		// Old releases don't send the name. This one belongs to nobody, and keeps the blocks apart.
		e.Adapter = "lora_id " + strconv.Itoa(w.loraID)
	}
	e.Spec = specOf(w.spec, w.window)
	return d.extra(w.extra, w, e)
}

// tierOf is the tier of a medium. Old releases don't name GPU memory.
func tierOf(medium, locality []byte) (precise.Tier, bool) {
	switch {
	case len(medium) == 0 || is(medium, "GPU"):
		return precise.GPU, true
	case is(medium, "CPU"), is(medium, "CPU_PINNED"):
		return precise.CPU, true
	case is(medium, "EXTERNAL"), is(medium, "REMOTE"), is(locality, "REMOTE"):
		return precise.External, true
	case is(medium, "DISK"), is(medium, "STORAGE"):
		return precise.Disk, true
	}
	return 0, false
}

func is(b []byte, name string) bool { return bytes.EqualFold(b, []byte(name)) }

// specOf is what the layers of a group need, by vLLM's and SGLang's names of cache
// specifications.
func specOf(kind []byte, window int) precise.Spec {
	k := strings.ToLower(string(kind))
	switch {
	case strings.Contains(k, "mamba"), strings.Contains(k, "ssm"), strings.Contains(k, "linear"):
		return precise.State
	case strings.Contains(k, "sliding"), strings.Contains(k, "swa"), strings.Contains(k, "chunked"), window > 0:
		return precise.Window
	}
	return precise.Full
}
