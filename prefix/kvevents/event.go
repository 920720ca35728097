package kvevents

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/endpick/endpick/prefix/precise"
)

// wire is an event as it was sent, in whatever form.
type wire struct {
	precise.Event
	tag, medium, lora, spec, locality []byte
	hashes, tokens, extra             int // positions of the values; 0: there is none
	loraID                            string
}

// next reads the next event of a batch, from an array by position or from a map by name. It returns
// false if the event is bad or unknown.
func (d *decoder) next() bool {
	var w wire
	if d.kind() == kindMap {
		d.mapEvent(&w)
	} else {
		d.arrayEvent(&w)
	}
	end := d.at()
	e := precise.Event{Group: w.Group}
	switch string(w.tag) {
	case "BlockStored":
		d.stored(&w)
		e = w.Event
	case "BlockRemoved":
		e.Kind, e.Hashes = precise.Removed, d.names(w.hashes)
	case "AllBlocksCleared":
		e.Kind = precise.Cleared
	default:
		if !d.bad {
			d.counts.UnknownEvents++
		}
		return false
	}
	if d.bad {
		return false
	}
	d.seek(end)
	var ok bool
	if e.Tier, ok = tierOf(w.medium, w.locality); !ok {
		d.counts.UnknownMedia++
	}
	d.event[0] = e
	return ok
}

func (d *decoder) mapEvent(w *wire) {
	for range d.mapping() {
		d.field(string(d.text()), w)
	}
}

// field reads one field.
func (d *decoder) field(name string, w *wire) {
	if d.null() {
		return // as if it were absent
	}
	switch name {
	case "type":
		w.tag = d.text()
	case "block_hashes":
		w.hashes = d.value()
	case "parent_block_hash":
		w.Parent, w.HasParent = d.hash(), true
	case "token_ids":
		w.tokens = d.value()
	case "block_size":
		w.BlockTokens = d.small()
	case "lora_id":
		// Old releases don't send the name. This one belongs to nobody, and keeps the blocks apart.
		w.loraID = "lora_id " + strconv.Itoa(d.small())
	case "lora_name":
		w.lora = d.text()
	case "medium":
		w.medium = d.text()
	case "extra_keys":
		w.extra = d.value()
	case "group_idx", "component_id":
		w.Group = d.small()
	case "kv_cache_spec_kind", "component_type":
		w.spec = d.text()
	case "kv_cache_spec_sliding_window":
		w.Window = d.small()
	case "locality":
		w.locality = d.text()
	case "cache_salt":
		w.Salt = string(d.text())
	case "ownership", "session_id", "event_version", "remaining_copy_counts", "snapshot_version":
		d.skip() // known, but not used
	default:
		d.counts.UnknownFields++
		d.skip()
	}
}

// arrayEvent reads an event by the positions of its fields. What follows the seventh
// field of a stored block differs, and is recognized by its type:
//
//	vLLM to 0.23:   lora_name, extra_keys, group_idx, kv_cache_spec_kind, window
//	SGLang 0.5.18:  a map of metadata
//	Dynamo:         lora_name, extra_keys, block_mm_infos, group_idx, ...
//	ATOM:           as vLLM, and the position of the first token
func (d *decoder) arrayEvent(w *wire) {
	n := d.array()
	w.tag = d.text()
	var fields []string
	group := 0 // its place, which is the tenth at most
	switch string(w.tag) {
	case "BlockStored":
		fields = []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"}
	case "BlockRemoved":
		fields = []string{"type", "block_hashes", "medium"}
	}
	for i := 1; i < n; i++ {
		name := ""
		switch k := d.kind(); {
		case i == 7 && len(fields) > i && k == kindMap:
			d.mapEvent(w)
			continue
		case i < len(fields):
			name = fields[i]
		case fields == nil && i == 1 && k == kindString:
			name = "medium"
		case fields == nil:
			d.skip()
			continue
		case k == kindString:
			name = "kv_cache_spec_kind"
		case k == kindNumber && group == 0 && i <= 10:
			name, group = "group_idx", i
		case k == kindNumber && group > 0 && i == group+2:
			name = "kv_cache_spec_sliding_window"
		}
		d.field(name, w)
	}
}

// stored completes an event that stores blocks.
func (d *decoder) stored(w *wire) {
	w.Hashes, w.Tokens = d.names(w.hashes), d.ids(w.tokens)
	w.Spec = specOf(w.spec, w.Window)
	if w.Adapter = string(w.lora); w.Adapter == "" {
		w.Adapter = w.loraID
	}
	d.extra(w)
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
