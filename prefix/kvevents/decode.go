package kvevents

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"

	"github.com/endpick/endpick/prefix/precise"
)

// ErrMalformed says that a message is no batch of events. What is strange about single
// events is counted instead; see [Counts].
var ErrMalformed = errors.New("kvevents: malformed batch")

// Batch is what an engine process publishes after a step.
type Batch struct {
	// Time is when the engine made it, in seconds since 1970 by its clock.
	Time float64
	// Rank is the data-parallel rank, if HasRank; old releases don't say it.
	Rank    int
	HasRank bool
	// Events are in order. They are good until the next message is decoded.
	Events []precise.Event
	Counts Counts
}

// Counts says what was strange about messages. None of it is fatal: engines add to their
// events from release to release.
type Counts struct {
	UnknownEvents uint64 // kinds of event
	UnknownFields uint64 // of known events
	UnknownMedia  uint64 // events left out since nobody knows where their blocks lie
	Malformed     uint64 // events left out since a field has another type than it should
}

func (c *Counts) add(d Counts) {
	c.UnknownEvents += d.UnknownEvents
	c.UnknownFields += d.UnknownFields
	c.UnknownMedia += d.UnknownMedia
	c.Malformed += d.Malformed
}

// Decoder reads messages. Names of blocks that are longer than 64 bits are shortened in
// a way that nobody can foresee, so one Decoder has to read all that an engine process
// sends. Make it with [NewDecoder]. It is not safe for concurrent use.
type Decoder struct {
	seed    maphash.Seed
	hashes  []precise.Hash
	tokens  []uint32
	foreign []bool
}

// NewDecoder returns a decoder.
func NewDecoder() *Decoder { return &Decoder{seed: maphash.MakeSeed()} }

// Decode reads a message into a batch, whose memory it reuses. The error matches
// ErrMalformed. What a message makes it allocate is at most sixteen times
// as long.
func (d *Decoder) Decode(message []byte, b *Batch) error {
	*b = Batch{Events: b.Events[:0]}
	d.hashes, d.tokens, d.foreign = d.hashes[:0], d.tokens[:0], d.foreign[:0]
	r := reader{b: message}
	if n, ok := r.mapping(); ok {
		return d.mapBatch(&r, n, b)
	}
	n, ok := r.array()
	if !ok || n < 2 {
		return fmt.Errorf("%w: neither an array of two nor a map", ErrMalformed)
	}
	if b.Time, ok = r.float(); !ok {
		return fmt.Errorf("%w: its time is no number", ErrMalformed)
	}
	if err := d.events(&r, b); err != nil {
		return err
	}
	for i := 2; i < n; i++ {
		if i == 2 {
			if b.Rank, b.HasRank = r.small(); b.HasRank || r.null() {
				continue
			}
		}
		b.Counts.UnknownFields++
		if !r.skip() {
			return fmt.Errorf("%w: it ends too early", ErrMalformed)
		}
	}
	return nil
}

func (d *Decoder) mapBatch(r *reader, n int, b *Batch) error {
	found := false
	for range n {
		key, ok := r.text()
		if !ok {
			return fmt.Errorf("%w: a key is no string", ErrMalformed)
		}
		switch string(key) {
		case "ts":
			b.Time, ok = r.float()
		case "events":
			if err := d.events(r, b); err != nil {
				return err
			}
			found = true
		case "data_parallel_rank", "attn_dp_rank":
			if !r.null() {
				b.Rank, ok = r.small()
				b.HasRank = ok
			}
		default:
			b.Counts.UnknownFields++
			ok = r.skip()
		}
		if !ok {
			return fmt.Errorf("%w: %q is of another type", ErrMalformed, clip(key))
		}
	}
	if !found {
		return fmt.Errorf("%w: a map without events", ErrMalformed)
	}
	return nil
}

// clip keeps what is quoted in errors short.
func clip(b []byte) []byte { return b[:min(len(b), 40)] }

func (d *Decoder) events(r *reader, b *Batch) error {
	if r.null() {
		return nil
	}
	n, ok := r.array()
	if !ok {
		return fmt.Errorf("%w: its events are no array", ErrMalformed)
	}
	for range n {
		start := *r
		if !r.skip() {
			return fmt.Errorf("%w: it ends within an event", ErrMalformed)
		}
		e := reader{b: r.b[:r.i], i: start.i}
		d.event(&e, b)
	}
	return nil
}

// wire is an event as it is sent, in whatever form.
type wire struct {
	tag, medium, lora, spec, salt, locality []byte
	hashes, tokens, extra                   reader // at the value; empty: there is none
	parent                                  precise.Hash
	hasParent                               bool
	blockTokens, loraID, group, window      int
	hasLoRAID                               bool
}

