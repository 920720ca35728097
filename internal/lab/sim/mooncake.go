package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// mooncakeLine is one line of a Mooncake trace.
type mooncakeLine struct {
	Timestamp    *float64 `json:"timestamp"`
	InputLength  *int     `json:"input_length"`
	OutputLength *int     `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// mooncakeNames are the names of a Record's fields in a Mooncake trace.
var mooncakeNames = map[string]string{
	"ArrivalMillis": "timestamp", "InputTokens": "input_length", "OutputTokens": "output_length", "Blocks": "hash_ids",
}

// maxTraceLine is longer than any line with as many blocks as a prompt may have.
const maxTraceLine = 64 << 20

func readMooncake(name string, r io.Reader) ([]Record, error) {
	var records []Record
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxTraceLine)
	n := 1
	for ; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		record, err := parseMooncake(line)
		if err != nil {
			return nil, traceError(name, n, mooncakeNames, err)
		}
		records = append(records, record)
	}
	if err := lines.Err(); err != nil {
		return nil, traceError(name, n, nil, err)
	}
	return records, nil
}

func parseMooncake(line []byte) (Record, error) {
	var m mooncakeLine
	if err := json.Unmarshal(line, &m); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return Record{}, &fieldError{wrong.Field, "is a " + wrong.Value}
		}
		return Record{}, err
	}
	switch {
	case m.Timestamp == nil:
		return Record{}, &fieldError{"timestamp", "is missing"}
	case m.InputLength == nil:
		return Record{}, &fieldError{"input_length", "is missing"}
	case m.OutputLength == nil:
		return Record{}, &fieldError{"output_length", "is missing"}
	}
	r := Record{
		ArrivalMillis: *m.Timestamp, InputTokens: *m.InputLength, OutputTokens: *m.OutputLength,
		Blocks: m.HashIDs, BlockTokens: 512,
	}
	return r, r.check()
}
