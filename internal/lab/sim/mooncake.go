package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// mooncakeLine is one line of a Mooncake trace.
type mooncakeLine struct {
	Timestamp    *float64 `json:"timestamp"`
	InputLength  *int     `json:"input_length"`
	OutputLength *int     `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

func readMooncake(name string, text []byte) ([]Record, error) {
	var records []Record
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		record, err := parseMooncake(line)
		if err != nil {
			return nil, &TraceError{name, n, err}
		}
		records = append(records, record)
	}
	return records, nil
}

func parseMooncake(line []byte) (Record, error) {
	var m mooncakeLine
	if err := json.Unmarshal(line, &m); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return Record{}, fmt.Errorf("%s is a %s", wrong.Field, wrong.Value)
		}
		return Record{}, fmt.Errorf("can't be read: %w", err)
	}
	switch {
	case m.Timestamp == nil:
		return Record{}, errors.New("timestamp is missing")
	case m.InputLength == nil:
		return Record{}, errors.New("input_length is missing")
	case m.OutputLength == nil:
		return Record{}, errors.New("output_length is missing")
	}
	r := Record{
		ArrivalMillis: *m.Timestamp, InputTokens: *m.InputLength, OutputTokens: *m.OutputLength,
		Blocks: m.HashIDs, BlockTokens: 512,
	}
	return r, r.check()
}
