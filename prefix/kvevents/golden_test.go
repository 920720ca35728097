package kvevents

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

var update = flag.Bool("update", false, "write what messages are read as into testdata")

// capture is a message in testdata and its expected content.
func capture(t testing.TB, file string) (head string, message []byte, read string) {
	head, read, ok := strings.Cut(string(rig.Must(os.ReadFile(file))), "=>\n")
	require.True(t, ok, file)
	for line := range strings.Lines(head) {
		code, _, _ := strings.Cut(line, "#")
		b, err := hex.DecodeString(strings.TrimSpace(code))
		require.NoError(t, err, "%s: %s", file, line)
		message = append(message, b...)
	}
	return head, message, read
}

func captures(t testing.TB) []string {
	files := rig.Must(filepath.Glob("testdata/*.txt"))
	require.Greater(t, len(files), 10)
	return files
}

// batch is what a message says.
type batch struct {
	events []precise.Event
	counts Counts
}

func (d *decoder) batch(message []byte) (b batch, err error) {
	d.counts = Counts{}
	err = d.decode(message, func(events []precise.Event) {
		e := events[0]
		e.Hashes, e.Tokens, e.Opaque = slices.Clone(e.Hashes), slices.Clone(e.Tokens), slices.Clone(e.Opaque)
		b.events = append(b.events, e)
	})
	b.counts = d.counts
	return b, err
}

// dump formats a batch for people. Long names of blocks are numbered in order.
func dump(b *batch) string {
	var w strings.Builder
	seen := map[precise.Hash]int{}
	name := func(h precise.Hash) string {
		if h < 1000 {
			return fmt.Sprint(uint64(h))
		}
		if seen[h] == 0 {
			seen[h] = len(seen) + 1
		}
		return fmt.Sprintf("h%d", seen[h])
	}
	for _, e := range b.events {
		fmt.Fprintf(&w, "%s %s", [...]string{"stored", "removed", "cleared"}[e.Kind], [...]string{"gpu", "cpu", "disk", "external"}[e.Tier])
		for _, h := range e.Hashes {
			fmt.Fprintf(&w, " %s", name(h))
		}
		if e.HasParent {
			fmt.Fprintf(&w, " after %s", name(e.Parent))
		}
		if n := len(e.Tokens); n > 0 {
			fmt.Fprintf(&w, ", %d tokens %d..%d", n, e.Tokens[0], e.Tokens[n-1])
		}
		for _, f := range []struct {
			what  string
			value any
			zero  bool
		}{
			{"blocks of", e.BlockTokens, e.BlockTokens == 0}, {"group", e.Group, e.Group == 0},
			{"spec", [...]string{"full", "window", "state"}[e.Spec], e.Spec == precise.Full}, {"window", e.Window, e.Window == 0},
			{"adapter", e.Adapter, e.Adapter == ""}, {"salt", e.Salt, e.Salt == ""}, {"opaque", e.Opaque, e.Opaque == nil},
		} {
			if !f.zero {
				fmt.Fprintf(&w, ", %s %v", f.what, f.value)
			}
		}
		w.WriteByte('\n')
	}
	if b.counts != (Counts{}) {
		fmt.Fprintf(&w, "%+v\n", b.counts)
	}
	return w.String()
}

// Each form that engines send, byte by byte.
func TestCaptures(t *testing.T) {
	for _, file := range captures(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			head, message, want := capture(t, file)
			var any any
			require.NoError(t, msgpack.Unmarshal(message, &any), "it is MessagePack to others too")
			d := newDecoder()
			b := rig.Must(d.batch(message))
			got := dump(&b)
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(head+"=>\n"+got), 0o666))
				return
			}
			require.Equal(t, want, got)
			b, err := d.batch(message)
			require.NoError(t, err, "memory is used again")
			require.Equal(t, want, dump(&b))
			// A truncated message is rejected.
			for n := range message {
				require.ErrorIs(t, rig.Err(d.batch(message[:n])), errMalformed, "%d bytes", n)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, file := range captures(f) {
		_, message, _ := capture(f, file)
		f.Add(message)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		d := newDecoder()
		b, err := d.batch(message)
		if err != nil {
			require.ErrorIs(t, err, errMalformed)
			return
		}
		for _, e := range b.events {
			require.LessOrEqual(t, len(e.Hashes)+len(e.Tokens), len(message))
			require.Less(t, e.Tier, precise.Tier(precise.Tiers))
		}
		require.LessOrEqual(t, len(b.events), len(message))
		require.NoError(t, rig.Err(d.batch(slices.Clone(message))))
	})
}

func TestAddressesOfRanks(t *testing.T) {
	for _, c := range []struct {
		address string
		rank    int
		want    string
	}{
		{"tcp://*:5557", 0, "tcp://*:5557"}, {"tcp://[::1]:5557", 3, "tcp://[::1]:5560"}, {":1", 1, ":2"},
		{"h:65535", 1, ""}, {"h", 1, ""}, {"h:5557", -1, ""}, {"h:x", 1, ""},
	} {
		got, ok := RankAddress(c.address, c.rank)
		require.Equal(t, c.want, got)
		require.Equal(t, c.want != "", ok)
	}
}

// decoded is a batch that engines would send.
func decoded(t *testing.T, v any) (b batch) {
	b, err := newDecoder().batch(rig.Must(msgpack.Marshal(v)))
	require.NoError(t, err, "%v", v)
	return b
}