// event reads the next event of a batch, in an array by place or in a map by name.
func (d *Decoder) event(r *reader, b *Batch) {
	var w wire
	var ok bool
	if n, isMap := r.mapping(); isMap {
		ok = d.mapEvent(r, n, &w, b)
	} else if n, isArray := r.array(); isArray && n > 0 {
		ok = d.arrayEvent(r, n, &w, b)
	}
	if !ok {
		b.Counts.Malformed++
		return
	}
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
		b.Counts.UnknownEvents++
		return
	}
	if !ok {
		b.Counts.Malformed++
		return
	}
	if e.Tier, ok = tierOf(w.medium, w.locality); !ok {
		b.Counts.UnknownMedia++
		return
	}
	b.Events = append(b.Events, e)
}

func (d *Decoder) mapEvent(r *reader, n int, w *wire, b *Batch) bool {
	for range n {
		key, ok := r.text()
		if !ok {
			return false
		}
		if r.null() {
			continue // as if it were not there
		}
		switch string(key) {
		case "type":
			w.tag, ok = r.text()
		case "block_hashes":
			w.hashes, ok = r.value()
		case "parent_block_hash":
			w.parent, ok = d.hash(r)
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
			ok = r.skip() // known, and of no use here
		default:
			b.Counts.UnknownFields++
			ok = r.skip()
		}
		if !ok {
			return false
		}
	}
	return true
}

// value passes over a value and returns a reader at it.
func (r *reader) value() (reader, bool) {
	v := *r
	ok := r.skip()
	return v, ok
}

// arrayEvent reads an event by the places of its fields. What follows the seventh field
// of a stored block differs, and is told by its type:
//
//	vLLM to 0.23:   lora_name, extra_keys, group_idx, kv_cache_spec_kind, window
//	SGLang 0.5.18:  a map of metadata
//	Dynamo:         lora_name, extra_keys, block_mm_infos, group_idx, ...
//	ATOM:           as vLLM, and where the first token stands
func (d *Decoder) arrayEvent(r *reader, n int, w *wire, b *Batch) bool {
	var ok bool
	if w.tag, ok = r.text(); !ok {
		return false
	}
	removed := string(w.tag) == "BlockRemoved"
	if string(w.tag) == "AllBlocksCleared" && n > 1 && r.kind() == kindString {
		w.medium, ok = r.text()
		return ok
	}
	if !removed && string(w.tag) != "BlockStored" {
		return true
	}
	group := 0 // its place
	for i := 1; i < n; i++ {
		place := i
		if removed && i >= 2 {
			place = i + 4 // medium, and what is after extra_keys
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
			w.parent, ok = d.hash(r)
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
			var pairs int
			if pairs, ok = r.mapping(); ok {
				ok = d.mapEvent(r, pairs, w, b)
			}
		case place == 7:
			w.lora, ok = r.text()
		case place == 8:
			w.extra, ok = r.value()
		case k == kindString:
			w.spec, ok = r.text()
		case k == kindInt && group == 0 && place <= 10:
			w.group, ok = r.small()
			group = place
		case k == kindInt && group > 0 && place == group+2:
			w.window, ok = r.small()
		default:
			b.Counts.UnknownFields++
			ok = r.skip()
		}
		if !ok {
			return false
		}
	}
	return true
}

func (d *Decoder) stored(w *wire, e *precise.Event) bool {
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
		// Old releases don't say the name. This is nobody's, and keeps the blocks apart.
		e.Adapter = "lora_id " + strconv.Itoa(w.loraID)
	}
	e.Spec = specOf(w.spec, w.window)
	return d.extra(w.extra, w, e)
}

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

// hash reads one: a number or bytes, of whatever the engine makes it.
func (d *Decoder) hash(r *reader) (precise.Hash, bool) {
	if n, _, ok := r.integer(); ok {
		return precise.Hash(n), true
	}
	b, ok := r.text()
	return precise.Hash(maphash.Bytes(d.seed, b)), ok
}

// ids reads token ids. Engines that guess ahead in pairs (EAGLE) key blocks by pairs of
// a token and the next one.
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
		// Nearly all are of these two forms.
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

// extra reads what is part of blocks besides their tokens: for each a list, or nothing.
// Of strings in the first block of a prompt one is the salt, if it is not the adapter;
// media, and whatever is not known, make a block foreign.
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

// extraKey reads one, and reports whether it is anything but an adapter or a salt.
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

// tierOf is where a medium is. None is said of GPU memory in old releases.
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

// specOf is what the layers of a group need, by the names of vLLM's and SGLang's cache
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
