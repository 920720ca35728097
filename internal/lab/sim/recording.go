package sim

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/transport/recording"
)

// readRecording reads a gateway's recording. Requests without a token were not
// served, and are left out. Prompts whose blocks are cut from text get blocks of the
// package's size, in number by the recording's mean ratio of tokens to blocks: a
// ratio that was still being learned would cut the same prompt differently each
// time.
func readRecording(name string, r io.Reader) ([]Record, error) {
	type seenRequest struct {
		*recording.Request
		line int
	}
	var seen []seenRequest
	var start time.Time
	ratio := map[string]*moments{} // tokens per block, by model
	err := recording.Read(r, func(line int, q *recording.Request) error {
		if start.IsZero() || q.Time.Before(start) {
			start = q.Time
		}
		if q.InputTokens == 0 || q.OutputTokens == 0 {
			return nil
		}
		if len(q.Blocks) > 0 {
			if !(q.BlockTokens >= 1 && q.BlockTokens <= maxTraceTokens) {
				return &TraceError{name, line, fmt.Errorf("block_tokens %v is out of range", q.BlockTokens)}
			}
			m := ratio[q.Model]
			if m == nil {
				m = &moments{}
				ratio[q.Model] = m
			}
			m.add(q.BlockTokens)
		}
		seen = append(seen, seenRequest{q, line})
		return nil
	})
	var bad *recording.LineError
	switch {
	case errors.As(err, &bad) && bad.Field != "":
		return nil, &TraceError{name, bad.Line, fmt.Errorf("%s %w", bad.Field, bad.Err)}
	case bad != nil:
		return nil, &TraceError{name, bad.Line, fmt.Errorf("can't be read: %w", bad.Err)}
	case err != nil:
		return nil, err
	}
	records := make([]Record, len(seen))
	for i, q := range seen {
		at := millis(q.Time.Sub(start))
		record := Record{
			ArrivalMillis: at, InputTokens: q.InputTokens, OutputTokens: q.OutputTokens,
			Model: q.Model, Tenant: hashName(q.Tenant), Session: hashName(q.Session), Priority: q.Priority,
			TTFTTargetMillis: q.SLOTTFTMillis, TPOTTargetMillis: q.SLOTPOTMillis,
			LastTokenMillis: at + q.E2EMillis, Endpoint: q.Endpoint,
		}
		if q.TTFTMillis != nil {
			record.FirstTokenMillis = min(at+*q.TTFTMillis, record.LastTokenMillis)
		}
		if q.CachedTokens != nil {
			cached := min(*q.CachedTokens, q.InputTokens)
			record.CachedTokens = &cached
		}
		if len(q.Blocks) > 0 {
			mean, _ := ratio[q.Model].meanStd()
			record.Blocks = recut(q.Blocks, mean, q.InputTokens/BlockTokens)
		}
		if err := record.check(); err != nil {
			return nil, &TraceError{name, q.line, err}
		}
		records[i] = record
	}
	return records, nil
}

// recut returns chained ids of blocks of the package's size, at most so many, from
// those of blocks of size tokens. Two blocks are the same if they are at the same
// place and cut from the same blocks, so that everything before them is the same.
func recut(blocks []recording.Hash, size float64, most int) []uint64 {
	var ids []uint64
	for i := range most {
		last := int(math.Ceil(float64((i+1)*BlockTokens)/size-1e-9)) - 1
		if last >= len(blocks) {
			break
		}
		ids = append(ids, engine.Mix(uint64(blocks[last])+uint64(i)))
	}
	return ids
}

// hashName is the name for a hash of a name.
func hashName(h recording.Hash) string {
	if h == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(h), 16)
}