// Which of a block's extra keys are adapter and salt, and which make it opaque. An adapter's number, also 0, keeps
// its blocks apart from others if nothing gives its name.
func TestExtraKeys(t *testing.T) {
	type keys []any
	const number = "lora_id 0"
	typed := func(kind, value string) map[string]any { return map[string]any{"type": kind, "value": value} }
	for name, c := range map[string]struct {
		parent, lora any
		extra        []any
		adapter      string
		salt         string
		opaque       []bool
	}{
		"none":                        {nil, nil, []any{nil, nil}, number, "", nil},
		"adapter and salt":            {nil, "sql", []any{keys{"sql", "s"}, keys{"sql"}}, "sql", "s", nil},
		"the salt again":              {nil, nil, []any{keys{"s"}, keys{"s"}}, number, "s", nil},
		"two strings at first":        {nil, nil, []any{keys{"s", "picture"}, nil}, number, "s", []bool{true, false}},
		"a string later":              {nil, nil, []any{nil, keys{"picture"}}, number, "", []bool{false, true}},
		"a string in a later event":   {5, nil, []any{keys{"picture"}, nil}, number, "", []bool{true, false}},
		"bytes":                       {nil, nil, []any{nil, keys{[]byte("e")}}, number, "", []bool{false, true}},
		"a picture":                   {nil, nil, []any{keys{keys{"p", 3}}, nil}, number, "", []bool{true, false}},
		"a picture before the salt":   {nil, nil, []any{keys{keys{"p", 3}, "s"}, nil}, number, "s", []bool{true, false}},
		"typed":                       {nil, "sql", []any{keys{typed("LoRAKey", "sql"), typed("CacheSaltKey", "s")}, nil}, "sql", "s", nil},
		"typed only":                  {nil, nil, []any{keys{typed("lora", "sql"), typed("cache_salt", "s")}, nil}, "sql", "s", nil},
		"typed, and nobody knows how": {nil, nil, []any{keys{typed("tomorrow", "1")}, nil}, number, "", []bool{true, false}},
	} {
		e := store(c.parent, 0, 1, 2)
		e["extra_keys"], e["lora_id"], e["lora_name"] = c.extra, 0, c.lora
		b := decoded(t, []any{1.5, []any{e}})
		require.Len(t, b.events, 1, name)
		got := b.events[0]
		require.Equal(t, []any{c.adapter, c.salt, c.opaque}, []any{got.Adapter, got.Salt, got.Opaque}, name)
	}
}

// Groups have other kinds of layers, by other names.
func TestKindsOfGroups(t *testing.T) {
	for kind, want := range map[string]precise.Spec{
		"full_attention": precise.Full, "tomorrow": precise.Full,
		"Mamba": precise.State, "ssm": precise.State, "gated_linear": precise.State,
		"sliding_window": precise.Window, "SWA": precise.Window, "chunked_local_attention": precise.Window,
	} {
		e := store(nil, 0, 1)
		delete(e, "group_idx")
		delete(e, "kv_cache_spec_kind")
		e["component_id"], e["component_type"], e["remaining_copy_counts"], e["snapshot_version"] = 1, kind, []any{1}, 1
		b := decoded(t, []any{1.5, []any{e}})
		require.Equal(t, Counts{}, b.counts)
		require.Equal(t, []any{1, want}, []any{b.events[0].Group, b.events[0].Spec}, kind)
	}
	e := store(nil, 0, 1)
	e["kv_cache_spec_kind"], e["kv_cache_spec_sliding_window"] = nil, 40
	require.Equal(t, precise.Window, decoded(t, []any{1.5, []any{e}}).events[0].Spec, "what has a window")
}

func TestMalformedEvents(t *testing.T) {
	for field, values := range map[string][]any{
		"block_hashes": {1, "x", []any{1.5}, map[string]any{}}, "parent_block_hash": {1.5, []any{}},
		"token_ids": {"x", []any{"x"}, []any{-1}, []any{[]any{}}, []any{uint64(1) << 40}}, "block_size": {-1, "x", int64(1) << 40},
		"lora_id": {"x"}, "lora_name": {1}, "medium": {1}, "extra_keys": {1, []any{1}}, "group_idx": {-1, "x"},
		"kv_cache_spec_kind": {1}, "kv_cache_spec_sliding_window": {"x"}, "type": {1}, "cache_salt": {1}, "locality": {1},
	} {
		for _, v := range values {
			e := store(nil, 0, 1)
			e[field] = v
			b := decoded(t, []any{1.5, []any{e, remove(7)}})
			require.Equal(t, uint64(1), b.counts.Malformed, "%s: %v", field, v)
			require.Len(t, b.events, 1)
			require.Equal(t, precise.Removed, b.events[0].Kind)
		}
	}
	b := decoded(t, []any{1.5, []any{[]any{"BlockStored", []any{1}, nil, []any{[]any{}}, 16}}})
	require.Equal(t, uint64(1), b.counts.Malformed, "the number after an empty pair is none of its tokens")
}

// A batch may be a map, have more fields than we know, and no events. A rank is no field that we don't know, by
// either of its names.
func TestBatches(t *testing.T) {
	for field, unknown := range map[string]uint64{"data_parallel_rank": 0, "attn_dp_rank": 0, "another_rank": 1} {
		b := decoded(t, map[string]any{"ts": 1.5, "events": []any{remove(7)}, field: 3})
		require.Len(t, b.events, 1)
		require.Equal(t, unknown, b.counts.UnknownFields, field)
	}
	b := decoded(t, []any{1.5, nil, 0, "another", "and one more"})
	require.Empty(t, b.events)
	require.EqualValues(t, 2, b.counts.UnknownFields)
	bare := store(nil, 0, 1)
	delete(bare, "token_ids")
	b = decoded(t, []any{1.5, []any{bare}})
	require.Equal(t, Counts{}, b.counts)
	require.Empty(t, b.events[0].Tokens, "blocks of another tier may come without")
}
