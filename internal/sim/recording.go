package sim

import (
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick/transport"
)

// readRecording reads what package transport recorded. Requests that brought no
// token were not served, and are left out. Prompts whose blocks are cut from text
// get blocks of the package's size, as many as the recording's mean ratio of
// tokens to blocks gives: a ratio that was still being learned would cut the same
// prompt differently each time.
func readRecording(name string, r io.Reader) ([]Record, error) {
	type lineOf struct {
		transport.Record
		line int
	}
	var seen []lineOf
	var start time.Time
	ratio := map[string]*moments{} // tokens in a block, by model
	line := 0                      // recordings have no empty ones
	err := transport.ReadRecords(r, func(rec *transport.Record) error {
		line++
		if start.IsZero() || rec.Time.Before(start) {
			start = rec.Time
		}
		if rec.InputTokens == 0 || rec.OutputTokens == 0 {
			return nil
		}
		if len(rec.Blocks) > 0 {
			if !(rec.BlockTokens >= 1 && rec.BlockTokens <= maxTraceTokens) {
				return &TraceError{name, line, "block_tokens", strconv.FormatFloat(rec.BlockTokens, 'g', -1, 64) + " is out of range"}
			}
			m := ratio[rec.Model]
			if m == nil {
				m = &moments{}
				ratio[rec.Model] = m
			}
			m.add(rec.BlockTokens)
		}
		seen = append(seen, lineOf{*rec, line})
		return nil
	})
	var bad *transport.RecordError
	if errors.As(err, &bad) {
		field, reason, ok := strings.Cut(bad.Err.Error(), " is ")
		if !ok || strings.Contains(field, " ") {
			return nil, &TraceError{File: name, Line: bad.Line, Reason: bad.Err.Error()}
		}
		return nil, &TraceError{name, bad.Line, field, "is " + reason}
	}
	if err != nil {
		return nil, err
	}
	records := make([]Record, len(seen))
	for i := range seen {
		rec := &seen[i]
		at := millis(rec.Time.Sub(start))
		record := Record{
			ArrivalMillis: at, InputTokens: rec.InputTokens, OutputTokens: rec.OutputTokens,
			Model: rec.Model, Tenant: hashName(rec.Tenant), Session: hashName(rec.Session), Priority: rec.Priority,
			TTFTTargetMillis: rec.SLOTTFTMillis, TPOTTargetMillis: rec.SLOTPOTMillis,
			LastTokenMillis: at + rec.E2EMillis, Endpoint: rec.Endpoint,
		}
		if rec.TTFTMillis != nil {
			record.FirstTokenMillis = min(at+*rec.TTFTMillis, record.LastTokenMillis)
		}
		if rec.CachedTokens != nil {
			cached := min(*rec.CachedTokens, rec.InputTokens)
			record.CachedTokens = &cached
		}
		if len(rec.Blocks) > 0 {
			mean, _ := ratio[rec.Model].meanStd()
			record.Blocks = recut(rec.Blocks, mean, rec.InputTokens/BlockTokens)
		}
		if field, reason := record.check(); field != "" {
			return nil, &TraceError{name, rec.line, field, reason}
		}
		records[i] = record
	}
	return records, nil
}

// recut returns chained ids of blocks of the package's size, at most so many, from
// those of blocks of size tokens. A block is the same as another one if it is at
// the same place and all that it is cut from, and hence all before it, is the same.
func recut(blocks []transport.Hash, size float64, most int) []uint64 {
	var ids []uint64
	for i := range most {
		last := int(math.Ceil(float64((i+1)*BlockTokens)/size-1e-9)) - 1
		if last >= len(blocks) {
			break
		}
		ids = append(ids, mix(uint64(blocks[last])+uint64(i)))
	}
	return ids
}

// hashName is the name of somebody whose name is hashed.
func hashName(h transport.Hash) string {
	if h == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(h), 16)
}
